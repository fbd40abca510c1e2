# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A node's share of a mesh: run its measurements on time and hand over the readings."""
