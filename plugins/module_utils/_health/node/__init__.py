# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Code that runs on a node, and everything that a module may send to a node."""
