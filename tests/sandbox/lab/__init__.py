# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real Kubernetes on this machine: etcd, API server and controller-manager, and on demand nodes
with kubelet, containerd, runc and kube-proxy.

    with Lab() as lab:                          # the API only
        lab.kubectl("get", "namespaces")
        lab.make_node("gpu-a", gpus=8)          # an object without a kubelet
    with Lab(nodes=2) as lab:                   # node-a and node-b run pods
        lab.load_image("agent.tar")

All of it lives in namespaces of its own under one process (init.py), which ends when this program
does, however that dies; what is left then is nothing. Nothing touches the machine's interfaces,
sysctls and files outside the lab's directory. The programs come from build.py.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import subprocess
from pathlib import Path

from . import build, images, node, own
from . import world as places
from .control_plane import ControlPlane
from .kubectl import Kubectl
from .own import OwnCluster
from .world import LabError, wait_until

__all__ = ["Lab", "LabError", "OwnCluster", "images", "obstacle", "own", "wait_until"]


@functools.lru_cache(maxsize=None)
def obstacle(nodes=0) -> str | None:
    """Why there can be no lab with so many nodes on this machine, in one line; None when there can."""
    if not places.which("ip") or not places.which("unshare"):
        return "needs packages that are not installed (names as in Debian): iproute2 util-linux"
    return (node.obstacle() if nodes else None) or places.obstacle() or build.obstacle()


class Lab(Kubectl):
    """See the top of this file. ``scheduler``: also without nodes."""

    def __init__(self, nodes=0, scheduler=None):
        if not 0 <= nodes <= len(node.NAMES):
            raise ValueError(f"nodes={nodes}: give 0 to {len(node.NAMES)}")
        self.nodes = list(node.NAMES[:nodes])
        self._scheduler = bool(nodes) if scheduler is None else scheduler
        self._numbers = itertools.count()
        self._running = {}

    def __enter__(self):
        reason = obstacle(len(self.nodes))
        if reason:
            raise LabError(reason)
        self._programs = build.programs()
        self._world = places.World()
        self._world.__enter__()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception):
        self.close()

    def close(self):
        self._world.close()

    def _start(self):
        self.directory = self._world.directory
        self.kubectl_program = self._programs / "kubectl"
        self.control_plane = ControlPlane(
            self._world, self._programs, self._scheduler, bool(self.nodes)
        )
        self.server, self.ca = self.control_plane.server, self.control_plane.authority.certificate
        self.kubeconfig = self.control_plane.kubeconfig(
            "admin", self.control_plane.keys / "admin", self.server
        )
        wait_until(
            lambda: (
                self.kubectl(
                    "-n", "default", "get", "serviceaccount", "default", check=False
                ).returncode
                == 0
            ),
            "there is the default service account",
        )
        if self.nodes:
            self._running = {
                name: node.Node(self._world, self.control_plane, self._programs, name, number)
                for number, name in enumerate(self.nodes, 1)
            }
            for one in self._running.values():
                one.start()
            for one in self._running.values():
                self._wait_for_node(one)

    # ---- users ----

    def kubeconfig_for(self, user, groups=()) -> Path:
        """For a user whom the API server knows by a certificate, and who may do what the roles
        bound to the name and the groups say.
        """
        name = f"user-{next(self._numbers)}"
        self.control_plane.authority.issue(self.control_plane.keys / name, user, groups)
        return self.control_plane.kubeconfig(name, self.control_plane.keys / name, self.server)

    # ---- the control plane ----

    def stop_api(self):
        """End the API server: connections to it break, and new ones are refused."""
        self.control_plane.stop_api()

    def start_api(self):
        """Start it again, at the same port and with the same data."""
        self.control_plane.start_api()

    @property
    def supervisor(self) -> int:
        """The process whose end is the lab's."""
        return self._world.supervisor

    def run(self, *argv, node=None, input=None, timeout=60) -> subprocess.CompletedProcess:
        """A program in the lab's network, whence pods and nodes are reached by their addresses, or
        on a node; raises LabError where it fails.
        """
        return self._world.run(argv, input, timeout, self._node(node).popen if node else None)

    def log(self, name, node=None) -> str:
        """What `kube-apiserver`, `etcd`, ... or a node's `kubelet`, `containerd`, `kube-proxy` have
        said.
        """
        return self._world.log(f"{node}-{name}" if node else name).read_text(errors="replace")

    # ---- nodes ----

    def make_node(self, name, labels=None, gpus=8):
        """A Node that is an object only, Ready, with so many nvidia.com/gpu; without kubelets
        nothing changes it, beside real nodes it ages to NotReady.
        """
        self.make_nodes([name], labels, gpus)

    def make_nodes(self, names, labels=None, gpus=8):
        """Several such nodes."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "an object of the lab",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        self._create_nodes(names, labels, gpus, conditions=[ready])
        # It is born with a taint, which the nodes' life-cycle takes away where that runs.
        self.kubectl(
            "taint", "nodes", *names, "node.kubernetes.io/not-ready-", check=not self.nodes
        )

    def _create_nodes(self, names, labels, gpus, conditions=(), annotations=None, taints=()):
        resources = {
            "cpu": "64",
            "memory": "512Gi",
            "pods": "110",
            **({"nvidia.com/gpu": str(gpus)} if gpus else {}),
        }
        made = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {
                        "kubernetes.io/hostname": name,
                        **({"nvidia.com/gpu.present": "true"} if gpus else {}),
                        **(labels or {}),
                    },
                    "annotations": annotations or {},
                },
                "spec": {"taints": list(taints)},
                "status": {
                    "capacity": resources,
                    "allocatable": resources,
                    "conditions": list(conditions),
                },
            }
            for name in names
        ]
        self.kubectl(
            "create",
            "-f",
            "-",
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}),
            timeout=300,
        )

    def set_gpus(self, name, gpus):
        """Have a node say that it has so many nvidia.com/gpu, as a device plugin would; returns
        once they can be allocated.
        """
        self._patch_status(name, {"capacity": {"nvidia.com/gpu": str(gpus)}})
        if name in self._running:
            wait_until(
                lambda: (
                    self.get("node", name)["status"]["allocatable"].get("nvidia.com/gpu")
                    == str(gpus)
                ),
                f"{name} has {gpus} nvidia.com/gpu to allocate",
            )
        else:
            self._patch_status(name, {"allocatable": {"nvidia.com/gpu": str(gpus)}})

    def _patch_status(self, name, status):
        self.kubectl(
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "--patch",
            json.dumps({"status": status}),
        )

    def node_address(self, name) -> str:
        return self._node(name).address

    def node_directory(self, name) -> Path:
        """A directory of the node's own, under the same path on the machine and on the node: for
        stand-ins and scenarios that pods mount by hostPath.
        """
        return self._node(name).files

    def node_root(self, name) -> Path:
        """The node's root directory as seen from the machine: what is written to its etc, usr, var,
        ... is the node's alone, until it is started anew.
        """
        return self._node(name).root

    def load_image(self, archive, name=None):
        """Into all nodes: an archive as of ``docker save`` or OCI; ``name`` gives it a further
        name, which has to be a full one (`localhost/agent:1`).
        """
        for one in self._running.values():
            one.load_image(Path(archive), name)

    def kill_node(self, name):
        """Power the node off: all its processes are gone at once."""
        self._node(name).kill()

    def start_node(self, name):
        """Start a killed node; returns once it is Ready."""
        self._node(name).start()
        self._wait_for_node(self._node(name))

    def _wait_for_node(self, one):
        try:
            wait_until(
                lambda: self._is_ready(one),
                f"{one.name} is Ready",
                patience=300,
                processes={one.name: one.process},
            )
        except LabError as error:
            raise LabError(
                "\n".join(
                    [
                        str(error),
                        *(
                            self._world.tail(f"{one.name}-{program}")
                            for program in ("init", "containerd", "kubelet")
                        ),
                    ]
                )
            ) from None
        self.set_gpus(one.name, 8)

    def _is_ready(self, one) -> bool:
        done = self.kubectl("get", "node", one.name, "-o", "json", check=False)
        if done.returncode:
            return False
        found = json.loads(done.stdout)
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in found["status"].get("conditions", [])
        )
        # After a restart what the node said before its end still stands.
        return ready and one.boot == found["status"]["nodeInfo"]["machineID"]

    def _node(self, name):
        if name not in self._running:
            raise ValueError(
                f"{name!r} is no running node of this lab; there are "
                f"{', '.join(self._running) or 'none'}"
            )
        return self._running[name]
