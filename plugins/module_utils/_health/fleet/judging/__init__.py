# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""From the results of checks to the verdict on nodes, fleet and run."""
