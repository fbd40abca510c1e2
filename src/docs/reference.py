# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Generate the documentation pages about checks, finding codes, metrics and node marks from the
tables of the core.

    reference.py            write the pages
    reference.py --check    fail (exit 1) if the pages differ
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "plugins" / "module_utils"), str(Path(__file__).parent)]

import checks  # noqa: E402
import marks  # noqa: E402
from _health.fleet.judging.report import RunReport  # noqa: E402
from _health.fleet.output import metrics  # noqa: E402
from _health.knowledge import agent  # noqa: E402
from _health.fleet.output.runbook import FINDINGS  # noqa: E402
from _health.knowledge.finding_text import node_step  # noqa: E402
from _health.model import ACTIONS, FAIL, WARN  # noqa: E402
from _health.fleet.output.metrics import (
    COMPATIBILITY,
    METRICS,
    MOST_FINDINGS,
    MOST_MESH_HOSTS,
    Metric,
)  # noqa: E402

#: Suffix of a measurement's name -> its unit.
_UNITS = (
    ("_bytes_per_second", "bytes/s"),
    ("_seconds", "s"),
    ("_watts", "W"),
    ("_ratio", "0 to 1"),
    ("_rows", "rows"),
    ("_pages", "pages"),
    ("_gpus", "GPUs"),
    ("_nodes", "nodes"),
    ("_bytes", "bytes"),
    ("_hertz", "Hz"),
    ("_per_second", "1/s"),
)

METRICS_PAGE = (Path(__file__).parent / "metrics.md.in").read_text(encoding="utf-8")

FINDINGS_PAGE = (Path(__file__).parent / "findings.md.in").read_text(encoding="utf-8")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _unit(metric: Metric) -> str:
    return next((unit for end, unit in _UNITS if metric.name.endswith(end)), "")


def _rows(several: Iterable[Metric]) -> Iterable[Tuple[str, ...]]:
    for metric in several:
        check = metric.check or ("any" if "check" in metric.labels else "")
        yield (
            f"`{metric.name}`",
            ", ".join(f"`{label}`" for label in metric.labels),
            _unit(metric),
            f"`{check}`" if metric.check else check,
            metric.help,
        )


#: Stands for one value per GPU of a label.
_GPU: Tuple[str, ...] = ()
_DIRECTIONS = ("host_to_device", "device_to_host")
_PLANES = ("eth1", "eth2")
#: A check, a measurement, its unit, and its labels with their values.
_Measured = Tuple[str, str, str, Dict[str, Tuple[str, ...]]]
#: The measurements of a typical node.
_USUAL: Tuple[_Measured, ...] = (
    ("gpu_count", "gpu_count", "gpus", {}),
    (
        "remapped_rows",
        "remapped_rows",
        "rows",
        {"gpu": _GPU, "cause": ("correctable", "uncorrectable")},
    ),
    ("gpu_power", "power_limit", "watts", {"gpu": _GPU}),
    (
        "pcie_bandwidth",
        "pcie_bandwidth",
        "bytes/s",
        {"gpu": _GPU, "direction": _DIRECTIONS, "method": ("copy_engine", "kernel")},
    ),
    (
        "ecc_errors",
        "ecc_errors",
        "errors",
        {"gpu": _GPU, "counter": ("volatile", "aggregate"), "kind": ("corrected", "uncorrected")},
    ),
    ("nvlink", "nvlinks_active", "links", {"gpu": _GPU}),
    ("pcie_link", "pcie_replays", "replays", {"gpu": _GPU}),
    ("gpu_processes", "memory_used", "bytes", {"gpu": _GPU}),
    ("infiniband", "port_active", "ports", {"port": _GPU}),
    ("clock_sync", "clock_offset", "seconds", {}),
    ("storage", "filesystem_free", "ratio", {"path": ("/", "/var", "/scratch")}),
    ("memory_and_cpu", "memory_errors", "errors", {"kind": ("corrected", "uncorrected")}),
    ("gpu_link", "gpu_link_bandwidth", "bytes/s", {"gpu": _GPU, "kind": ("nvlink",)}),
    ("gpu_memory", "gpu_memory_bandwidth", "bytes/s", {"gpu": _GPU}),
    ("gpu_memory", "gpu_compute_rate", "FLOP/s", {"gpu": _GPU, "kind": ("fp64", "tensor")}),
    ("ping_mesh", "ping_loss", "ratio", {"plane": _PLANES}),
    ("ping_mesh", "ping_round_trip", "seconds", {"plane": _PLANES}),
    (
        "iperf3_pairs",
        "pair_bandwidth",
        "bytes/s",
        {"plane": _PLANES, "direction": ("transmit", "receive")},
    ),
    ("volume_claim", "volume_bound", "seconds", {"storage_class": ("fast",)}),
    ("volume_claim", "volume_ready", "seconds", {"storage_class": ("fast",)}),
)
#: Further measurements that a node may have.
_FURTHER: Tuple[_Measured, ...] = (
    (
        "gpu_power",
        "clocks_held_back",
        "seconds",
        {"gpu": _GPU, "cause": ("power", "thermal", "board_limit", "reliability")},
    ),
    (
        "pcie_bandwidth",
        "pcie_bandwidth_concurrent",
        "bytes/s",
        {"gpu": _GPU, "direction": _DIRECTIONS, "method": ("copy_engine",)},
    ),
    (
        "nvlink",
        "nvlink_errors",
        "errors",
        {"gpu": _GPU, "kind": ("crc_flit", "crc_data", "replay", "recovery")},
    ),
    ("memory_and_cpu", "host_memory_bandwidth", "bytes/s", {"numa": ("0", "1")}),
    (
        "rdma_pairs",
        "pair_bandwidth",
        "bytes/s",
        {"plane": _PLANES, "direction": ("transmit", "receive")},
    ),
    ("rdma_pairs", "pair_latency", "seconds", {"plane": _PLANES}),
    ("xid_errors", "xid_errors", "events", {"gpu": _GPU, "xid": ("13", "31", "79")}),
    ("gpu_visibility", "gpus_visible", "gpus", {}),
    ("image_registry", "image_lookup", "seconds", {"registry": ("registry",)}),
    ("nfs_mounts", "nfs_answer", "seconds", {"server": ("nas",)}),
    ("gpu_activity", "sampling_cpu", "ratio", {}),
    ("gpu_activity", "sampling_memory", "bytes", {}),
    ("gpu_activity", "utilization", "ratio", {"gpu": _GPU}),
    ("gpu_activity", "power", "watts", {"gpu": _GPU}),
    ("gpu_activity", "sm_clock", "hertz", {"gpu": _GPU}),
    ("gpu_usage", "gpu_usage_mean", "ratio", {"gpu": _GPU}),
    ("gpu_usage", "gpu_usage_p50", "ratio", {"gpu": _GPU}),
    ("gpu_usage", "gpu_usage_idle", "ratio", {"gpu": _GPU}),
    ("gpu_usage", "gpu_usage_idle_episodes", "episodes", {"gpu": _GPU}),
    ("gpu_usage", "gpu_usage_memory_occupied", "ratio", {"gpu": _GPU}),
)


def _measurements(
    measured: Iterable[_Measured], gpus: int
) -> Dict[str, List[Tuple[str, str, Dict[str, str]]]]:
    """By check the name, unit and labels of each measurement."""
    each_gpu = tuple(str(index) for index in range(gpus))
    found: Dict[str, List[Tuple[str, str, Dict[str, str]]]] = {"dcgm_diag": []}
    for check, name, unit, labels in measured:
        values = [given or each_gpu for given in labels.values()]
        found.setdefault(check, []).extend(
            (name, unit, dict(zip(labels, chosen))) for chosen in itertools.product(*values)
        )
    return found


def _node(gpus: int, most: bool, hosts: int) -> Dict[str, Any]:
    """A node of a run document with all typical measurements; with ``most``, with all possible
    ones.
    """
    values = _measurements((*_USUAL, *(_FURTHER if most else ())), gpus)
    findings = [
        {
            "check": "gpu_power",
            "code": f"code_{number}",
            "status": "warn",
            "action": "watch",
            "subject": {"kind": "node"},
            "message": "",
            "evidence": {},
        }
        for number in range(MOST_FINDINGS + 1 if most else 0)
    ]
    health = [
        {
            "check": check,
            "status": "pass",
            "summary": "",
            "findings": [],
            "duration_seconds": 1.0,
            "measurements": [
                {"name": name, "value": 1.0, "unit": unit, "labels": labels}
                for name, unit, labels in of_check
            ],
        }
        for check, of_check in values.items()
    ]
    known = [
        {"index": index, "uuid": f"GPU-{index}", "pci": f"00000000:{index:02X}:00.0", "name": "GPU"}
        for index in range(gpus)
    ]
    return {
        "name": "gpu0",
        "status": "pass",
        "fit": "fit",
        "findings": findings,
        "health": health,
        "fleet": [],
        "facts": {"gpus": known},
        "readings": {},
    }


def _document(gpus: int, most: bool, hosts: int) -> Dict[str, Any]:
    names = [f"gpu{number}" for number in range(hosts)]
    measures = (
        ("iperf3_pairs", "bandwidth", "bits/s"),
        ("ping_mesh", "loss", "ratio"),
        ("ping_mesh", "round_trip_p50", "seconds"),
    )
    return {
        "run_id": "run",
        "phase": "preflight",
        "finished": "2026-01-01T00:00:00Z",
        "duration_seconds": 1.0,
        "versions": {},
        "policy": {},
        "counts": dict.fromkeys(("fit", "unfit", "could_not_tell", "skipped"), 0),
        "verdict": {"status": "pass", "passed": True},
        "findings": [],
        "nodes": [_node(gpus, most, hosts)],
        "mesh": {
            "hosts": names,
            "matrices": [
                {
                    "check": check,
                    "plane": plane,
                    "measure": measure,
                    "unit": unit,
                    "cells": [[0, other, 1.0] for other in range(1, hosts)],
                }
                for plane in ("eth1", "eth2")
                for check, measure, unit in measures
            ],
        },
    }


def series(
    nodes: int, gpus: int, most: bool = False, hosts: int = 0, compatibility: bool = False
) -> int:
    """The number of series of a fleet with two networks per node and a mesh of the given size: the
    series of one node's group times the nodes, plus those of the run.
    """
    node, run = metrics.groups_of(RunReport.from_dict(_document(gpus, most, hosts)), compatibility)
    return len(node.samples) * nodes + len(run.samples)


def _metrics_page() -> str:
    of_run = [metric for metric in METRICS if metric.name.startswith("autopilot_run_")]
    hosts = MOST_MESH_HOSTS
    usual, compatible = series(1000, 8), series(1000, 8, compatibility=True)
    cells, all_cells = (
        series(hosts, 8, hosts=hosts, compatibility=both) - series(hosts, 8, compatibility=both)
        for both in (False, True)
    )
    heads = ("metric", "labels", "unit", "check", "meaning")
    return METRICS_PAGE.format(
        statuses=", ".join(f"{rank} {status}" for rank, status in enumerate(metrics.STATUSES)),
        node=table(heads, _rows(metric for metric in METRICS if metric not in of_run)),
        run=table(
            ("metric", "labels", "unit", "meaning"), [(*row[:3], row[4]) for row in _rows(of_run)]
        ),
        compatible=table(
            ("metric", "labels"), [(row[0], "`node`, " + row[1]) for row in _rows([COMPATIBILITY])]
        ),
        usual=f"{usual:,}",
        most=f"{series(1000, 8, most=True):,}",
        most_findings=MOST_FINDINGS,
        most_hosts=hosts,
        most_series=metrics.MOST_SERIES,
        agent_phase=agent.PHASE,
        agent=table(
            ("metric", "kind", "labels", "meaning"),
            [
                (
                    f"`{metric.name}`",
                    metric.kind,
                    ", ".join(f"`{label}`" for label in metric.labels),
                    metric.help,
                )
                for metric in agent.METRICS
            ],
        ),
        compatibility=f"{compatible - usual:,}",
        mesh=f"{cells:,}",
        mesh_compatibility=f"{all_cells - cells:,}",
    )


def _findings_page() -> str:
    otherwise = {
        FAIL: "The node is unfit until the cause is fixed.",
        WARN: "The node stays in use.",
    }
    return FINDINGS_PAGE.format(
        actions=table(
            ("action", "for a `fail`", "for `warn` and `unknown`"),
            [
                (
                    f"`{action}`",
                    *(node_step(action, status) or otherwise[status] for status in otherwise),
                )
                for action in ACTIONS
            ],
        ),
        # Forges and Sphinx make different anchors of a heading; the explicit anchor works in both.
        findings="\n\n".join(
            f'<a id="{code}"></a>\n\n### `{code}`\n\n{entry.meaning}\n\n**Next step:** {entry.next}'
            for code, entry in sorted(FINDINGS.items())
        ),
    )


#: Page -> the function that generates it.
PAGES = {
    "metrics.md": _metrics_page,
    "findings.md": _findings_page,
    "checks.md": lambda: checks.page(table),
    "marks.md": lambda: marks.page(table),
}


def main() -> int:
    differ = []
    for name, made in PAGES.items():
        page = ROOT / "docs" / name
        if "--check" not in sys.argv[1:]:
            page.write_text(made(), encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != made():
            differ.append(str(page))
    for name in differ:
        print(
            f"reference: {name} is not what the tables of the core give; run make -C src/docs",
            file=sys.stderr,
        )
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
