# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The installation of the queue: verified sources, the objects made of them, apply, wait and remove."""
