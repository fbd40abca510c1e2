# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The core: everything this collection knows about the health of GPU nodes, without Ansible."""

#: The version of the collection, as in galaxy.yml, for what the core writes down about itself.
VERSION = "0.1.0"
