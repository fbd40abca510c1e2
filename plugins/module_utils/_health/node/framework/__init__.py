# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What every check is built from: the Check record, the runner, the busy gate, shared findings."""
