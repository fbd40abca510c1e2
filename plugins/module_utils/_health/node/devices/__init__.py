# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""GPUs and their links, read through NVML, CUDA, DCGM and sysfs."""
