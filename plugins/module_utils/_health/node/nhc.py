# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Convert a configuration file of Node Health Check (NHC, also Azure's AzNHC) to options of our
checks. Pure.

Lines are ``<hostmask> || <check>``: NHC's README, "Configuration File Syntax" and "Match Strings",
and scripts/common.nhc. The meaning of LBNL NHC's checks is from its scripts, of AzNHC's checks from
its customTests. Every part of a line without an equivalent is reported.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

#: POSIX character classes, which Python's regular expressions lack.
_CLASSES = {
    "digit": "0-9",
    "alpha": "A-Za-z",
    "alnum": "A-Za-z0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
}
_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
#: Seconds of log that AzNHC's check_gpu_xid reads.
XID_SECONDS = 7200.0
_GIB = float(1 << 30)


class NotTaken(Exception):
    """The reason why a line has no equivalent."""


class Taken:
    """The options converted from a file for a host."""

    def __init__(self) -> None:
        self.checks: List[str] = []
        self.options: Dict[str, Dict[str, Any]] = {}
        self.expected_gpus: Optional[int] = None
        #: Lines of the file as ``{"line": number, "text": ..., "reason": ...}``: lines without an
        #: equivalent, and lines that another rule judges.
        self.not_taken: List[Dict[str, Any]] = []
        self.differences: List[Dict[str, Any]] = []
        #: Number of lines that apply to the host.
        self.lines = 0

    def check(self, name: str, **options: Any) -> None:
        if name not in self.checks:
            self.checks.append(name)
        if options:
            self.options.setdefault(name, {}).update(options)

    def to_dict(self) -> Dict[str, Any]:
        return {
            "checks_list": self.checks,
            "checks_options": self.options,
            "expected_gpus": self.expected_gpus,
            "not_taken": self.not_taken,
            "differences": self.differences,
            "lines": self.lines,
        }


#: Lines that only hosts with AMD GPUs have (azurehpc-health-checks, nd96asr_mi200_v4.conf and
#: nd96isr_mi300x_v5.conf), and those about GPUs.
_FOR_AMD = re.compile(r"^check_gpu_count\s+\S+\s+rocm\b|^check_(rccl|gpu_xgmi)")
_OF_GPUS = re.compile(r"^check_(gpu|cuda|nv|rccl|nccl)")


class _Line(NamedTuple):
    number: int
    mask: str
    check: str


def read(text: str, host: Optional[str] = None) -> Taken:
    """Convert the lines for a host, matched by its full and its short name; without a host, all
    lines. Raises ValueError for text without any NHC line.
    """
    lines = _lines(text)
    if not lines and any(
        line.strip() and not line.strip().startswith("#") for line in text.splitlines()
    ):
        raise ValueError("no line has the form '<hostmask> || <check>' of an NHC configuration")
    taken = Taken()
    variables: Dict[str, str] = {}
    for_amd = any(_FOR_AMD.search(line.check) and _applies(line, host) for line in lines)
    for line in lines:
        where = {"line": line.number, "text": f"{line.mask} || {line.check}"}
        try:
            if host is not None and not matches(line.mask, host):
                continue
            taken.lines += 1
            if for_amd and _OF_GPUS.match(line.check):
                raise NotTaken("the file has AMD GPUs for this host, which no check reads")
            difference = _take(line.check, taken, variables)
        except NotTaken as reason:
            taken.not_taken.append({**where, "reason": str(reason)})
        else:
            if difference:
                taken.differences.append({**where, "reason": difference})
    return taken


def _applies(line: _Line, host: Optional[str]) -> bool:
    """True if the line applies to the host, or no host is given; an invalid mask applies to none."""
    try:
        return host is None or matches(line.mask, host)
    except NotTaken:
        return False


def _lines(text: str) -> List[_Line]:
    """Parse lines as NHC does: a line that begins with # is a comment, the mask ends at the first
    ``||``.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        mask, bars, check = line.strip().partition("||")
        if bars and mask.strip() and check.strip() and not mask.strip().startswith("#"):
            found.append(_Line(number, mask.strip(), check.strip()))
    return found


def matches(mask: str, host: str) -> bool:
    """True if a mask matches a host: ``glob``, ``/expression/`` or ``{range,range}``, each negated
    by a leading ``!``. Raises `NotTaken` for an invalid mask. NHC uses the kernel's host name,
    which may be the full or the short one.
    """
    negated, mask = mask.startswith("!"), mask[1:] if mask.startswith("!") else mask
    names = {host, host.partition(".")[0]}
    if len(mask) > 1 and mask[0] == mask[-1] == "/":
        pattern = re.sub(
            r"\[:([a-z]+):\]",
            lambda found: _CLASSES.get(found.group(1), found.group(0)),
            mask[1:-1],
        )
        try:
            hit = any(re.search(pattern, name) for name in names)
        except re.error as error:
            raise NotTaken(f"the hostmask {mask} is not a valid expression: {error}") from None
    elif mask.startswith("{") and mask.endswith("}"):
        hit = any(_in_range(name, part) for part in mask[1:-1].split(",") for name in names)
    elif len(mask) > 1 and mask[0] == mask[-1] and mask[0] in "%@&":
        raise NotTaken(f"the hostmask {mask} is for one of NHC's programs, which is not run here")
    else:
        hit = any(fnmatch.fnmatchcase(name, mask.replace("[^", "[!")) for name in names)
    return hit != negated


def _in_range(name: str, part: str) -> bool:
    """Match ``n0[10-21].phys``: the number has as many digits as the longer bound."""
    found = re.match(r"^([-A-Za-z0-9_]+)\[([0-9]+)-([0-9]+)\]([-.A-Za-z0-9]*)$", part)
    if not found:
        if not re.match(r"^[-A-Za-z0-9_.]+$", part):
            raise NotTaken(f"the hostmask has {part!r}, which is not a range")
        return name == part
    prefix, first, last, suffix = found.groups()
    number = name[len(prefix) : len(name) - len(suffix)]
    if not (
        name.startswith(prefix)
        and name.endswith(suffix)
        and number.isdecimal()
        and len(number) == max(len(first), len(last))
    ):
        return False
    return min(int(first), int(last)) <= int(number) <= max(int(first), int(last))


# ---- checks ----


def _take(check: str, taken: Taken, variables: Dict[str, str]) -> str:
    """Convert a check; returns a note if the check is judged by another rule here. Raises
    `NotTaken`.
    """
    check = _VARIABLE.sub(
        lambda found: _value_of(found.group(1) or found.group(2), variables), check
    )
    try:
        words = shlex.split(check, comments=True)
    except ValueError as error:
        raise NotTaken(f"the line cannot be parsed: {error}") from None
    if not words:
        raise NotTaken("the line has no check")
    assigned = _ASSIGNMENT.match(" ".join(words))
    if assigned:
        variables[assigned.group(1)] = assigned.group(2)
        raise NotTaken("an NHC variable; later lines that use it have its value")
    if any(re.match(r"^(\|\|?|&&?|;|[0-9]*[<>].*|.*;)$", word) for word in words[1:]) or re.search(
        r"[`$]", check
    ):
        raise NotTaken("a shell command, not a check")
    name, arguments = words[0], words[1:]
    if name not in _CHECKS:
        raise NotTaken(_WITHOUT.get(name) or f"{name} has no equivalent")
    return _CHECKS[name](arguments, taken)


def _value_of(name: str, variables: Dict[str, str]) -> str:
    if name not in variables:
        raise NotTaken(f"variable {name} is not set by an earlier line")
    return variables[name]


def _number(
    words: Sequence[str], position: int, what: str, default: Optional[float] = None
) -> float:
    if position >= len(words) and default is not None:
        return default
    try:
        number = float(words[position])
    except (IndexError, ValueError):
        raise NotTaken(f"{what} is missing or not a number") from None
    if not 0 <= number < 1e15:
        raise NotTaken(f"{what} is {words[position]}, expected a number from 0")
    return int(number) if number == int(number) else number


def kilobytes(text: str) -> float:
    """Parse a size as NHC does (nhc_common_parse_size): the default unit is kB of 1024 bytes.
    Raises `NotTaken`.
    """
    found = re.match(r"^([0-9]+)([kmgtpe]?)b?$", text, re.IGNORECASE)
    if not found:
        raise NotTaken(f"{text!r} is not a size")
    return int(found.group(1)) * 1024.0 ** " kmgtpe".index(found.group(2).lower() or "k") / 1024.0


def at_least(minimum: str, fudge: str = "") -> float:
    """The lowest size in bytes that passes NHC: ``actual + fudge >= minimum``; a fudge in percent
    is relative to the actual size.
    """
    least = kilobytes(minimum)
    least = (
        least / (1 + _percent(fudge) / 100)
        if fudge.endswith("%")
        else least - (kilobytes(fudge) if fudge else 0.0)
    )
    return max(least, 0.0) * 1024


def at_most(maximum: str, fudge: str = "") -> float:
    """The highest size in bytes that passes NHC: ``actual - fudge <= maximum``."""
    most = kilobytes(maximum)
    if fudge.endswith("%"):
        share = 1 - _percent(fudge) / 100
        return most * 1024 / share if share > 0 else float("inf")
    return (most + (kilobytes(fudge) if fudge else 0.0)) * 1024


def _percent(fudge: str) -> float:
    if not re.match(r"^[0-9]+%$", fudge):
        raise NotTaken(f"{fudge!r} is not a share")
    return int(fudge[:-1])


def _gpu_count(words: Sequence[str], taken: Taken) -> str:
    taken.expected_gpus = int(_number(words, 0, "the number of GPUs"))
    taken.check("gpu_count")
    return ""


def _bandwidth(words: Sequence[str], taken: Taken) -> str:
    minimum = _number(words, 0, "the bandwidth between host and GPU")
    between = _number(words, 1, "the bandwidth between GPUs", default=0.0)
    # Both nvbandwidth and this collection use GB/s of 10^9 bytes.
    taken.check("pcie_bandwidth", minimum=float(minimum))
    if between:
        taken.check("gpu_link", minimum=float(between))
    return "AzNHC warns up to 1.05 times the limit; here the limit itself passes"


def _ecc(words: Sequence[str], taken: Taken) -> str:
    options = {}
    if words:
        options["dram_corrected_limit"] = int(
            _number(words, 0, "the limit of corrected errors of DRAM")
        )
    if len(words) > 1:
        options["sram_corrected_limit"] = int(
            _number(words, 1, "the limit of corrected errors of SRAM")
        )
    taken.check("ecc_errors", **options)
    taken.check("remapped_rows")
    return (
        "more corrected errors than the limits warn here; uncorrectable errors are judged by "
        "NVIDIA's own flags"
    )


def _xid(_words: Sequence[str], taken: Taken) -> str:
    taken.check("xid_errors", since=XID_SECONDS)
    return "Xids are judged by NVIDIA's catalogue, not by AzNHC's list"


def _infiniband(words: Sequence[str], taken: Taken) -> str:
    rate = float(_number(words, 0, "the rate"))
    if len(words) > 1:
        ports = dict(taken.options.get("infiniband", {}).get("ports") or {})
        ports[words[1]] = rate
        taken.check("infiniband", ports=ports)
    else:
        taken.check("infiniband", minimum_rate_gbps=rate, expected_ports=1)
    return "NHC expects exactly this rate; here it is the minimum"


def _ethernet(words: Sequence[str], taken: Taken) -> str:
    if not words:
        raise NotTaken("the interface is missing")
    listed = list(taken.options.get("ethernet", {}).get("present_interfaces") or [])
    added = [word for word in words[:1] if word not in listed]
    taken.check("ethernet", present_interfaces=listed + added)
    return ""


def _flapping(words: Sequence[str], taken: Taken) -> str:
    taken.check("infiniband")
    return "the number of link losses is not an option here" + (
        f", {words[0]} times in AzNHC" if words else ""
    )


def _mounted(words: Sequence[str], taken: Taken) -> str:
    """``check_fs_mount[_rw] [-r|-R] [-t type] [-s source] [-o options] [-O options] [-e action] [-E
    action] [-f] mount_point ...``, or ``mount_point source type options``.
    """
    given: Dict[str, List[str]] = {}
    plain: List[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word in ("-s", "-t", "-o", "-O", "-e", "-E", "-f", "-F") and position + 1 < len(words):
            given.setdefault(word, []).append(words[position + 1])
            position += 2
            continue
        plain += [] if word.startswith("-") else [word]
        position += 1
    points = given.get("-f", []) + given.get("-F", []) + (plain if given else plain[:1])
    source = (given.get("-s") or plain[1:2] or [""])[0] if not given or "-s" in given else ""
    server, colon, path = source.partition(":")
    if not points or not all(re.match(r"^/[^*?\[{]*$", point) for point in points):
        raise NotTaken("the mount point is missing or a pattern")
    if (
        colon
        and path.startswith("/")
        and len(points) == 1
        and "/" not in server
        and not re.search(r"[*?\[{]", source)
    ):
        listed = list(taken.options.get("nfs_mounts", {}).get("mounts") or [])
        taken.check(
            "nfs_mounts",
            mounts=[*listed, {"server": server, "path": path, "mount_point": points[0]}],
        )
        return "mount options are not checked"
    paths = list(taken.options.get("storage", {}).get("paths") or [])
    taken.check("storage", paths=paths + [point for point in points if point not in paths])
    return "the path must be mounted and writable; source, type and mount options are not checked"


def _nvme(words: Sequence[str], taken: Taken) -> str:
    taken.check("storage", expected_nvme_disks=int(_number(words, 0, "the number of disks")))
    return ""


def _cpus(words: Sequence[str], taken: Taken) -> str:
    names = ("sockets", "cores", "threads")
    counts = {
        name: int(_number(words, place, f"the number of {name}"))
        for place, name in enumerate(names[: len(words)])
    }
    # As in nd128isr_ndr_gb200_v6.conf: 128 of each, on two sockets.
    if len(counts) == len(names) and len(set(counts.values())) == 1:
        taken.check("memory_and_cpu", threads=counts["threads"])
        return (
            "NHC counts each processor as a socket where /proc/cpuinfo names no socket, as on Arm; "
            "only the threads are checked"
        )
    taken.check("memory_and_cpu", **counts)
    return ""


def _memory(words: Sequence[str], taken: Taken) -> str:
    """``check_hw_physmem minimum [maximum] [fudge]``."""
    if not words:
        raise NotTaken("the size is missing")
    taken.check(
        "memory_and_cpu",
        minimum_memory_gib=round(at_least(words[0], words[2] if len(words) > 2 else "") / _GIB, 2),
    )
    return "more memory than the maximum is not a finding here" if len(words) > 1 else ""


def _swap(words: Sequence[str], taken: Taken) -> str:
    """``check_hw_swap minimum [maximum] [fudge]``."""
    if len(words) < 2:
        raise NotTaken("no check has a minimum of swap space")
    least = kilobytes(words[0])
    most = at_most(words[1], words[2] if len(words) > 2 else "") / _GIB
    if most == float("inf"):
        raise NotTaken("the fudge accepts every value")
    taken.check("memory_and_cpu", maximum_swap_gib=round(most, 2))
    return "less swap space than the minimum is not a finding here" if least else ""


def _only(name: str, difference: str = "") -> Callable[[Sequence[str], Taken], str]:
    def take(_words: Sequence[str], taken: Taken) -> str:
        taken.check(name)
        return difference

    return take


_CHECKS: Dict[str, Callable[[Sequence[str], Taken], str]] = {
    "check_gpu_count": _gpu_count,
    "check_gpu_bw": _bandwidth,
    "check_cuda_bw": _bandwidth,
    "check_gpu_ecc": _ecc,
    "check_gpu_xid": _xid,
    "check_hw_cpuinfo": _cpus,
    "check_hw_physmem": _memory,
    "check_hw_swap": _swap,
    "check_hw_ib": _infiniband,
    "check_hw_eth": _ethernet,
    "check_ib_link_flapping": _flapping,
    "check_fs_mount": _mounted,
    "check_fs_mount_rw": _mounted,
    "check_nvme_count": _nvme,
    "check_gpu_clock_throttling": _only(
        "gpu_power", "AzNHC only logs throttling; here it is judged"
    ),
    "check_nvsmi_healthmon": _only(
        "driver", "nvidia-smi's exit status is replaced by the driver's own values"
    ),
    "check_nv_healthmon": _only(
        "driver", "nvidia-healthmon is replaced by the driver's own values"
    ),
    "check_nvlink_status": _only(
        "nvlink", "links are judged by the GPU model, so cards without a bridge pass"
    ),
}

#: Reasons why the other checks of AzNHC have no equivalent.
_WITHOUT: Dict[str, str] = {
    "check_nccl_allreduce": "no check runs NCCL; gpu_link measures between the GPUs of a "
    "node, and iperf3_pairs between nodes",
    "check_nccl_allreduce_ib_loopback": "no check runs NCCL",
    "check_ib_bw_gdr": "no check of a single node measures RDMA bandwidth; rdma_pairs of "
    "the mesh does, between nodes",
    "check_ib_bw_non_gdr": "no check of a single node measures RDMA bandwidth; rdma_pairs of "
    "the mesh does, between nodes",
    "check_hw_topology": "no check reads a topology file; pcie_bandwidth shows GPUs with "
    "another topology",
}
