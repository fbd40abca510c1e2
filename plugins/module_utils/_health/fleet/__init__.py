# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Code that needs several nodes; it runs on the controller or in an agent."""
