# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mesh run on a sandbox cluster without Ansible between, and faults with all that may be said of
each.

The nodes, their clocks, iperf3, fping, both passes and the judging are the real ones; what is left
out is SSH and the role.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    iperf3_pairs,
    ping_mesh,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    read_facts,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import judge

_PROGRAM = Path(__file__).parent / "on_node.py"
#: How many hosts are asked at the same time.
_ASKED = 4


def _ask(cluster, host, what, **given):
    done = cluster.run(
        [cluster.python(host), _PROGRAM, what],
        host,
        timeout=60,
        input=json.dumps(dict(given, host_root=cluster.nodes[host].root)),
    )
    if done.returncode:
        raise RuntimeError(f"{host}: {what}: {done.stderr}")
    return json.loads(done.stdout)


def _everywhere(cluster, hosts, what, **by_host):
    """The answers by host; a host that is dead has none."""

    def ask(host):
        return _ask(
            cluster,
            host,
            what,
            **{
                key: value[host] if isinstance(value, dict) else value
                for key, value in by_host.items()
            },
        )

    with ThreadPoolExecutor(_ASKED) as pool:
        return dict(zip(hosts, pool.map(ask, hosts)))


def facts_of(cluster, hosts):
    """What mesh_facts returns; the clocks are compared here as they are, since all hosts share one."""

    def ask(host):
        asked = time.time()
        found = _ask(cluster, host, "facts")
        found["clock"] = {
            "offset_seconds": 0.0,
            "uncertainty_seconds": 0.02,
            "asked": asked,
            "answered": time.time(),
        }
        return found

    with ThreadPoolExecutor(_ASKED) as pool:
        return dict(zip(hosts, pool.map(ask, hosts)))


def run(
    cluster,
    facts,
    seed,
    rounds=5,
    duration=2.0,
    together=True,
    alive=None,
    options=None,
    groups=None,
    once_planned=None,
    readings=None,
):
    """Both passes, judged: (what `judge.judge` returns, the plans). ``groups`` are the racks that
    the engine knows, by default all; ``once_planned`` takes each plan before its rounds;
    ``readings`` is a list that gets the readings of each pass.
    """
    chosen = {
        "iperf3_pairs": {
            **iperf3_pairs.CHECK.defaults(),
            "duration": duration,
            **(options or {}).get("iperf3_pairs", {}),
        },
        "ping_mesh": {**ping_mesh.CHECK.defaults(), **(options or {}).get("ping_mesh", {})},
    }
    settings = plan.MeshSettings(
        rounds=rounds,
        together=together,
        interfaces={host: list(cluster.planes) for host in cluster.hosts},
        seed=seed,
        group_of=cluster.racks if groups is None else groups,
        group_by="rack",
        options=chosen,
        lead_seconds=6.0,
    )
    alive = alive or cluster.hosts
    plans = [
        plan.make(
            {host: read_facts(facts.get(host)) for host in cluster.hosts},
            settings,
            time.time(),
            f"seed{seed}",
        )
    ]
    announce = once_planned or (lambda _plan: None)
    announce(plans[0])
    passes = [_measure(cluster, alive, plans[0])]
    wanted = judge.second_pass(plans[0], passes[0])
    second = plan.follow_up(plans[0], wanted, time.time(), 6.0) if wanted else None
    if second:
        plans.append(second)
        announce(second)
        passes.append(_measure(cluster, alive, second))
    if readings is not None:
        readings += passes
    return judge.judge(plans, passes), plans


def _measure(cluster, alive, chosen):
    shares = {
        host: share for host, share in plan.shares(chosen, b"secret").items() if host in alive
    }
    _everywhere(cluster, list(shares), "start", share=shares)
    time.sleep(max(0.0, chosen["start"] + chosen["seconds"] - time.time()))
    return _everywhere(cluster, list(shares), "collect", run=chosen["run"])


def said(judged):
    """Every finding from warning up as (host or "run", subject, code, status), each once."""
    found = {
        (host, finding.subject.name, finding.code, finding.status)
        for host, results in judged.results.items()
        for result in results
        for finding in result.findings
        if finding.status in ("warn", "unknown", "fail")
    }
    return found | {
        ("run", finding.subject.name, finding.code, finding.status)
        for _check, finding in judged.findings
    }


class Fault:
    """What is done to a cluster, all that may be said then (any one of several), and which hosts it
    leaves alive.
    """

    def __init__(self, inflict, *expected, dead=()):
        self.inflict, self.expected, self.dead = inflict, [set(one) for one in expected], set(dead)


def _two(cluster):
    cluster.slow_sender("gpu02", "eth1", 30)
    cluster.mtu("gpu06", "eth2")


#: Fault -> (host or "run", subject, code, status).
FAULTS = {
    "healthy": Fault(lambda cluster: None, []),
    "slow_sender": Fault(
        lambda cluster: cluster.slow_sender("gpu07", "eth2", 33),
        [("gpu07", "eth2", "slow_transmit", "fail")],
    ),
    "slow_receiver": Fault(
        lambda cluster: cluster.slow_receiver("gpu03", "eth1", 50),
        [("gpu03", "eth1", "slow_receive", "fail")],
    ),
    "slow_both": Fault(
        lambda cluster: cluster.slow("gpu05", "eth1", 40),
        [("gpu05", "eth1", "slow_both_ways", "fail")],
    ),
    "lossy_link": Fault(
        lambda cluster: cluster.lossy_link("gpu02", "gpu06", "eth1", 12),
        [("run", "gpu02 and gpu06 on eth1", "packet_loss", "fail")],
    ),
    "blackhole": Fault(
        lambda cluster: cluster.blackhole("gpu02", "gpu07", "eth1"),
        [("run", "gpu02 to gpu07 on eth1", "no_path", "fail")],
        [("run", "gpu02 and gpu07 on eth1", "no_path", "fail")],
    ),
    "deaf": Fault(
        lambda cluster: cluster.cut("gpu04", "eth1", "receive"),
        [("gpu04", "eth1", "no_path", "fail")],
    ),
    "mtu": Fault(
        lambda cluster: cluster.mtu("gpu06", "eth2"), [("gpu06", "eth2", "mtu_on_the_way", "fail")]
    ),
    "dead": Fault(
        lambda cluster: cluster.dead("gpu08"), [("gpu08", None, "no_path", "fail")], dead=["gpu08"]
    ),
    "path": Fault(
        lambda cluster: cluster.path("r1", "r2", "eth1", percent=12),
        [("run", "rack r1 and rack r2 on eth1", "packet_loss", "fail")],
    ),
    "slow_path": Fault(
        lambda cluster: cluster.path("r1", "r2", "eth2", mbit=40),
        [("run", "rack r1 and rack r2 on eth2", "slow_path", "fail")],
    ),
    "two": Fault(
        _two,
        [("gpu02", "eth1", "slow_transmit", "fail"), ("gpu06", "eth2", "mtu_on_the_way", "fail")],
    ),
}


def said_in(document):
    """The same of a run document."""
    found = {
        (node["name"], finding["subject"].get("name"), finding["code"], finding["status"])
        for node in document["nodes"]
        for finding in node["findings"]
    }
    return found | {
        ("run", finding["subject"].get("name"), finding["code"], finding["status"])
        for finding in document["findings"]
    }
