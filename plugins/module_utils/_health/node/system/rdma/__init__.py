# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The ports of HCAs, and perftest, which measures between them."""
