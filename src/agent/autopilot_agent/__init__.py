# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The resident agent of a node: runs the core's checks by timer and by HTTP request."""
