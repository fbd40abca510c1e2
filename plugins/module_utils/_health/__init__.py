# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The core: all knowledge of this collection about the health of GPU nodes, independent of Ansible."""

#: The version of the collection, as in galaxy.yml; recorded in the documents that the core writes.
VERSION = "0.1.0"
