# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The mesh: who talks to whom and when, what the nodes do about it, and what their figures say
about nodes, links and paths.
"""
