# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kubectl for tests: of a lab, and of a cluster that a user names."""

from __future__ import annotations

import json
import subprocess

from .world import LabError, wait_until


class Kubectl:
    """Needs ``kubeconfig`` (Path), ``kubectl_program`` and ``directory`` (for what kubectl
    remembers).
    """

    def kubectl(
        self, *arguments, input=None, check=True, timeout=60, kubeconfig=None
    ) -> subprocess.CompletedProcess:
        """The finished program, with its output as text; raises LabError where it fails, unless
        ``check`` is false.
        """
        done = subprocess.run(
            self.kubectl_command(*arguments, kubeconfig=kubeconfig),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"kubectl {' '.join(map(str, arguments))[:200]}: {done.stderr.strip()}")
        return done

    def kubectl_command(self, *arguments, kubeconfig=None) -> list:
        """For a process of one's own, as for port-forward."""
        return [
            str(self.kubectl_program),
            f"--kubeconfig={kubeconfig or self.kubeconfig}",
            f"--cache-dir={self.directory}/kubectl-cache",
            *map(str, arguments),
        ]

    def get(self, *arguments):
        """What ``kubectl get ... -o json`` says."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)

    def apply(self, *objects):
        """Create or change objects, each a mapping."""
        self.kubectl(
            "apply",
            "-f",
            "-",
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
        )

    def make_namespace(self, name):
        """A namespace in which pods can be made: its account is there, which after an absence of
        the API server can take half a minute.
        """
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        wait_until(
            lambda: (
                not self.kubectl(
                    "get", "-n", name, "serviceaccount", "default", check=False
                ).returncode
            ),
            f"namespace {name} has its account",
        )

    def token(self, namespace, service_account, audience=None) -> str:
        """A token of an hour from the API server; without an audience for the API server."""
        extra = [f"--audience={audience}"] if audience else []
        return self.kubectl(
            "-n", namespace, "create", "token", service_account, "--duration=1h", *extra
        ).stdout.strip()

    def create(self, made) -> dict:
        """Create an object; what came of it, which for reviews is the answer."""
        return json.loads(
            self.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(made)).stdout
        )
