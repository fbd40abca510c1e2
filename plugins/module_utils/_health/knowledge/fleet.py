# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The threshold of a figure that is compared with its peers."""

from __future__ import annotations

#: Distance below its peers at which a figure is an outlier, in standard deviations estimated by the
#: median absolute deviation (1.4826 x MAD): Iglewicz and Hoaglin, "How to Detect and Handle
#: Outliers", 1993, recommend 3.5.
OUTLIER = 3.5
MAD_TO_DEVIATION = 1.4826
#: Expected number of healthy nodes failed by the mesh in a run of a healthy fleet: one in a thousand
#: runs. Our own rule, for a node that costs as much as a house.
FALSE_DRAINS = 0.001
