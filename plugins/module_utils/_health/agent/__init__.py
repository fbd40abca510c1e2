# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The settings of the resident agent, which the role validates before the agent reads them."""
