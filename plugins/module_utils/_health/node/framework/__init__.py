# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The parts of every check: the Check record, the runner, the busy gate, shared findings."""
