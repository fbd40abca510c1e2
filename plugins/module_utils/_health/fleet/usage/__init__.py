# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What captures of usage say: figures of one run, and whether and how two runs differ. Pure, but
for reading the samples' lines.
"""
