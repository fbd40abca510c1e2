# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first process of a lab's node, in the namespaces that node.py makes: mounts what the node has
of its own, and starts its programs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_SOCKET = "/run/containerd/containerd.sock"
#: What the kubelet would write into the whole machine; it leaves alone what is as it wants it.
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


def main(node: dict) -> None:
    directory, logs = Path(node["directory"]), Path(node["logs"])
    mount("--make-rprivate", "/")
    socket.sethostname(node["name"])
    mount_groups()
    mount_own(directory)
    for name, value in _SYSCTLS.items():
        path = directory / "sysctl" / name.replace("/", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{value}\n")
        if os.path.exists(f"/proc/sys/{name}"):
            mount("--bind", path, f"/proc/sys/{name}")
    mount("--make-rshared", "/")
    configure(node, directory)
    start(f"{logs}-containerd", "containerd", "--config", directory / "containerd.toml")
    wait_for_containerd()
    for archive, name in node["images"]:
        subprocess.run(
            ["ctr", "--namespace=k8s.io", "images", "import", archive],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        print("image", name, flush=True)
    programs = Path(node["programs"])
    start(
        f"{logs}-kubelet",
        programs / "kubelet",
        f"--config={directory}/kubelet.json",
        f"--kubeconfig={node['kubelet']}",
        f"--hostname-override={node['name']}",
        f"--node-ip={node['address']}",
        "--node-labels=nvidia.com/gpu.present=true",
        "--root-dir=/var/lib/kubelet",
        "--cert-dir=/var/lib/kubelet/pki",
    )
    start(
        f"{logs}-kube-proxy",
        programs / "kube-proxy",
        f"--config={directory}/kube-proxy.json",
        f"--hostname-override={node['name']}",
    )
    # The kernel then reaps what is orphaned to this process.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


def mount(*arguments) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def mount_groups() -> None:
    """A sysfs of the node's network, and control groups whose root is the node's."""
    groups = Path("/sys/fs/cgroup")
    first = groups / "cgroup.controllers"
    old = {} if first.exists() else {one.name: one.is_symlink() for one in groups.iterdir()}
    subprocess.run(["umount", "--recursive", str(groups)], check=True)
    mount("-t", "sysfs", "sysfs", "/sys")
    if not old:
        mount("-t", "cgroup2", "cgroup2", groups)
        # A group below the root has processes or groups with controllers, not both.
        (groups / "init").mkdir(exist_ok=True)
        (groups / "init/cgroup.procs").write_text("0")
        (groups / "cgroup.subtree_control").write_text(
            " ".join(f"+{word}" for word in first.read_text().split())
        )
        return
    mount("-t", "tmpfs", "cgroup", groups)
    for name in sorted(name for name, is_link in old.items() if not is_link):
        target = groups / name
        target.mkdir()
        kind = {
            "unified": ["-t", "cgroup2"],
            "systemd": ["-t", "cgroup", "-o", "none,name=systemd"],
        }.get(name, ["-t", "cgroup", "-o", name])
        if subprocess.run(
            ["mount", *kind, name, str(target)], check=False, stderr=subprocess.DEVNULL
        ).returncode:
            target.rmdir()
        else:
            for part in name.split(","):
                if part != name:
                    (groups / part).symlink_to(name)


def mount_own(directory: Path) -> None:
    """What the node writes, pods by hostPath included, goes to its own directory: the machine's
    files shine through and stay as they are.
    """
    for name in ("etc", "home", "mnt", "opt", "root", "srv", "usr", "var"):
        place = Path("/", name)
        if not place.is_dir() or place.is_symlink() or place in directory.parents:
            continue
        upper, work = directory / "own" / name, directory / "own" / f".{name}"
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        mount(
            "-t",
            "overlay",
            "-o",
            f"lowerdir={place},upperdir={upper},workdir={work}",
            "overlay",
            place,
        )
    mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    for name in ("lock", "netns"):
        Path("/run", name).mkdir()
    for name in ("kubelet", "containerd"):
        (directory / name).mkdir(exist_ok=True)
        Path("/var/lib", name).mkdir(exist_ok=True)
        mount("--bind", directory / name, f"/var/lib/{name}")
    Path("/etc/machine-id").write_text((directory / "machine-id").read_text())


def configure(node: dict, directory: Path) -> None:
    network = directory / "cni"
    network.mkdir(exist_ok=True)
    (directory / "containerd.toml").write_text(_containerd_settings(node, network))
    (network / "10-pods.conflist").write_text(json.dumps(_pod_network(node)))
    (directory / "kubelet.json").write_text(json.dumps(_kubelet_settings(node)))
    (directory / "kube-proxy.json").write_text(json.dumps(_proxy_settings(node)))


def _containerd_settings(node: dict, network: Path) -> str:
    return f"""version = 2
[grpc]
  address = "{_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{node["pause"]}"
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE runc cannot lower the score, and dies.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{node["plugins"]}"
    conf_dir = "{network}"
"""


def _pod_network(node: dict) -> dict:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": node["pods"]}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def _kubelet_settings(node: dict) -> dict:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": node["authority"]},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "resolvConf": "",
        "address": "0.0.0.0",
        "healthzBindAddress": "127.0.0.1",
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "2s",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
    }


def _proxy_settings(node: dict) -> dict:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": node["proxy"]},
        "mode": "iptables",
        "clusterCIDR": node["all_pods"],
        "bindAddress": node["address"],
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # What is counted there is the machine's.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def start(log, *argv) -> None:
    with open(f"{log}.log", "ab") as output:
        subprocess.Popen(
            list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def wait_for_containerd() -> None:
    until = time.monotonic() + 120
    while subprocess.run(
        ["ctr", "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode:
        if time.monotonic() > until:
            sys.exit("containerd does not answer")
        time.sleep(0.1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
