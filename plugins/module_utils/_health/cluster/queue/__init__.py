# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The queue of a cluster: Kueue's objects, their quota, and the capacity of the nodes behind it."""
