# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What stands beside a code, and phrases that several entries share."""

from __future__ import annotations

from typing import NamedTuple


class FindingText(NamedTuple):
    """A sentence on what it means, and one or two on what to do."""

    meaning: str
    next: str


AGAIN = "Run the check again"
DIAGNOSTIC = "drain the node, run NVIDIA's field diagnostic and replace the GPU if it agrees"
RESET = (
    "Once its jobs are gone, reset it with `nvidia-smi --gpu-reset -i <gpu>` and check again. "
    "If that is refused, end all work on the node and "
    "reset all its GPUs (without `-i`), or reboot it."
)
#: Before what is to be done about a finding that may also be a warning or undecided: then the node
#: stays in use.
IF_FAIL = "If it is a fail, drain the node"
BECOME = (
    "Run the checks as root (`-e preflight_become=true`), or give this user access to /dev/nvidia*."
)
DRIVER = (
    "Install the driver and its kernel module for the running kernel, then look at `dmesg "
    "| grep -i nvidia`."
)
BINDING = (
    "Install it for the interpreter that the finding names, or let the role do it (`-e "
    "checks_install_nvml=true`)."
)
FREE = "Nothing is wrong. Drain the node to measure it, or force the check."
CABLE = "Look at the cable, the transceiver, the switch's port and the network card, in this order"
