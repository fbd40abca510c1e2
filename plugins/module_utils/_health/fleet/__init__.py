# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What needs more than one node; runs on the controller or in an agent that is asked."""
