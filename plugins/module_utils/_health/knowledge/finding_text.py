# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of finding codes, and what each action asks for."""

from __future__ import annotations

from typing import Dict, NamedTuple


class FindingText(NamedTuple):
    """Text of a finding's code: its meaning, and what to do about the cause. Whether the node stays
    in use is not part of the text: the finding's action says that (see `node_step`).
    """

    meaning: str
    next: str


#: The step of an action, which precedes the code's own text. ``watch`` and ``fix_configuration``
#: leave the node in use, so only the code's text applies.
_NODE_STEPS: Dict[str, str] = {
    "reset_gpu": "Reset the GPU when its jobs have ended (`nvidia-smi --gpu-reset -i <gpu>`). If the "
    "reset is refused, end all work on the node and reset all its GPUs, or reboot the node.",
    "reboot_node": "Drain the node and reboot it when its jobs have ended.",
    "drain_node": "Drain the node.",
    "replace_part": "Drain the node and replace the part.",
}
#: The same for a warning or an unknown result, which drain no node.
_WARNING_STEPS: Dict[str, str] = {
    **_NODE_STEPS,
    "drain_node": "Keep further jobs off the node until the cause is clear.",
    "reboot_node": "Reboot the node when its jobs have ended.",
    "replace_part": "Plan the replacement of the part.",
}


def node_step(action: str, status: str) -> str:
    """The step of a finding's action as sentences; "" if the node stays in use."""
    return (_NODE_STEPS if status == "fail" else _WARNING_STEPS).get(action, "")
