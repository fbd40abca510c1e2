# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Sampling of host and GPUs beside a running job, without disturbing it."""
