# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each kind of network fault on a cluster of real namespaces: the exact finding and no other.

One seed each; tests/benchmark/finding.py runs all faults over many seeds.
"""

from __future__ import annotations

import pytest
from faults import FAULTS, facts_of, run, said

# What only a real network shows: a shaped link, a filter in one direction, a path MTU, a silent
# host, loss between racks. tests/unit/test_mesh_judge.py has all faults on readings of such a mesh;
# the slow sender is found over SSH in test_mesh_cluster.py.
KINDS = ("healthy", "slow_receiver", "blackhole", "mtu", "dead", "path")


@pytest.fixture(scope="module")
def eight(cluster):
    made = cluster(hosts=8)
    return made, facts_of(made, made.hosts)


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_is_named_exactly(name, eight):
    cluster, facts = eight
    fault = FAULTS[name]
    fault.inflict(cluster)
    try:
        alive = [host for host in cluster.hosts if host not in fault.dead]
        judged, plans = run(cluster, facts, seed=7, alive=alive)
    finally:
        cluster.heal()
    assert said(judged) in fault.expected
    # Where nothing is broken a busy machine may still hold a measurement up, and the retest
    # clears it; tests/unit/test_mesh_judge.py has none.
    assert len(plans) == 2 or name == "healthy"
    for host in cluster.hosts:
        # What was collected is gone from the host.
        assert not [process for _pid, process in cluster.processes(host) if process != "sshd"]
        assert not cluster.listening(host)
