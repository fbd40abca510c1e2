# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of a lab: containerd, kubelet and kube-proxy in network, mount, PID, UTS, IPC and control
group namespaces of its own (see node_init.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

from . import images
from .control_plane import ADDRESS, BRIDGE, PODS, SERVICES, ControlPlane
from .init import remove_group
from .world import LabError, World, environment, kill, wait_until, which

NAMES = tuple(f"node-{letter}" for letter in "abcde")
PAUSE = "localhost/pause:1"
#: Programs by the Debian package that brings them.
_PROGRAMS = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "iptables": ("iptables",),
    "util-linux": ("mount", "nsenter"),
}
#: Where Debian and others put the plugins.
_PLUGINS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
_GROUPS = Path("/sys/fs/cgroup")


def obstacle() -> str | None:
    """Why there can be no node on this machine; None when there can."""
    if os.geteuid() != 0:
        return "needs root, for containers"
    missing = [package for package, programs in _PROGRAMS.items() if not all(map(which, programs))]
    if not plugins():
        missing.append("containernetworking-plugins")
    return (
        f"needs packages that are not installed (names as in Debian): {' '.join(missing)}"
        if missing
        else None
    )


def plugins() -> str | None:
    """The directory of the network plugins."""
    return next((path for path in _PLUGINS if os.access(f"{path}/bridge", os.X_OK)), None)


class Node:
    """One of a lab's; ``number`` from 1 makes its addresses."""

    def __init__(
        self, world: World, control_plane: ControlPlane, programs: Path, name: str, number: int
    ):
        self._world, self._control_plane, self._programs = world, control_plane, programs
        self.name, self._number = name, number
        self.address, self.pods = f"10.99.0.{10 + number}", f"10.244.{number}.0/24"
        self.process = None
        self._directory = world.directory / "nodes" / name
        #: The node's own, and seen by it under the same path.
        self.files = self._directory / "files"
        self.files.mkdir(parents=True)
        for user, groups in ((f"system:node:{name}", ["system:nodes"]), ("system:kube-proxy", ())):
            control_plane.authority.issue(
                control_plane.keys / f"{name}-{user.rpartition(':')[2]}", user, groups
            )
        self._images = {
            PAUSE: images.make(
                self._directory / "pause.tar", PAUSE, {"/pod": programs / "pod"}, ["/pod", "pause"]
            )
        }

    def start(self):
        if self.process:
            raise LabError(f"{self.name} is running already")
        #: Tells this life of the node from an earlier one.
        self.boot = uuid.uuid4().hex
        (self._directory / "machine-id").write_text(f"{self.boot}\n")
        self._groups = _make_groups(self._world.directory, self.name)
        self._connect()
        settings = {
            "name": self.name,
            "address": self.address,
            "directory": str(self._directory),
            "logs": str(self._world.log(self.name).with_suffix("")),
            "programs": str(self._programs),
            "plugins": plugins(),
            "pods": self.pods,
            "all_pods": PODS,
            "pause": PAUSE,
            "images": [[str(archive), name] for name, archive in self._images.items()],
            "authority": str(self._control_plane.authority.certificate),
            "kubelet": self._kubeconfig(self.name),
            "proxy": self._kubeconfig("kube-proxy"),
        }
        join = "".join(f"echo 0 > {group}/cgroup.procs; " for group in self._groups)
        namespaces = "unshare --mount --uts --ipc --pid --cgroup --fork --kill-child --mount-proc"
        self.process = self._world.daemon(
            f"{self.name}-init",
            [
                "sh",
                "-ec",
                f'{join}exec nsenter --net=/run/netns/{self.name} {namespaces} "$@"',
                "node",
                sys.executable,
                "-I",
                "-S",
                Path(__file__).with_name("node_init.py"),
                json.dumps(settings),
            ],
        )

    def _kubeconfig(self, user) -> str:
        pair = self._control_plane.keys / f"{self.name}-{user}"
        return str(
            self._control_plane.kubeconfig(pair.name, pair, self._control_plane.inner_server)
        )

    def _connect(self):
        """A network namespace with a link to the control plane's bridge and a route to every node's
        pods, and none to anywhere else.
        """
        others = [number for number in range(1, len(NAMES) + 1) if number != self._number]
        routes = [f"route add 10.244.{number}.0/24 via 10.99.0.{10 + number}" for number in others]
        port = f"port{self._number}"
        self._world.run(
            ["sh", "-e"],
            input=f"""
            ip netns add {self.name}
            ip -batch - <<'END'
            link add {port} type veth peer name eth0 netns {self.name}
            link set {port} master {BRIDGE} up
            route replace {self.pods} via {self.address}
END
            ip -n {self.name} -batch - <<'END'
            link set lo up
            addr add {self.address}/24 dev eth0
            link set eth0 up
            route add {SERVICES} via {ADDRESS}
            route add prohibit 169.254.0.0/16
            {chr(10).join(routes)}
END
            ip netns exec {self.name} sh -c '
                echo 1 > /proc/sys/net/ipv4/ip_forward
                [ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] ||
                    echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables'
        """,
        )

    def kill(self):
        """All its processes are gone at once, and its network with them; its files stay."""
        if not self.process:
            raise LabError(f"{self.name} is not running")
        kill(self.process)
        self.process = None
        # Groups that outlive their pods have the next kubelet look for these for ten seconds.
        for group in self._groups:
            remove_group(group)
        self._world.run(["ip", "netns", "delete", self.name])
        with contextlib.suppress(LabError):
            # It goes with the namespace, but when the kernel comes to it.
            self._world.run(["ip", "link", "delete", f"port{self._number}"])

    # ---- inside ----

    @property
    def init(self) -> int:
        """The number, as this process sees it, of the first process on the node."""
        number = self.process.pid
        for _generation in range(2):
            number = int(
                wait_until(
                    Path(f"/proc/{number}/task/{number}/children").read_text,
                    f"{self.name} has a first process",
                ).split()[0]
            )
        return number

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.init}/root")

    def popen(self, argv, **settings) -> subprocess.Popen:
        """Start a program on the node."""
        if not self.process or self.process.poll() is not None:
            raise LabError(f"{self.name} is not running")
        command = [
            "nsenter",
            f"--target={self.init}",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--cgroup",
            "--",
            *map(str, argv),
        ]
        return self._world.track(
            subprocess.Popen(command, env=environment(), start_new_session=True, **settings)
        )

    def load_image(self, archive: Path, name=None):
        """An archive as of ``docker save``, or OCI; ``name`` is one more that the image gets."""
        ctr = ["ctr", "--namespace=k8s.io", "images"]
        said = self._world.run([*ctr, "import", archive], timeout=300, popen=self.popen).stdout
        found = re.findall(r"^unpacking (\S+) ", said, re.MULTILINE)
        if not found:
            raise LabError(
                f"{archive}: there is no image with a name in it; containerd says: {said.strip()}"
            )
        if name and name not in found:
            self._world.run([*ctr, "tag", "--force", found[0], name], popen=self.popen)


def _make_groups(directory, name) -> list:
    """The node's control group in every hierarchy, below this process's own, or below the root
    where only the root may have processes beside groups.
    """
    made = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        mounted = _GROUPS / (controllers.removeprefix("name=") or "unified")
        if not controllers and not mounted.is_dir():
            mounted, path = _GROUPS, "/"
        if not mounted.is_dir():
            continue
        above = mounted / path.lstrip("/")
        group = (above if above.is_dir() else mounted) / directory.name / name
        _remember(directory / "cgroups", group.parent)
        for one in (group.parent, group):
            one.mkdir(exist_ok=True)
            if controllers == "cpuset":
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (one / setting).write_text((one.parent / setting).read_text())
            elif mounted == _GROUPS:
                # Version 2: what a group may share out, the group above it says.
                (one.parent / "cgroup.subtree_control").write_text(
                    " ".join(
                        f"+{word}" for word in (_GROUPS / "cgroup.controllers").read_text().split()
                    )
                )
        made.append(group)
    return made


def _remember(path, group):
    """Before it is made, so that it is removed whatever happens."""
    known = path.read_text().splitlines() if path.exists() else []
    if str(group) not in known:
        with open(path, "a") as listed:
            listed.write(f"{group}\n")
