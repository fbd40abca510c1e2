# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The resident agent: the core's checks on a timer and over HTTP, on one node of a cluster."""
