# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each fault of a network on a cluster of real namespaces: named exactly, and nothing else said.

One seed each; tests/benchmark/finding.py does the same over many.
"""

from __future__ import annotations

import pytest
from faults import FAULTS, facts_of, run, said


@pytest.fixture(scope="module")
def eight(cluster):
    made = cluster(hosts=8)
    return made, facts_of(made, made.hosts)


@pytest.mark.parametrize("name", FAULTS)
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
    # Where nothing is broken a busy machine may still hold a measurement up, and the second pass
    # clears it; tests/unit/test_mesh_judge.py has none.
    assert len(plans) == 2 or name == "healthy"
    for host in cluster.hosts:
        # What was collected is gone from the host.
        assert not [process for _pid, process in cluster.processes(host) if process != "sshd"]
        assert not cluster.listening(host)
