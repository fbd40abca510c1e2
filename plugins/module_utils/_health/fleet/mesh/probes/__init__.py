# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What a mesh measures, as its plan and its judgement know it: one file for each probe."""
