# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's image, built by its Containerfile without a registry, and run as a cluster runs it:
not as root, no capability, nothing to write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time

import pytest

import agent_image

SCRIPT = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" &&
    mount -t proc proc "$1/proc" && mount -t tmpfs -o mode=1777 tmp "$1/tmp" || exit 99
mount -t tmpfs dev "$1/dev" && mknod -m 666 "$1/dev/null" c 1 3 && mknod -m 666 "$1/dev/urandom" c 1 9 || exit 99
ip link set lo up && sysctl -qw net.ipv4.ping_group_range='0 65535' || exit 99
root=$1; shift
exec chroot "$root" /usr/bin/setpriv --reuid=10001 --regid=10001 --clear-groups \\
    --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
"""
#: As a cluster gives them, where there is no cluster.
SETTINGS = {
    "NODE_NAME": "gpu01",
    "NAMESPACE": "autopilot",
    "AUTOPILOT_API_SERVER": "http://127.0.0.1:9",
    "AUTOPILOT_API_TOKEN_FILE": "",
    "AUTOPILOT_API_CA": "",
    "AUTOPILOT_MARK_NODES": "false",
}
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
PATIENCE = 120

reason = agent_image.missing() or next(
    (
        f"needs {name}"
        for name in ("unshare", "nsenter", "ip", "sysctl")
        if not shutil.which(name, path=PATH)
    ),
    None,
)
pytestmark = pytest.mark.skipif(bool(reason), reason=str(reason))


@pytest.fixture(scope="module")
def built():
    """The image of this tree: its store, its identity, its configuration, its root file system and
    the files it is made of.
    """
    with agent_image.context() as tree, agent_image.Builder() as builder:
        identity = builder.build(tree)
        with builder.mounted() as root:
            yield builder, identity, builder.inspect()["OCIv1"]["config"], root, tree


def variables(config, more):
    return {**dict(one.split("=", 1) for one in config["Env"]), **more}


def started(built, command, more=(), **how):
    """A process in the image, as its user, with its environment and more of it."""
    _builder, _identity, config, root, _tree = built
    argv = [
        "unshare",
        "--mount",
        "--net",
        "--propagation=private",
        "sh",
        "-c",
        SCRIPT,
        "sh",
        str(root),
        "/usr/bin/env",
        "-i",
    ]
    argv += [f"{name}={value}" for name, value in variables(config, dict(more)).items()]
    environment = dict(os.environ, PATH=PATH)
    return subprocess.Popen(
        [*argv, *command],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **how,
    )


def ran(built, command, more=()):
    process = started(built, command, more)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, out, err


def test_the_same_tree_gives_the_same_image(built, tmp_path):
    """Also when its files are of another day, have other modes, and Python has left its caches
    beside them. One byte more gives another one.
    """
    builder, identity, _config, _root, tree = built
    for path in tree.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o600)
    (tree / "plugins/module_utils/_health/__pycache__").mkdir()
    (tree / "plugins/module_utils/_health/__pycache__/model.cpython-311.pyc").write_bytes(b"x")
    assert builder.build(tree, "localhost/again:test") == identity
    # What is imported is the same too.
    archives = [tmp_path / "one.tar", tmp_path / "other.tar"]
    for archive in archives:
        builder.save(archive)
        assert agent_image.hash_of_file(archive) == agent_image.hash_of_file(archives[0])
    with open(tree / "src/agent/autopilot_agent/__init__.py", "a", encoding="utf-8") as file:
        file.write("#\n")
    assert builder.build(tree, "localhost/again:test") != identity


def test_what_it_says_of_itself(built):
    config = built[2]
    assert config["User"] == "10001:10001" and config["Entrypoint"] == [
        "python3",
        "-m",
        "autopilot_agent",
    ]
    assert set(config["ExposedPorts"]) == {"3333", "8080", "8081"} or set(
        config["ExposedPorts"]
    ) == {"3333/tcp", "8080/tcp", "8081/tcp"}
    assert variables(config, {})["PATH"].startswith("/usr/local/nvidia/bin:")
    assert config["Labels"]["org.opencontainers.image.version"] == "test"


def package(repository, name, version, files):
    """A Debian package for every architecture: name -> text or bytes of its files."""
    root = repository / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: test <a@b.example>\n"
        "Description: test\n",
        encoding="ascii",
    )
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(0o755)
    archive = repository / f"{name}_{version}_all.deb"
    agent_image.call(["dpkg-deb", "--root-owner-group", "--build", str(root), str(archive)])
    shutil.rmtree(root)


def signed_repository(directory):
    """A directory like NVIDIA's CUDA repository: DCGM, and the key in the package cuda-keyring."""
    repository, home = directory / "repository", directory / "gpg"
    repository.mkdir()
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--passphrase", ""]
    agent_image.call([*gpg, "--quick-generate-key", "test", "rsa3072", "sign", "never"])
    agent_image.call([*gpg, "--output", str(directory / "key"), "--export", "test"])
    key = (directory / "key").read_bytes()
    package(repository, "datacenter-gpu-manager-4-cuda12", "4.5.0", {"usr/bin/dcgmi": b"#!"})
    packages = agent_image.call(["dpkg-scanpackages", "."], cwd=repository).encode()
    (repository / "Packages").write_bytes(packages)
    line = f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
    release = f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S UTC', time.gmtime())}\nSHA256:\n{line}"
    (directory / "Release").write_text(release, encoding="ascii")
    signed = ["--output", str(repository / "InRelease"), "--clearsign", str(directory / "Release")]
    agent_image.call([*gpg, *signed])
    keyring = {"usr/share/keyrings/cuda-archive-keyring.gpg": key}
    package(repository, "cuda-keyring", "1.1-1", keyring)
    return repository


@pytest.mark.skipif(
    not all(map(shutil.which, ("gpg", "dpkg-scanpackages"))), reason="needs gpg, dpkg-scanpackages"
)
def test_one_build_argument_adds_dcgm(tmp_path):
    """A repository that its key did not sign is refused."""
    repository = signed_repository(tmp_path)
    arguments = (
        f"--build-arg=BASE=docker-archive:{agent_image.base('apt')}",
        f"--volume={repository}:/repository:ro",
        "--build-arg=DCGM_REPOSITORY=file:///repository",
    )
    with agent_image.context() as tree, agent_image.Builder() as builder:
        builder.build(tree, agent_image.NAME, *arguments)
        with builder.mounted() as root:
            assert os.access(root / "usr/bin/dcgmi", os.X_OK)
            left = ("etc/apt/sources.list.d/from.sources", "etc/apt/keyrings/from.gpg")
            assert [name for name in left if (root / name).exists()] == []
            assert list((root / "tmp").iterdir()) == []
        signature = repository / "InRelease"
        signature.write_bytes(signature.read_bytes().replace(b"Date: ", b"Data: "))
        with pytest.raises(RuntimeError, match="ended with"):
            builder.build(tree, "localhost/refused:test", *arguments)


def test_nothing_in_it_gives_rights(built):
    """A file capability would keep fping from starting in a pod without capabilities."""
    root = built[3]
    found = []
    for path in root.rglob("*"):
        about = path.lstat()
        if stat.S_ISREG(about.st_mode):
            with contextlib.suppress(OSError):
                found += (
                    [path]
                    if about.st_mode & 0o6000 or os.getxattr(path, "security.capability")
                    else []
                )
    assert found == []
    ours = [
        path
        for path in (root / "opt/autopilot").rglob("*")
        if path.lstat().st_uid or path.lstat().st_mode & 0o022
    ]
    assert ours == []


def test_it_has_no_leftovers(built):
    root = built[3]
    assert not [
        path
        for name in ("wheels", "pip", "install-packages")
        for path in [root / name]
        if path.exists()
    ]
    assert (
        not list((root / "opt/autopilot").rglob("*.whl"))
        and not (root / "opt/autopilot/lib/pip").exists()
    )


CHECKS = """
import json, os, sys
import aiohttp, prometheus_client, pynvml, _health
from _health.node import registry
from _health.node.framework import runner
from _health.node.system import fping, interfaces as network, iperf3
from _health.node.framework.probe import HostSettings
from _health.node.system.host import Host
from _health.node.devices import ptx_generated as ptx
check = registry.load("ping_mesh")
options = dict(check.defaults(), targets=["127.0.0.1", "::1"], count=5)
told = runner.run([(check, options)], HostSettings())[0].result.to_dict()
try:
    open("/opt/autopilot/x", "w")
    written = True
except OSError as error:
    written = error.strerror
print(json.dumps({
    "uid": os.getuid(),
    "fping": fping.find(),
    "iperf3": iperf3.find(),
    "interfaces": len(network.look(Host())["interfaces"]),
    "ping": told,
    "written": written,
    "cached": sys.modules["_health.node.checks"].__cached__,
    "kernel": bool(vars(ptx)),
    "ours": _health.__file__,
}))
"""


def test_its_programs_and_the_core_work_without_any_right(built):
    code, out, err = ran(built, ["python3", "-c", CHECKS])
    assert code == 0, err
    told = json.loads(out)
    assert (
        told["uid"] == 10001
        and told["ours"].startswith("/opt/autopilot/_health/")
        and told["kernel"]
    )
    assert "version" in told["fping"] and "version" in told["iperf3"] and told["interfaces"] >= 1
    assert told["ping"]["status"] == "pass", told["ping"]
    assert told["written"] == "Read-only file system" or told["written"] == "Permission denied"


def test_nothing_is_compiled_when_it_starts(built):
    """Neither our modules nor Python's: the root file system cannot keep it, so that each start
    would pay for it.
    """
    code, _out, err = ran(
        built, ["python3", "-v", "-c", "import autopilot_agent.passes.worker, json, asyncio"]
    )
    assert code == 0
    assert "autopilot_agent/passes/__pycache__/worker" in err
    assert [
        line for line in err.splitlines() if "code object from '/" in line and ".pyc" not in line
    ] == []


def test_a_setting_that_is_not_accepted_is_said(built):
    code, _out, err = ran(built, built[2]["Entrypoint"], {**SETTINGS, "AUTOPILOT_PORT": "many"})
    assert code == 2
    assert "AUTOPILOT_PORT" in err and "'many'" in err and "Traceback" not in err


def test_the_agent_starts_and_leaves_in_time(built):
    process = started(built, built[2]["Entrypoint"], SETTINGS)
    try:
        answers = {}
        until = time.monotonic() + PATIENCE
        while len(answers) < 2 and time.monotonic() < until and process.poll() is None:
            for port, path in ((3333, "/healthz"), (8080, "/readyz")):
                ask = (
                    "import urllib.request; "
                    f"print(urllib.request.urlopen('http://127.0.0.1:{port}{path}', "
                    "timeout=10).status)"
                )
                done = subprocess.run(
                    ["nsenter", f"--net=/proc/{process.pid}/ns/net", sys.executable, "-c", ask],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode == 0:
                    answers[path] = done.stdout.strip()
            time.sleep(0.2)
        assert answers == {"/healthz": "200", "/readyz": "200"}, (
            process.communicate(timeout=5) if process.poll() is not None else "it does not answer"
        )
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
