# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The mesh: plan which nodes measure with each other and when, and judge nodes, links and paths by
the figures.
"""
