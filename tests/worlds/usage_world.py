# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Captures made up in the sampler's own format, from the figures that they are to have.

``satori`` and ``moc`` are shaped like two recorded trainings of a GAN whose raw samples are public
(Cloud-native deployments of bare-metal high-performance AI workflows, Boston University, 2020): the
shares, percentiles and idle episodes of the recordings, drawn up anew from a seed.
"""

from __future__ import annotations

import gzip
import json
import random

INTERVAL = 5.0
GIB = 1 << 30


def shaped(count, mean, p50, p95, most, least=0.0, at=0.5):
    """Sorted values with this mean, median (at the share ``at``), 95th percentile and maximum:
    straight between these points, but for how they bend.
    """

    def quantile(share, bend, upper):
        if share <= at:
            return least + (p50 - least) * (share / at) ** bend
        if share <= 0.95:
            return p50 + (p95 - p50) * ((share - at) / (0.95 - at)) ** upper
        return p95 + (most - p95) * (share - 0.95) / 0.05

    def drawn(*bends):
        return [quantile((place + 0.5) / count, *bends) for place in range(count)]

    for upper in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        low, high = 1e-3, 1e3
        if not sum(drawn(high, upper)) / count <= mean <= sum(drawn(low, upper)) / count:
            continue
        for _again in range(40):
            middle = (low * high) ** 0.5
            low, high = (
                (middle, high) if sum(drawn(middle, upper)) / count > mean else (low, middle)
            )
        return drawn(low, upper)
    raise ValueError(f"no such values: mean {mean}, p50 {p50}, p95 {p95}, max {most}")


def shuffled(values, seed):
    values = list(values)
    random.Random(seed).shuffle(values)
    return values


def stalling(busy, idle_samples, episodes, seed):
    """The busy samples in their order, with ``idle_samples`` of next to nothing among them in so
    many episodes, evenly spread.
    """
    draw = random.Random(seed)
    lengths = [
        idle_samples // episodes + (1 if place < idle_samples % episodes else 0)
        for place in range(episodes)
    ]
    draw.shuffle(lengths)
    values, taken = [], 0
    for place, length in enumerate(lengths):
        until = len(busy) * (place + 1) // (episodes + 1)
        values += busy[taken:until] + [
            draw.choice((0.0, 0.0, 1.0, 3.0)) for _again in range(length)
        ]
        taken = until
    return values + busy[taken:]


def uuid_of(host, index):
    return f"GPU-{host}-{index}"


def gpu(
    host,
    index,
    utilization,
    memory_busy=0.0,
    occupied=0.5,
    processes=(4242,),
    total=32 * GIB,
    **more,
):
    return {
        "index": index,
        "uuid": uuid_of(host, index),
        "utilization": utilization,
        "memory_bandwidth_busy": memory_busy,
        "memory_used": int(occupied * total),
        "memory_total": total,
        "sm_clock": 1530,
        "power": 60.0 + 2.0 * (utilization or 0),
        "temperature": 50,
        "reasons": 0,
        "processes": processes if processes is None else list(processes),
        "error": None,
        **more,
    }


def lines(samples, interval=INTERVAL, ended="stopped", begun=1000.0, **started):
    """The lines of a sampler: ``samples`` are what each has beside its time, None for one that is
    missing.
    """

    def moment(place):
        return {"t": 1.6e9 + place * interval, "m": begun + place * interval}

    head = {
        "event": "started",
        "schema": "autopilot.gpu/usage",
        "schema_version": 1,
        "interval": interval,
        "missing": {},
        "cpus": 64,
        **started,
    }
    rows = [dict(moment(0), **head)] + [
        dict(moment(place), **sample)
        for place, sample in enumerate(samples, 1)
        if sample is not None
    ]
    return rows + ([dict(moment(len(samples) + 1), event="ended", reason=ended)] if ended else [])


def record(host, platform="bare", model="NVIDIA A100-SXM4-80GB", gpus=1, declared=None, **more):
    return {
        "schema": "autopilot.gpu/usage-record",
        "schema_version": 1,
        "name": "run",
        "hostname": host,
        "started": "2026-11-21T03:12:00Z",
        "platform": {"kind": platform, "by": "made up"},
        "node": {
            "model": "DGX",
            "cpu_model": "EPYC",
            "cpus": 64,
            "sockets": 2,
            "cores": 32,
            "memory": 512 * GIB,
            "kernel": "5.14.0",
            "system": "Linux",
        },
        "gpus": {
            "list": [
                {
                    "index": index,
                    "uuid": uuid_of(host, index),
                    "pci": f"00000000:{index + 1:02X}:00.0",
                    "name": model,
                    "memory": 32 * GIB,
                    "power_limit": 300.0,
                    "mig": None,
                }
                for index in range(gpus)
            ],
            "driver_version": "580.95.05",
            "cuda_version": "13.0",
        },
        "job": {"given": None},
        "declared": declared or {},
        **more,
    }


def cpu(user, system=1.4):
    return {
        "cpu": {
            "user": user / 100,
            "system": system / 100,
            "iowait": 0.0,
            "steal": 0.0,
            "idle": 1 - (user + system) / 100,
        }
    }


def memory(total, used_percent, cached):
    free = total * (1 - used_percent / 100)
    return {
        "memory": {
            "total": total,
            "free": int(free),
            "available": int(min(total, free + cached)),
            "cached": cached,
        }
    }


def satori():
    """Bare metal with LSF, two V100, 2 h 13 min: ``(record, samples)``."""
    count = 1597
    busy = []
    for mean, p50, least, idle, pauses, seed in (
        (82.0, 100.0, 60.0, 232, 90, 1),
        (77.0, 97.0, 20.0, 236, 91, 3),
    ):
        rest = count - idle
        # The median of all is that of the busy ones less the idle ones, which all lie below it;
        # they have 1 % on average.
        values = shaped(
            rest,
            (mean * count - idle) / rest,
            p50,
            100.0,
            100.0,
            least,
            at=(count / 2 - idle) / rest,
        )
        busy.append(stalling(shuffled(values, seed), idle, pauses, seed + 1))
    memory_busy = [shuffled(shaped(count, 51.0, 58.0, 78.0, 82.0), seed) for seed in (5, 6)]
    user = shuffled(shaped(count, 3.2, 1.5, 14.9, 18.5, 0.4), 7)
    total = 1145 * GIB
    samples = [
        dict(
            cpu(user[place]),
            **memory(total, 3.6 + 5.3 * min(1.0, place / 374), int(3.6 * GIB)),
            gpus=[
                gpu("satori", index, busy[index][place], memory_busy[index][place], 0.82)
                for index in (0, 1)
            ],
        )
        for place in range(count)
    ]
    told = record(
        "satori",
        "lsf",
        "Tesla V100-SXM2-32GB",
        2,
        {"model": "biggan", "batch": 128, "workers": 16, "parallel": True, "gpus": 2},
    )
    told["node"].update(
        model="8335-GTH", cpu_model="POWER9, altivec supported", cpus=160, memory=total
    )
    return told, samples


def moc():
    """OpenShift, a pod that asked for one V100 and saw four, 1 h 45 min."""
    count = 1255
    busy = shuffled(shaped(count, 31.0, 31.0, 39.0, 40.0, 6.0), 11)
    memory_busy = shuffled(shaped(count, 6.6, 6.5, 9.0, 10.0, 2.0), 12)
    user = shuffled(shaped(count, 1.2, 1.15, 1.8, 2.4, 0.6), 13)
    total = 541 * GIB
    samples = [
        dict(
            cpu(user[place], 0.4),
            **memory(total, 15.9, 53 * GIB),
            gpus=[
                gpu("moc", 0, busy[place], memory_busy[place], 0.14),
                *(gpu("moc", index, 0.0, 0.0, 0.0, ()) for index in (1, 2, 3)),
            ],
        )
        for place in range(count)
    ]
    told = record(
        "moc",
        "openshift",
        "Tesla V100-PCIE-32GB",
        4,
        {"model": "biggan_deep", "batch": 1, "workers": 1, "parallel": False, "gpus": 1},
    )
    told["node"].update(
        model="PowerEdge R740",
        cpu_model="Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz",
        cpus=80,
        memory=total,
    )
    told["job"] = {
        "given": {"pod_uid": "x"},
        "visible": {"NVIDIA_VISIBLE_DEVICES": "all"},
        "limits": {"cpus": None, "memory": None, "cpuset": None},
    }
    return told, samples


def save(directory, host, told, samples, **how):
    """Write a run of one host as it is after it was collected; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{host}.record.json").write_text(json.dumps(told), encoding="utf-8")
    text = "".join(f"{json.dumps(line)}\n" for line in lines(samples, **how))
    (directory / f"{host}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return directory
