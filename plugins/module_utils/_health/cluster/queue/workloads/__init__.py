# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Sample workloads: packing objects into an AppWrapper, running them in a queue, reading results."""
