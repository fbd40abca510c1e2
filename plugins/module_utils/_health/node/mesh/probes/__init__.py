# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What a node measures with its peers: one file for each probe, and the list of them."""
