# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the resident agent costs a node on which it has nothing to do: memory, and share of a core.

    .venv/bin/python tests/benchmark/agent_idle.py --seconds 300

The agent runs on a node of stand-in hardware (8 GPUs), has done one pass over all periodic checks,
is asked for its readiness every 10 s and for its metrics every 30 s, and marks its node in a real
API server (tests/sandbox/lab), or with ``--api none`` tries in vain to.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sandbox"))

import node as sandbox  # noqa: E402
from lab import Lab, wait_until  # noqa: E402

#: Seconds between looks of the kubelet, and of Prometheus.
PROBE, SCRAPE = 10, 30
#: What issue 5 allows: MB resident, and percent of a core.
MEMORY, SHARE = 60.0, 0.2
PORTS = {
    "AUTOPILOT_PORT": 23333,
    "AUTOPILOT_METRICS_PORT": 28081,
    "AUTOPILOT_READINESS_PORT": 28080,
}


def ask(port: int, path: str, patience: float = 300.0) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=patience) as answer:
        return str(answer.read().decode())


def resident(pid: int) -> float:
    """MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6


def on_processor(pid: int) -> float:
    """Seconds of all threads."""
    return (
        sum(
            int((thread / "schedstat").read_text().split()[0])
            for thread in Path(f"/proc/{pid}/task").iterdir()
        )
        / 1e9
    )


@contextlib.contextmanager
def cluster(api: str, directory: Path):
    """Settings for an API server that has the node, or for none."""
    if api == "none":
        yield {
            "AUTOPILOT_API_SERVER": "http://127.0.0.1:9",
            "AUTOPILOT_API_CA": "",
            "AUTOPILOT_API_TOKEN_FILE": "",
        }
        return
    with Lab() as lab:
        lab.make_node("gpu01")
        lab.kubectl("create", "serviceaccount", "agent")
        lab.kubectl(
            "create",
            "clusterrolebinding",
            "agent",
            "--clusterrole=cluster-admin",
            "--serviceaccount=default:agent",
        )
        token = directory / "token"
        token.write_text(lab.token("default", "agent"))
        yield {
            "AUTOPILOT_API_SERVER": lab.server,
            "AUTOPILOT_API_CA": str(lab.ca),
            "AUTOPILOT_API_TOKEN_FILE": str(token),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--api", choices=("lab", "none"), default="lab")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, cluster(given.api, Path(temporary)) as api:
        built = sandbox.build({"cuda": {"*": {"h2d": 55e9, "d2h": 55e9}}}, Path(temporary) / "node")
        environment = {
            **os.environ,
            **built.environment,
            **api,
            **{name: str(port) for name, port in PORTS.items()},
            "PYTHONPATH": f"{ROOT}/plugins/module_utils:{ROOT}/src/agent",
            "NODE_NAME": "gpu01",
            "NAMESPACE": "default",
            "AUTOPILOT_BIND": "127.0.0.1",
            "AUTOPILOT_AUTH": "off",
            "AUTOPILOT_HOST_ROOT": built.root,
            "AUTOPILOT_NVML_LIBRARY": built.library or "",
        }
        with subprocess.Popen(
            [sys.executable, "-m", "autopilot_agent"], env=environment, stderr=subprocess.DEVNULL
        ) as agent:
            try:
                measure(agent.pid, given.seconds)
            finally:
                agent.terminate()


def measure(pid: int, seconds: int) -> None:
    def ready() -> bool:
        with contextlib.suppress(OSError):
            return bool(ask(PORTS["AUTOPILOT_READINESS_PORT"], "/readyz"))
        return False

    wait_until(ready, "the agent is ready")
    print(f"started: {resident(pid):.1f} MB resident")
    ask(PORTS["AUTOPILOT_PORT"], "/status?host=gpu01")
    time.sleep(5)
    print(f"after a pass: {resident(pid):.1f} MB resident")
    began, before, most = time.monotonic(), on_processor(pid), 0.0
    for beat in range(seconds // PROBE):
        time.sleep(max(0.0, began + beat * PROBE - time.monotonic()))
        ask(PORTS["AUTOPILOT_READINESS_PORT"], "/readyz")
        if beat % (SCRAPE // PROBE) == 0:
            ask(PORTS["AUTOPILOT_METRICS_PORT"], "/metrics")
        most = max(most, resident(pid))
    took = time.monotonic() - began
    share = 100 * (on_processor(pid) - before) / took
    print(
        f"idle for {took:.0f} s: at most {most:.1f} MB resident (allowed {MEMORY:.0f}), "
        f"{share:.3f} % of a core (allowed {SHARE})"
    )
    if most > MEMORY or share > SHARE:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
