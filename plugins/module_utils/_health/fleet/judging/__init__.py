# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge the results of checks: verdicts on nodes, fleet and run."""
