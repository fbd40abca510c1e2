# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Captures of usage: figures of one run, and comparison of two runs. Pure, apart from reading the
sample files.
"""
