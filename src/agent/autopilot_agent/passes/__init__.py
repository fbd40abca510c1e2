# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run checks on this node, by timer and by request, and keep the results."""
