# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The host around the GPUs: processes, files, logs, network tools."""
