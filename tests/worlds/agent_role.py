# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook of the role agent against a lab's API server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from controller import linked, with_kubernetes_core


def agent_playbook(lab, directory):
    """``run(*arguments, **variables)``: run the playbook; the finished process."""
    controller = with_kubernetes_core(linked(directory / "controller", Path(sys.executable).parent))

    def run(*arguments, **variables):
        given = {
            "agent_kubeconfig": str(lab.kubeconfig),
            "agent_runtime_class": "",
            "agent_rollout_timeout": 0,
            **variables,
        }
        # It keeps what APIs there are in a file of its temporary directory.
        return controller.run(
            "ansible-playbook",
            "-i",
            "localhost,",
            "-c",
            "local",
            "autopilot.gpu.agent",
            "-e",
            json.dumps(given),
            *arguments,
            cwd=directory,
            TMPDIR=str(directory),
            ANSIBLE_PYTHON_INTERPRETER=sys.executable,
        )

    return run
