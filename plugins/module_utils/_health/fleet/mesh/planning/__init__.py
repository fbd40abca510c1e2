# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What the plan of a mesh is made of: groups, the start, rails and rounds."""
