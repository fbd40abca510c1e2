# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""etcd, API server, controller-manager and scheduler of a lab, in its network namespace, reached by
a port of the machine's loopback.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from pathlib import Path

from .pki import Authority, signing_key
from .world import LabError, World, kill, wait_until

#: The control plane's address between the nodes; of services, the first is the API server's.
ADDRESS, SERVICE_ADDRESS = "10.99.0.1", "10.96.0.1"
SERVICES, PODS = "10.96.0.0/16", "10.244.0.0/16"
BRIDGE = "lab0"
_PORT = 6443
_ETCD = "http://127.0.0.1:2379"


class ControlPlane:
    """Started at once; ends with the world."""

    def __init__(self, world: World, programs: Path, scheduler: bool, nodes: bool):
        self._world, self._programs = world, programs
        self.keys = world.directory / "pki"
        self.keys.mkdir(mode=0o700)
        self.authority = Authority(self.keys)
        self._issue_certificates()
        self._make_bridge()
        #: By name, while they are to run.
        self.processes = {"etcd": self._etcd()}
        self._listener = world.forward(programs / "forward", f"{ADDRESS}:{_PORT}")
        self.server = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        #: For what is in the lab's network, as nodes are.
        self.inner_server = f"https://{ADDRESS}:{_PORT}"
        inner = self.kubeconfig("admin-inside", self.keys / "admin", self.inner_server)
        self.processes["kube-apiserver"] = self._api()
        self.wait_for_api()
        self._start_controllers(inner, scheduler, nodes)

    def _issue_certificates(self) -> None:
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        self.authority.issue(
            self.keys / "apiserver",
            "kube-apiserver",
            addresses=["127.0.0.1", ADDRESS, SERVICE_ADDRESS],
            names=names,
        )
        self.authority.issue(self.keys / "admin", "admin", ["system:masters"])
        self.authority.issue(self.keys / "front-proxy", "front-proxy")
        signing_key(self.keys / "accounts")

    def _make_bridge(self) -> None:
        """The network that the nodes are in."""
        self._world.run(
            ["sh", "-e"],
            input=f"""
            ip -batch - <<'END'
            link set lo up
            link add {BRIDGE} type bridge forward_delay 0
            addr add {ADDRESS}/24 dev {BRIDGE}
            link set {BRIDGE} up
END
            echo 1 > /proc/sys/net/ipv4/ip_forward
        """,
        )

    def _start_controllers(self, inner: Path, scheduler: bool, nodes: bool) -> None:
        client = {
            "kubeconfig": inner,
            "authentication-kubeconfig": inner,
            "authorization-kubeconfig": inner,
            "bind-address": "127.0.0.1",
            "leader-elect": "false",
        }
        self._start(
            "kube-controller-manager",
            {
                **client,
                "service-account-private-key-file": self.keys / "accounts.key",
                "root-ca-file": self.authority.certificate,
                "cluster-signing-cert-file": self.authority.certificate,
                "cluster-signing-key-file": self.authority.key,
                # Nobody sends heartbeats for nodes that are nothing but an object.
                "controllers": "*" if nodes else "*,-node-lifecycle-controller",
                "node-monitor-grace-period": "24s",
                "node-monitor-period": "2s",
                # As it comes, a thousand nodes have it busy for minutes.
                "kube-api-qps": "300",
                "kube-api-burst": "500",
            },
        )
        if scheduler:
            self._start("kube-scheduler", client)

    def _start(self, name, options):
        options = {"cert-dir": self.keys / "own", **options}
        self.processes[name] = self._world.daemon(
            name,
            [self._programs / name, *(f"--{option}={value}" for option, value in options.items())],
        )
        return self.processes[name]

    def _etcd(self):
        options = {
            "name": "lab",
            "data-dir": self._world.directory / "etcd",
            "listen-client-urls": _ETCD,
            "advertise-client-urls": _ETCD,
            "listen-peer-urls": "http://127.0.0.1:2380",
            "initial-advertise-peer-urls": "http://127.0.0.1:2380",
            "initial-cluster": "lab=http://127.0.0.1:2380",
            "log-level": "warn",
            # What a machine that loses power would lose does not matter here.
            "unsafe-no-fsync": "true",
        }
        return self._world.daemon(
            "etcd",
            [
                self._programs / "etcd",
                *(f"--{option}={value}" for option, value in options.items()),
            ],
        )

    def _api(self):
        keys = self.keys
        return self._start(
            "kube-apiserver",
            {
                "etcd-servers": _ETCD,
                "bind-address": "0.0.0.0",
                "advertise-address": ADDRESS,
                "secure-port": _PORT,
                "tls-cert-file": keys / "apiserver.crt",
                "tls-private-key-file": keys / "apiserver.key",
                "client-ca-file": self.authority.certificate,
                "kubelet-client-certificate": keys / "admin.crt",
                "kubelet-client-key": keys / "admin.key",
                "kubelet-preferred-address-types": "InternalIP",
                "service-account-key-file": keys / "accounts.pub",
                "service-account-signing-key-file": keys / "accounts.key",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-cluster-ip-range": SERVICES,
                "allow-privileged": "true",
                "authorization-mode": "Node,RBAC",
                "enable-admission-plugins": "NodeRestriction",
                # It has no kube-proxy beside it: webhooks are reached by their pods' addresses.
                "enable-aggregator-routing": "true",
                # As whom it asks those that serve parts of the API, and which users it names.
                "proxy-client-cert-file": keys / "front-proxy.crt",
                "proxy-client-key-file": keys / "front-proxy.key",
                "requestheader-client-ca-file": self.authority.certificate,
                "requestheader-allowed-names": "front-proxy",
                "requestheader-username-headers": "X-Remote-User",
                "requestheader-group-headers": "X-Remote-Group",
                "requestheader-extra-headers-prefix": "X-Remote-Extra-",
                # Otherwise it stays up for a minute after it was asked to end, for the sake of
                # watches.
                "shutdown-delay-duration": "0s",
                "shutdown-send-retry-after": "false",
            },
        )

    def kubeconfig(self, name, pair: Path, server) -> Path:
        """A file for the user of the certificate ``pair``.crt, whose key is ``pair``.key."""
        path = self._world.directory / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(f"""apiVersion: v1
kind: Config
clusters: [{{name: lab, cluster: {{server: "{server}", certificate-authority: {self.authority.certificate}}}}}]
users: [{{name: lab, user: {{client-certificate: {pair}.crt, client-key: {pair}.key}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]
current-context: lab
""")
        return path

    def wait_for_api(self):
        try:
            wait_until(self._ready, "the API server is ready", processes=self.processes)
        except LabError as error:
            raise LabError(
                f"{error}\n{self._world.tail('kube-apiserver')}\n{self._world.tail('etcd')}"
            ) from None

    def _ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        host, port = self._listener.getsockname()
        connection = http.client.HTTPSConnection(host, port, timeout=10, context=context)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop_api(self):
        """End the API server: connections to it break, and new ones are refused."""
        self._listener.shutdown(socket.SHUT_RDWR)
        kill(self.processes.pop("kube-apiserver"))

    def start_api(self):
        """Start it again, at the same port and with the same data."""
        if "kube-apiserver" in self.processes:
            raise LabError("the API server is up already")
        self.processes["kube-apiserver"] = self._api()
        self._listener.listen(128)
        self.wait_for_api()
