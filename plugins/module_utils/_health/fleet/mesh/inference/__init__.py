# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""From observations to causes: what is expected of each pair, which of them are bad, and the smallest
set of faults that explains it.
"""
