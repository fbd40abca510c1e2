# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""From causes to a verdict: the result of each check and host, and the findings of the run."""
