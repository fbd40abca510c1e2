# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Teams that share a cluster: namespace, queue, quota and access of each, planned from one list."""
