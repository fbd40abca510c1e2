# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The run record of a capture: the node, the limits, and the user's description of the job. A
comparison of two runs starts with it.

Unknown values are None; a node's record contains only what was seen on the node.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import Any, Dict, List, Optional, Set, TypedDict

from ..devices.measured import GpuIdentity
from ..system.bounded import ReportPipe, call
from ..system.host import Host
from ..devices.nvml import DriverError, Nvml
from .cgroup import ControlGroup, NoGroup, pod_of
from ...times import stamp_of

SCHEMA = "autopilot.gpu/usage-record"
SCHEMA_VERSION = 1

#: Deadline of the driver in seconds.
_DRIVER_SECONDS = 20.0
#: Maximum seconds and bytes for reading a throughput from the end of a log.
_LOG_SECONDS, _LOG_BYTES = 30.0, 64 * 1024 * 1024
_MOST_COMMAND = 2000
#: Command line words that precede a secret.
_SECRET = re.compile(
    r"((?:password|passwd|secret|token|api[-_]?key|access[-_]?key)[A-Za-z0-9_-]*(?:=|:|\s+))\S+",
    re.IGNORECASE,
)
#: Environment variables of a job about its GPUs and scheduler; no others are read.
_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_SCHEDULERS = {"SLURM_JOB_ID": "slurm", "LSB_JOBID": "lsf"}
#: Daemons that identify the scheduler of the node.
_DAEMONS = {"kubelet": "kubernetes", "slurmd": "slurm", "sbatchd": "lsf", "lim": "lsf"}


class CaptureSettings(TypedDict):
    name: str
    #: Seconds between two samples, and maximum seconds and bytes of a capture.
    interval: float
    duration: int
    max_bytes: int
    host_root: str
    nvml_library: Optional[str]
    #: Identifies the job for `ControlGroup`.
    job: Optional[Dict[str, Any]]


def gather(settings: CaptureSettings, declared: Dict[str, Any], taken: float) -> Dict[str, Any]:
    """The record at the start of a capture; ``taken`` in seconds since the epoch."""
    host = Host(settings["host_root"])
    job, environment = _job(host, settings["job"])
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "name": settings["name"],
        "hostname": socket.gethostname(),
        "started": stamp_of(taken),
        "platform": _platform(host, job, environment),
        "node": _node(host),
        "gpus": _gpus(settings, host),
        "job": job,
        "declared": declared,
    }


def throughput(log: str, pattern: str) -> Dict[str, Any]:
    """The job's throughput from its log: ``{"values", "mean", "median", "last"}`` of the pattern's
    first group, or ``error``.

    Bounded, since the log's mount may hang and a pattern may never end.
    """

    def read(report: ReportPipe) -> None:
        report.stage(f"reading {log}")
        with open(log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_BYTES))
            text = stream.read(_LOG_BYTES).decode("utf-8", "replace")
        report.stage(f"looking for {pattern!r} in {log}")
        values = []
        for found in re.finditer(pattern, text, re.MULTILINE):
            with contextlib.suppress(ValueError, TypeError):
                values.append(float(found.group(1)))
        if values:
            middle = sorted(values)[len(values) // 2]
            report.send(
                "found",
                {
                    "values": len(values),
                    "mean": sum(values) / len(values),
                    "median": middle,
                    "last": values[-1],
                },
            )
        else:
            report.send(
                "found", {"values": 0, "error": f"no number where {pattern!r} matches in {log}"}
            )

    child = call(read, _LOG_SECONDS, 0.5)
    mishap = child.mishap()
    if "found" in child.values:
        return dict(child.values["found"])
    words = (
        f"{mishap['hung']['what']} took more than {_LOG_SECONDS:.0f} s"
        if "hung" in mishap
        else (mishap.get("crashed") or {}).get("raised")
    )
    return {"values": 0, "error": str(words)}


def _node(host: Host) -> Dict[str, Any]:
    packages: Set[str] = set()
    cpus = [
        name for name in host.names("sys/devices/system/cpu") or [] if re.match(r"^cpu\d+$", name)
    ]
    cores = set()
    for name in cpus:
        package = host.text("sys/devices/system/cpu", name, "topology/physical_package_id")
        core = host.text("sys/devices/system/cpu", name, "topology/core_id")
        if package is not None:
            packages.add(package)
            cores.add((package, core))
    memory = re.search(r"^MemTotal:\s+(\d+)", host.text("proc/meminfo") or "", re.MULTILINE)
    system = dict(
        re.findall(r'^(\w+)="?([^"\n]*)', host.text("etc/os-release") or "", re.MULTILINE)
    )
    model = host.text("sys/class/dmi/id/product_name") or (
        host.text("proc/device-tree/model") or ""
    ).rstrip("\0")
    return {
        "model": model or None,
        "cpu_model": host.cpu_model(),
        "cpus": host.online_processors() or None,
        "sockets": len(packages) or None,
        "cores": len(cores) or None,
        "memory": int(memory.group(1)) * 1024 if memory else None,
        "kernel": host.text("proc/sys/kernel/osrelease"),
        "system": system.get("PRETTY_NAME"),
        "boot_id": host.boot_id(),
    }


def _platform(host: Host, job: Dict[str, Any], environment: Dict[str, str]) -> Dict[str, Any]:
    """The scheduler of the node: ``kind`` is ``openshift``, ``kubernetes``, ``slurm``, ``lsf`` or
    ``bare``; ``by`` is the evidence.
    """
    system = host.text("etc/os-release") or ""
    for key, kind in _SCHEDULERS.items():
        if environment.get(key):
            return {"kind": kind, "by": f"{key} of the job"}
    running = {process.name for process in host.processes().values()}
    daemon = next((name for name in _DAEMONS if name in running), None)
    kind = _DAEMONS[daemon] if daemon else ""
    by = f"the process {daemon}" if daemon else ""
    if job.get("pod"):
        kind, by = "kubernetes", "the job is a pod"
    if kind == "kubernetes" and re.search(
        r"^(OPENSHIFT_VERSION=|ID=\"?rhcos)", system, re.MULTILINE
    ):
        return {"kind": "openshift", "by": "etc/os-release"}
    return {"kind": kind or "bare", "by": by or "no kubelet, slurmd or sbatchd runs"}


def _job(host: Host, job: Optional[Dict[str, Any]]) -> Any:
    """The job from its control group, and the relevant variables of its first process."""
    if not job:
        return {"given": None}, {}
    try:
        group = ControlGroup(host, job)
    except NoGroup as reason:
        return {"given": job, "error": str(reason)}, {}
    pids = [int(job["pid"])] if job.get("pid") is not None else sorted(group.pids())
    environment = _environment(host, pids)
    own = {
        "given": job,
        "cgroup": group.path,
        "version": group.version,
        "pod": pod_of(group.path),
        "limits": group.limits(),
        "visible": {name: environment[name] for name in _VISIBLE if name in environment},
        "command": _command(host, pids),
    }
    return own, environment


def _environment(host: Host, pids: List[int]) -> Dict[str, str]:
    """The relevant variables of the first process that has any."""
    for pid in pids[:64]:
        rows = [
            row.partition("=") for row in (host.text("proc", str(pid), "environ") or "").split("\0")
        ]
        found = {
            name: value for name, _equals, value in rows if name in _VISIBLE or name in _SCHEDULERS
        }
        if found:
            return found
    return {}


def _command(host: Host, pids: List[int]) -> Optional[str]:
    for pid in pids[:64]:
        words = (host.text("proc", str(pid), "cmdline") or "").rstrip("\0").split("\0")
        # The first process of a container often only holds its namespaces.
        if words != [""] and os.path.basename(words[0]) not in ("pause", "tini", "dumb-init"):
            return _SECRET.sub(r"\1***", " ".join(words))[:_MOST_COMMAND]
    return None


def _gpus(settings: CaptureSettings, host: Host) -> Dict[str, Any]:
    """``{"list": [{"index", "uuid", "pci", "name", "memory", "power_limit", "mig"}],
    "driver_version", "cuda_version"}``, or ``error`` with what was read.
    """

    def read(report: ReportPipe) -> None:
        try:
            nvml = Nvml(host, settings["nvml_library"], report.stage)
            report.send("driver_version", nvml.driver_version)
            report.send("list", [_gpu(nvml, gpu) for gpu in nvml.gpus])
            report.send("cuda_version", _cuda(nvml))
            nvml.close()
        except DriverError as error:
            report.send("error", str(error))

    child = call(read, _DRIVER_SECONDS, 0.5)
    found = {"list": [], "driver_version": None, "cuda_version": None, **child.values}
    mishap = child.mishap()
    if mishap and "error" not in found:
        found["error"] = (
            f"{child.stage} hung for {child.stage_seconds:.0f} s"
            if "hung" in mishap
            else f"{child.stage}: {mishap['crashed']['raised']}"
        )
    return found


def _gpu(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    own = {name: gpu.get(name) for name in ("index", "uuid", "pci", "name")}
    if gpu.get("error"):
        return dict(own, error=gpu["error"])
    try:
        memory = nvml.optional(gpu, "nvmlDeviceGetMemoryInfo")
        limit = nvml.optional(gpu, "nvmlDeviceGetEnforcedPowerLimit")
        mig = nvml.optional(gpu, "nvmlDeviceGetMigMode")
    except DriverError as error:
        return dict(own, error=error.to_dict())
    own.update(
        memory=memory.total if memory else None,
        power_limit=limit / 1000 if limit else None,
        mig=bool(mig[0]) if mig else None,
    )
    return own


def _cuda(nvml: Any) -> Optional[str]:
    """The newest CUDA version that the driver supports, such as ``13.0``."""
    try:
        version = nvml.binding.nvmlSystemGetCudaDriverVersion_v2()
    except (AttributeError, nvml.binding.NVMLError):
        return None
    return f"{version // 1000}.{version % 1000 // 10}"
