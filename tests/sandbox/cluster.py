# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster of stand-in GPU nodes on this machine: a network namespace and an sshd for each host,
two data planes, racks, and faults.

    with Cluster(hosts=8) as cluster:
        cluster.slow_sender("gpu07", "eth2", 31)
        cluster.ansible_playbook("playbooks/preflight.yml")

    eth0         management: one bridge, not shaped; sshd and the namespace `controller` are there
                 10.78.0.0/24
    eth1, eth2   data planes: a bridge for each rack, a trunk between each two; every host's link is shaped
                 by tbf at both ends
                 10.78.1.0/24, fd00:78:1::/64, and so on

All of it lives in mount, network and PID namespaces of its own under one process (init.py), which
ends when this program does, however that dies. Nothing touches the machine's own interfaces. Root
is needed. Faults are on the way, not on the hosts: these believe what their root/sys/class/net
says. Address resolution passes every fault but `dead`, so that what is lost in one direction is
lost in that one only.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import node as sandbox

ROOT = sandbox.SANDBOX.parent.parent
MANAGEMENT = "eth0"
PLANES = ("eth1", "eth2")
CONTROLLER = "controller"
_PREFIX = "autopilot-cluster-"
_SYSTEM_PATH = ":/usr/local/sbin:/usr/sbin:/sbin"
#: Programs by the Debian package that brings them.
_PROGRAMS = {
    "util-linux": ("unshare", "nsenter"),
    "iproute2": ("ip", "tc"),
    "nftables": ("nft",),
    "openssh-server": ("sshd",),
    "openssh-client": ("ssh", "ssh-keygen"),
    "iperf3": ("iperf3",),
    "fping": ("fping",),
    "gcc": ("cc",),
}
#: Milliseconds of traffic that a shaper lets through at once: what a busy machine is late by, and
#: little against seconds. Seen at 100 Mbit/s on two processors beside other work: 95 to 96 Mbit/s
#: of TCP with 20, 71 to 96 with 5.
_BURST_MS = 20
#: The least, in bytes: a shaper takes larger segments of a host's TCP apart, which then no longer
#: waits for its own link but overruns it.
_BURST = 66000
#: Milliseconds that a frame may wait in a shaper's queue, at the fabric's end of a link, and at a
#: host's, which hardly ever loses what it sends itself.
_QUEUE_MS = {"fabric": 20, "host": 200}

# Runs in the controller's namespace: ends once every address given answers as SSH does.
_WAIT_FOR_SSH = """
import socket, sys, time
until = time.monotonic() + 20
for address in sys.argv[1:]:
    while True:
        try:
            with socket.create_connection((address, 22), timeout=1) as there:
                if there.recv(4) == b"SSH-":
                    break
        except OSError:
            pass
        if time.monotonic() > until:
            sys.exit(f"no sshd answers at {address}")
        time.sleep(0.02)
"""


class ClusterError(RuntimeError):
    """The cluster cannot be made, or does not do what it was told; says why."""


def obstacle() -> str | None:
    """Why no cluster can be made on this machine; None when one can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    path = os.environ.get("PATH", "") + _SYSTEM_PATH
    missing = [
        package
        for package, programs in _PROGRAMS.items()
        if not all(shutil.which(program, path=path) for program in programs)
    ]
    if missing:
        return f"needs packages that are not installed (names as in Debian): {' '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return f"needs to make namespaces: {tried.stderr.strip()}" if tried.returncode else None


class Cluster:
    """See the top of this file. Rates are in Mbit/s, ``scenarios`` (see node.py) and
    ``clock_offsets`` (seconds) are by host name.
    """

    #: The data planes, and the MTU of all their links.
    planes = PLANES
    link_mtu = 1500

    def __init__(
        self, hosts=8, racks=2, rate_mbit=100, scenarios=None, clock_offsets=None, directory=None
    ):
        if not 1 <= racks <= hosts <= 99:
            raise ValueError(
                f"hosts={hosts}, racks={racks}: give 1 to 99 hosts, and no more racks than hosts"
            )
        self.hosts = [f"gpu{number:02}" for number in range(1, hosts + 1)]
        self.racks = {
            host: f"r{index * racks // hosts + 1}" for index, host in enumerate(self.hosts)
        }
        self.rate_mbit = rate_mbit
        self.scenarios = scenarios or {}
        self.clock_offsets = clock_offsets or {}
        for host in (*self.scenarios, *self.clock_offsets):
            self._number(host)
        self.nodes = {}
        self._ours = directory is None
        self._given = directory
        self._supervisor = None
        self._rules = []
        self._shaped = set()
        self._dead = set()

    # ---- what is where ----

    @property
    def inventory(self) -> Path:
        return self.directory / "hosts.json"

    def address(self, host, plane=MANAGEMENT, family=4) -> str:
        """Of a host or the controller; the controller is on the management network only."""
        network = (MANAGEMENT, *self.planes).index(plane)
        number = 254 if host == CONTROLLER else self._number(host)
        return (
            str(ipaddress.IPv6Address(f"fd00:78:{network}::{number:x}"))
            if family == 6
            else f"10.78.{network}.{number}"
        )

    def python(self, host) -> str:
        """The interpreter that makes a process see the host's GPUs and clock."""
        return self.nodes[host].python

    def temporary(self, host) -> Path:
        """Where Ansible and the host's Python put temporary files."""
        return self.directory / host / "tmp"

    def _number(self, host) -> int:
        if host not in self.racks:
            raise ValueError(
                f"{host!r} is no host of this cluster; there are {', '.join(self.hosts)}"
            )
        return self.hosts.index(host) + 1

    def _port(self, host, plane) -> str:
        """The fabric's end of a host's link."""
        self._number(host)
        if plane not in (MANAGEMENT, *self.planes):
            raise ValueError(
                f"{plane!r} is no plane of this cluster; there are {', '.join(self.planes)}"
            )
        return f"{plane}-{host}"

    def _mac(self, host, plane) -> str:
        number = 254 if host == CONTROLLER else self._number(host)
        return f"02:78:00:00:{(MANAGEMENT, *self.planes).index(plane):02x}:{number:02x}"

    # ---- life ----

    def __enter__(self):
        reason = obstacle()
        if reason:
            raise ClusterError(reason)
        remove_stale()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception):
        self.close()

    def _start(self):
        self.directory = Path(
            self._given or tempfile.mkdtemp(prefix=_PREFIX, dir=_base())
        ).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        # Held by this process and the supervisor: while it is, the directory is in use. Nobody sees
        # it before it is held.
        self._lock = open(self.directory / "lock.new", "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(self.directory / "lock.new", self.directory / "lock")
        supervisor = [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            sys.executable,
            "-I",
            "-S",
        ]
        supervisor += [
            str(sandbox.SANDBOX / "init.py"),
            *([str(self.directory)] if self._ours else []),
        ]
        self._supervisor = subprocess.Popen(
            supervisor,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._lock.fileno()],
            start_new_session=True,
        )
        if self._supervisor.stdout.readline() != b"ready\n":
            raise ClusterError("the supervisor did not start")
        self._make_keys()
        for host in self.hosts:
            self._make_node(host)
        self._make_network()
        self._write_inventory()
        self._wait_for_ssh(self.hosts)

    def close(self):
        """End everything, and remove what was made; the directory only where it was not given."""
        if self._supervisor:
            self._supervisor.stdin.close()
            try:
                self._supervisor.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()
            self._supervisor.stdout.close()
            self._supervisor = None
            self._lock.close()
            if self._ours:
                shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def supervisor(self) -> int:
        """The process whose end is the cluster's."""
        return self._supervisor.pid

    # ---- making ----

    def _make_keys(self):
        for name in ("host_key", "user_key"):
            subprocess.run(
                [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    "sandbox",
                    "-f",
                    self.directory / name,
                ],
                check=True,
            )

    def _make_node(self, host):
        home = self.directory / host
        self.temporary(host).mkdir(parents=True)
        settings = {"TMPDIR": str(self.temporary(host))}
        if self.clock_offsets.get(host):
            settings.update(
                LD_PRELOAD=str(sandbox.library("clock.c")),
                SANDBOX_CLOCK_OFFSET=repr(float(self.clock_offsets[host])),
            )
        self.nodes[host] = sandbox.build(
            self.scenarios.get(host, "healthy_8xh100"), home / "node", settings=settings
        )
        network = Path(self.nodes[host].root) / "sys/class/net"
        # The interfaces are those of the namespace, not a healthy host's.
        shutil.rmtree(network)
        for name in (MANAGEMENT, *self.planes):
            interface = network / name
            interface.mkdir(parents=True)
            # The management network is as fast as the kernel says of veth.
            speed = 10000 if name == MANAGEMENT else self.rate_mbit
            attributes = {
                "address": self._mac(host, name),
                "speed": speed,
                "carrier": 1,
                "mtu": self.link_mtu if name in self.planes else 1500,
                "operstate": "up",
            }
            if name in self.planes:
                attributes["address"] = self._mac(host, name)
            for attribute, value in attributes.items():
                (interface / attribute).write_text(f"{value}\n")
        settings = {
            "ListenAddress": self.address(host),
            "HostKey": self.directory / "host_key",
            "AuthorizedKeysFile": self.directory / "user_key.pub",
            "PidFile": home / "sshd.pid",
            "UsePAM": "no",
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "MaxStartups": "100",
            "Subsystem": "sftp internal-sftp",
            "PermitUserRC": "no",
            # The machine's root has startup files, which write who knows where and are killed with
            # a host.
            "SetEnv": f"HOME={home}",
        }
        (home / "sshd_config").write_text(
            "".join(f"{key} {value}\n" for key, value in settings.items())
        )

    def _make_network(self):
        """One batch for the fabric, and one script for each namespace."""
        racks = sorted(set(self.racks.values()))
        quiet = "mcast_snooping 0 forward_delay 0"
        batch = [f"netns add {name}" for name in (CONTROLLER, *self.hosts)]
        batch += [
            f"link add {MANAGEMENT} type bridge {quiet}",
            *(
                f"link add {plane}-{rack} type bridge {quiet}"
                for plane in self.planes
                for rack in racks
            ),
        ]
        bridges = [MANAGEMENT, *(f"{plane}-{rack}" for plane in self.planes for rack in racks)]
        batch += self._trunks()
        ports = []
        for host, plane in [
            (CONTROLLER, MANAGEMENT),
            *itertools.product(self.hosts, (MANAGEMENT, *self.planes)),
        ]:
            port = f"{plane}-{host}"
            bridge = MANAGEMENT if plane == MANAGEMENT else f"{plane}-{self.racks[host]}"
            batch += [
                f"link add {port} type veth peer name {plane} netns {host} address "
                f"{self._mac(host, plane)}",
                f"link set {port} master {bridge}",
            ]
            if plane in self.planes:
                batch.append(f"link set {port} mtu {self.link_mtu}")
            ports.append(port)
        batch += [f"link set {name} up" for name in ("lo", *bridges, *ports)]
        shapers = [
            f"qdisc add dev {self._port(host, plane)} root {_shaper(self.rate_mbit, None)}"
            for host in self.hosts
            for plane in self.planes
        ]
        script = [
            # The fabric's own ends speak no IPv6.
            "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6",
            _batch("ip", batch),
            _batch("tc", shapers),
        ]
        script += [
            f"ip netns exec {name} sh -e {self._script(name)}" for name in (CONTROLLER, *self.hosts)
        ]
        script += self._routers()
        self._inside("sh", "-e", input="\n".join(script))

    def _trunks(self) -> list:
        """Lines for `ip` that join the racks' bridges: a trunk between each two. Trunks do not pass
        on to trunks, so that three racks and more make no loop.
        """
        racks = sorted(set(self.racks.values()))
        batch = []
        for plane, (one, other) in itertools.product(self.planes, itertools.combinations(racks, 2)):
            batch.append(
                f"link add {plane}-{one}-{other} type veth peer name {plane}-{other}-{one}"
            )
            for port, rack in ((f"{plane}-{one}-{other}", one), (f"{plane}-{other}-{one}", other)):
                batch += [
                    f"link set {port} master {plane}-{rack}",
                    f"link set dev {port} type bridge_slave isolated on",
                    f"link set {port} up",
                ]
        return batch

    def _routers(self) -> list:
        """Shell lines that set up routers between the racks; here there are none."""
        return []

    def _addressing(self, name, link) -> list:
        """Lines for `ip` that give an interface of a host, or of the controller, its addresses."""
        return [
            f"addr add {self.address(name, link)}/24 dev {link}",
            f"addr add {self.address(name, link, 6)}/64 dev {link} nodad",
        ]

    def _script(self, name) -> Path:
        """What sets up the inside of a namespace."""
        links = [MANAGEMENT] if name == CONTROLLER else [MANAGEMENT, *self.planes]
        ip = [f"link set {link} up" for link in ("lo", *links)]
        for link in links:
            ip += self._addressing(name, link)
        script = [
            "for name in all default; do echo 0 > /proc/sys/net/ipv6/conf/$name/accept_dad; "
            "echo 0 > /proc/sys/net/ipv6/conf/$name/accept_ra; done",
            # What a connection learned while there was a fault must not slow the next one down.
            "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save",
            _batch("ip", ip),
        ]
        if name != CONTROLLER:
            script += [
                _batch(
                    "tc",
                    [
                        f"qdisc add dev {plane} root {_shaper(self.rate_mbit, name)}"
                        for plane in self.planes
                    ],
                ),
                self._sshd(name),
            ]
        path = self.directory / f"{name}.sh"
        path.write_text("\n".join(script))
        return path

    def _sshd(self, host) -> str:
        return (
            f"exec {shutil.which('sshd', path=os.environ['PATH'] + _SYSTEM_PATH)} -f "
            f"{self.directory / host / 'sshd_config'}"
        )

    def _write_inventory(self):
        variables = {
            "ansible_connection": "ssh",
            "ansible_user": "root",
            "ansible_port": 22,
            "ansible_ssh_private_key_file": str(self.directory / "user_key"),
            "ansible_ssh_args": "-F /dev/null -o ControlMaster=auto -o ControlPersist=60s -o "
            "ServerAliveInterval=5 -o ServerAliveCountMax=3 "
            "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            # Private to the cluster, and short: the name of a socket has at most 107 characters.
            "ansible_control_path_dir": "/run/control",
            "mesh_interfaces": list(self.planes),
        }
        hosts = {
            host: {
                "ansible_host": self.address(host),
                "ansible_python_interpreter": node.python,
                "ansible_remote_tmp": str(self.temporary(host)),
                "checks_host_root": node.root,
                "mesh_host_root": node.root,
                "expected_gpus": node.scenario["gpus"],
                "rack": self.racks[host],
            }
            for host, node in self.nodes.items()
        }
        self.inventory.write_text(
            json.dumps({"all": {"hosts": hosts, "vars": variables}}, indent=1)
        )

    def _wait_for_ssh(self, hosts):
        self._inside(
            "ip",
            "netns",
            "exec",
            CONTROLLER,
            sys.executable,
            "-I",
            "-S",
            "-c",
            _WAIT_FOR_SSH,
            *(self.address(host) for host in hosts),
        )

    # ---- programs in it ----

    def popen(self, argv, host=None, cwd=None, environment=None, **settings) -> subprocess.Popen:
        """Start a program in the namespace of a host, of `CONTROLLER`, or of the fabric. What it
        starts ends with the cluster at the latest.

        The process is nsenter's, which waits for the program: a signal for the program goes to the
        process group, as by `kill`.
        """
        if not self._supervisor or self._supervisor.poll() is not None:
            raise ClusterError("the cluster has ended")
        if host not in (None, CONTROLLER):
            self._number(host)
        namespaces = f"/proc/{self.supervisor}/ns"
        command = [
            "nsenter",
            f"--mount={namespaces}/mnt",
            f"--net={namespaces}/net",
            f"--pid={namespaces}/pid_for_children",
            "--",
        ]
        # To enter a mount namespace changes the working directory.
        command += [
            "env",
            "-C",
            str(cwd or os.getcwd()),
            *(["ip", "netns", "exec", host] if host else []),
            *map(str, argv),
        ]
        path = os.environ["PATH"] + _SYSTEM_PATH
        environment = {
            **os.environ,
            "PATH": path,
            "HOME": str(self.directory / "home"),
            "LC_ALL": "C.UTF-8",
            **(environment or {}),
        }
        return subprocess.Popen(command, env=environment, start_new_session=True, **settings)

    @staticmethod
    def kill(process: subprocess.Popen) -> None:
        """Kill -9 what `popen` started, if it has not ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def run(
        self,
        argv,
        host=None,
        timeout=60,
        input=None,
        cwd=None,
        output=subprocess.PIPE,
        **environment,
    ) -> subprocess.CompletedProcess:
        """The finished program, with its output as text; raises TimeoutExpired when it was killed
        for lasting too long.
        """
        process = self.popen(
            argv,
            host,
            cwd,
            environment,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=output,
            stderr=None if output is None else subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            self.kill(process)
            raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def ansible(
        self, program, *arguments, timeout=300, output=subprocess.PIPE, **environment
    ) -> subprocess.CompletedProcess:
        """A program of the ansible-core that runs this, on the controller, with the inventory and
        the configuration of this checkout.
        """
        (self.directory / "home").mkdir(exist_ok=True)
        settings = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **environment}
        argv = [Path(sys.executable).parent / program, "-i", self.inventory, *arguments]
        return self.run(argv, CONTROLLER, timeout, cwd=ROOT, output=output, **settings)

    def ansible_playbook(self, *arguments, **how) -> subprocess.CompletedProcess:
        return self.ansible("ansible-playbook", *arguments, **how)

    def processes(self, host) -> list:
        """(number, name) of what runs in the namespace of a host, its listening sshd left out;
        numbers as this process sees them.
        """
        namespace = self._inside("stat", "-Lc", "net:[%i]", f"/run/netns/{host}").stdout.strip()
        pid_file = self.directory / host / "sshd.pid"
        listener = pid_file.read_text().strip() if pid_file.exists() else None
        found = []
        for home in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(home / "ns/net") == namespace and _inner_number(home) != listener:
                    found.append((int(home.name), (home / "comm").read_text().strip()))
            except OSError:
                continue
        return sorted(found)

    def listening(self, host) -> set:
        """Ports that something of a host listens on, TCP, or is bound to, UDP; without its sshd's."""
        tables = self._inside(
            "ip",
            "netns",
            "exec",
            host,
            "sh",
            "-c",
            "cat /proc/net/tcp /proc/net/tcp6; echo; cat /proc/net/udp /proc/net/udp6",
        ).stdout
        tcp, udp = (
            [line.split() for line in table.splitlines() if ":" in line.split()[0]]
            for table in tables.split("\n\n")
        )
        ports = {int(row[1].rpartition(":")[2], 16) for row in tcp if row[3] == "0A"} | {
            int(row[1].rpartition(":")[2], 16) for row in udp
        }
        return ports - {22}

    def _inside(self, *argv, input=None):
        done = self.run(argv, input=input)
        if done.returncode:
            raise ClusterError(
                f"{' '.join(map(str, argv[:6]))}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done

    # ---- faults ----

    def slow_sender(self, host, plane, mbit):
        """The host's own end of the link sends at this rate."""
        self._port(host, plane)
        self._shape(host, plane, mbit)

    def slow_receiver(self, host, plane, mbit):
        """The fabric's end of the link sends to the host at this rate."""
        self._shape(None, self._port(host, plane), mbit)

    def slow(self, host, plane, mbit):
        self.slow_sender(host, plane, mbit)
        self.slow_receiver(host, plane, mbit)

    def lossy_link(self, one, other, plane, percent, one_way=False):
        """So many percent of the packets between two hosts are lost; ``one_way``: only those from
        the first to the second.
        """
        for source, target in [(one, other)] if one_way else [(one, other), (other, one)]:
            self._drop(
                f"iifname {self._port(source, plane)} ether daddr {self._mac(target, plane)}",
                percent,
            )

    def blackhole(self, source, target, plane, one_way=True):
        """No packet from the first host reaches the second, nor back unless ``one_way``."""
        self.lossy_link(source, target, plane, 100, one_way)

    def cut(self, host, plane, direction="both"):
        """No packet leaves (``transmit``) or reaches (``receive``) a host on a plane, whoever the
        peer is.
        """
        sides = {"transmit": ("iifname",), "receive": ("oifname",), "both": ("iifname", "oifname")}
        for side in sides[direction]:
            self._drop(f"{side} {self._port(host, plane)}", 100)

    def mtu(self, host, plane, limit=1400):
        """The link loses packets of more bytes than this, silently, in both directions; both ends
        believe in 1500.
        """
        for side in ("iifname", "oifname"):
            self._drop(f"{side} {self._port(host, plane)} meta length > {limit}", 100)

    def lossy(self, host, plane, percent):
        """So many percent of all packets of a host are lost, in each direction."""
        for side in ("iifname", "oifname"):
            self._drop(f"{side} {self._port(host, plane)}", percent)

    def path(self, one, other, plane, percent=0.0, mbit=None, one_way=False):
        """Between two racks so many percent of the packets are lost, or a receiving host gets no
        more than ``mbit``.
        """
        ways = [(one, other)] if one_way else [(one, other), (other, one)]
        for source, target in ways:
            if f"{source}-{target}" not in {
                f"{a}-{b}" for a, b in itertools.permutations(set(self.racks.values()), 2)
            }:
                raise ValueError(
                    f"{source!r} and {target!r} are not two racks of this cluster; there are "
                    f"{', '.join(sorted(set(self.racks.values())))}"
                )
            if percent:
                self._drop(f"iifname {plane}-{target}-{source}", percent)
            if mbit:
                self._throttle_trunk(plane, source, target, mbit)

    def dead(self, host):
        """The host's links are down and nothing runs there."""
        self._dead.add(host)
        self._fabric(
            "ip",
            [f"link set {self._port(host, plane)} down" for plane in (MANAGEMENT, *self.planes)],
        )
        pid_file = self.directory / host / "sshd.pid"
        pid_file.unlink()
        while self.processes(host):
            for number, _name in self.processes(host):
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)

    def heal(self):
        """Undo all faults; what was killed stays so, but a dead host is started again."""
        self._rules = []
        self._load_rules()
        for namespace, device in sorted(self._shaped, key=str):
            trunk = namespace is None and device.count("-") == 2
            change = (
                f"qdisc del dev {device} root"
                if trunk
                else f"qdisc change dev {device} root {_shaper(self.rate_mbit, namespace)}"
            )
            self._fabric("tc", [change], namespace)
        self._shaped.clear()
        revived = sorted(self._dead)
        self._dead.clear()
        self._fabric(
            "ip",
            [
                f"link set {self._port(host, plane)} up"
                for host in revived
                for plane in (MANAGEMENT, *self.planes)
            ],
        )
        for host in revived:
            self._inside("ip", "netns", "exec", host, "sh", "-c", self._sshd(host))
        self._wait_for_ssh(revived)

    def dropped(self) -> int:
        """How many packets the faults in force have swallowed."""
        listing = json.loads(self._inside("nft", "-j", "list", "ruleset").stdout)["nftables"]
        expressions = [
            expression
            for entry in listing
            if "rule" in entry
            for expression in entry["rule"]["expr"]
        ]
        return sum(
            expression["counter"]["packets"]
            for expression in expressions
            if "counter" in expression
        )

    def _shape(self, namespace, device, mbit):
        self._shaped.add((namespace, device))
        self._fabric(
            "tc", [f"qdisc change dev {device} root {_shaper(mbit, namespace)}"], namespace
        )

    def _throttle_trunk(self, plane, source, target, mbit):
        """Each host behind a trunk gets this rate: were it one for all, the figure would depend on
        who else talks.
        """
        device = f"{plane}-{source}-{target}"
        self._shaped.add((None, device))
        batch = [f"qdisc replace dev {device} root handle 1: htb"]
        for host in self.hosts:
            if self.racks[host] == target:
                class_id = f"1:{self._number(host):x}"
                batch.append(
                    f"class add dev {device} parent 1: classid {class_id} htb rate {mbit}mbit "
                    f"burst {_burst(mbit)}"
                )
                for protocol, word, family in (("ip", "ip", 4), ("ipv6", "ip6", 6)):
                    match = f"{word} dst {self.address(host, plane, family)}"
                    batch.append(
                        f"filter add dev {device} parent 1: protocol {protocol} prio {family} "
                        f"u32 match {match} flowid {class_id}"
                    )
        self._fabric("tc", batch)

    def _drop(self, match, percent):
        sample = "" if percent >= 100 else f"numgen random mod 10000 < {round(percent * 100)} "
        self._rules.append(f"{match} {sample}counter drop")
        self._load_rules()

    def _load_rules(self):
        resolution = [
            "ether type arp accept",
            "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
        ]
        chain = [
            "table bridge faults {",
            "chain forward {",
            "type filter hook forward priority 0",
            *resolution,
            *self._rules,
            "}",
            "}",
        ]
        self._inside(
            "nft",
            "-f",
            "-",
            input="\n".join(
                [
                    "table bridge faults",
                    "delete table bridge faults",
                    *(chain if self._rules else []),
                    "",
                ]
            ),
        )

    def _fabric(self, program, batch, namespace=None):
        if batch:
            self._inside(
                program,
                *(["-n", namespace] if namespace else []),
                "-batch",
                "-",
                input="\n".join(batch) + "\n",
            )


def _shaper(mbit, namespace) -> str:
    return (
        f"tbf rate {mbit}mbit burst {_burst(mbit)} latency "
        f"{_QUEUE_MS['host' if namespace else 'fabric']}ms"
    )


def _burst(mbit) -> int:
    return max(_BURST, int(mbit * 125 * _BURST_MS))


def _batch(program, lines) -> str:
    """A shell command that does them all at once."""
    return f"{program} -batch - <<'END'\n" + "\n".join(lines) + "\nEND"


def _inner_number(home) -> str | None:
    """The number that a process has in its own PID namespace."""
    for line in (home / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[-1]
    return None


def _base() -> Path:
    """Where clusters have their directories: in memory, since a node is some 270 small files,
    unless nothing may be run from there.
    """
    memory = Path("/dev/shm")
    return (
        memory
        if memory.is_dir() and not os.statvfs(memory).f_flag & os.ST_NOEXEC
        else Path(tempfile.gettempdir())
    )


def remove_stale() -> None:
    """Remove the directories of clusters that were killed together with the program that made them."""
    for directory in _base().glob(_PREFIX + "*"):
        try:
            with open(directory / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue
