# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The agent's settings: environment variables only, read once at the start. The role agent validates
them by the same code.
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import dataclass
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple, TypeVar

from ..node import registry
from ..cluster import mark_states
from ..cluster.agents_without_dcgm import LEFT_OUT
from ..knowledge.cluster import AUDIENCE, WORK

#: Stands for every check that a node can run alone, and network checks that disturb no job.
ALL = "all"
#: Load the network of two nodes; run only on request, or only in the role mesh.
_NOT_PERIODIC = ("iperf3_pairs", "rdma_pairs")
_CLAIM = "volume_claim"

_DIAGNOSTIC = "dcgm_diag"
#: Defaults: periodic checks without DCGM, the check that DCGM adds, and with DCGM the seconds
#: between deep diagnostics.
DEFAULT_CHECKS = "gpu_count,remapped_rows,gpu_power,pcie_bandwidth,ping_mesh"
WITH_DCGM = f",{_DIAGNOSTIC}"
DEFAULT_INVASIVE_SECONDS = 14400.0
DEFAULT_FATAL = "PCIe,NVLink,ECC,GPU Memory"
DEFAULT_LABEL = "autopilot.ibm.com/gpuhealth"
TAINTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
LOG_LEVELS = ("debug", "info", "warning", "error")
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_DNS = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_ADDRESS = r"[0-9A-Fa-f:.]+"
#: Default of AUTOPILOT_AUTH, and accepted values.
_AUTH = ("required", ("required", "off"))
#: Variable -> accepted values, for error messages.
_ACCEPTED = {
    "NODE_NAME": "the name of the node (spec.nodeName by the downward API)",
    "NAMESPACE": "the name of a namespace (metadata.namespace by the downward API)",
    "POD_NAME": "the name of the agent's pod (metadata.name by the downward API)",
    "POD_IP": "the pod's address (status.podIP by the downward API)",
    "PVC_TEST_STORAGE_CLASS": "the name of a storage class, or nothing",
    "AUTOPILOT_BIND": "an address to listen on, such as 0.0.0.0 or ::",
    "AUTOPILOT_REPEAT_SECONDS": "seconds, 1 or more",
    "AUTOPILOT_INVASIVE_SECONDS": "seconds, or 0 for never",
    "AUTOPILOT_DEEP_LEVEL": "a run level of DCGM, 1 to 4",
    "AUTOPILOT_PCIE_MINIMUM": "GB/s, more than 0, or nothing for the table of links",
    "AUTOPILOT_EXPECTED_GPUS": "how many GPUs each node has, 1 or more, or nothing",
    "AUTOPILOT_MAX_BAD_SHARE": "a share of the nodes, 0 to 1",
    "AUTOPILOT_SERVICE": "the name of a Service",
    "AUTOPILOT_API_SERVER": "the API server's URL such as https://10.0.0.1:6443; in a pod it may "
    "be left out",
    "AUTOPILOT_HOST_ROOT": "the path where the host's root file system is mounted",
}

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class AgentSettings:
    """Every setting with its meaning and unit; `from_environment` names the variables."""

    #: Names of this node, and of the agent's namespace and pod; the pod's name and address are ""
    #: outside a cluster.
    node: str
    namespace: str
    pod: str
    pod_ip: str
    #: Namespace of the pods that reserve GPUs and of the volume claims.
    work_namespace: str
    #: Address and ports to listen on: requests, metrics, readiness.
    bind: str
    port: int
    metrics_port: int
    readiness_port: int
    #: Whether dcgmi is on the PATH, and what the defaults leave out without dcgmi (keys of
    #: `_health.cluster.agents_without_dcgm.LEFT_OUT`).
    has_dcgmi: bool
    left_out: Tuple[str, ...]
    #: Names of checks (`_health.node.registry.NAMES`) of each periodic pass.
    periodic_checks: Tuple[str, ...]
    #: Seconds between periodic passes, and between deep diagnostics (0: never).
    repeat_seconds: float
    invasive_seconds: float
    #: Whether the agent may reserve the GPUs of its node with a pod.
    reserve_gpus: bool
    #: DCGM's run level of the deep diagnostic, and the words that make a failed test fatal.
    deep_level: int
    fatal_errors: Tuple[str, ...]
    #: Storage class of the claim to test; "" for none.
    storage_class: str
    #: Minimum bandwidth of a GPU's host link in GB/s; None: the core's table.
    pcie_minimum: Optional[float]
    expected_gpus: Optional[int]
    mark_nodes: bool
    label_key: str
    #: Effect of the taint on EVICT nodes; "" for no taint.
    taint: str
    #: Whether unfit nodes get a NoSchedule taint, within the share.
    taint_unfit: bool
    cordon: bool
    condition: bool
    #: Maximum share of GPU nodes that may be EVICT or tainted as unfit at the same time, 0 to 1.
    max_bad_share: float
    #: The ClusterQueue whose lending limits follow the marks; "" for none.
    slack_queue: str
    auth_required: bool
    open_metrics: bool
    #: Agents asked at once.
    fanout: int
    service: str
    #: Audience of callers' tokens; "": the API server's own.
    audience: str
    #: Directory with tls.crt, tls.key and ca.crt, as a Secret has them; "": no TLS.
    tls_dir: str
    #: File with this agent's token for the other agents; "" outside a cluster.
    peer_token_file: str
    api_server: str
    api_ca: str
    api_token_file: str
    log_level: str
    nvml_library: Optional[str]
    host_root: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "AgentSettings":
        """Raises ValueError with the variable, its value and what is accepted."""
        read = _EnvironmentReader(environ)
        has_dcgmi = shutil.which("dcgmi", path=environ.get("PATH", "")) is not None
        storage_class = read.matching("PVC_TEST_STORAGE_CLASS", "", _DNS)
        reserve_gpus = read.flag("AUTOPILOT_RESERVE_GPUS", True)
        invasive_seconds = read.number(
            "AUTOPILOT_INVASIVE_SECONDS",
            DEFAULT_INVASIVE_SECONDS if has_dcgmi and reserve_gpus else 0.0,
            0.0,
        )
        if invasive_seconds and not reserve_gpus:
            raise _refused(
                "AUTOPILOT_INVASIVE_SECONDS",
                environ["AUTOPILOT_INVASIVE_SECONDS"],
                "0 while AUTOPILOT_RESERVE_GPUS is false, since a deep diagnostic reserves the GPUs",
            )
        return cls(
            node=read.matching("NODE_NAME", None, _DNS),
            namespace=read.matching("NAMESPACE", None, _DNS),
            pod=read.matching("POD_NAME", "", _DNS),
            pod_ip=read.matching("POD_IP", "", _ADDRESS),
            work_namespace=read.matching("NAMESPACE", None, _DNS) + WORK,
            bind=read.matching("AUTOPILOT_BIND", "0.0.0.0", _ADDRESS),
            port=read.port("AUTOPILOT_PORT", 3333),
            metrics_port=read.port("AUTOPILOT_METRICS_PORT", 8081),
            readiness_port=read.port("AUTOPILOT_READINESS_PORT", 8080),
            has_dcgmi=has_dcgmi,
            left_out=() if has_dcgmi else _left_out(read),
            periodic_checks=_periodic_checks(read, storage_class, has_dcgmi),
            repeat_seconds=read.number("AUTOPILOT_REPEAT_SECONDS", 3600.0, 1.0),
            invasive_seconds=invasive_seconds,
            reserve_gpus=reserve_gpus,
            deep_level=int(read.matching("AUTOPILOT_DEEP_LEVEL", "3", "[1-4]")),
            fatal_errors=read.words("DCGM_FATAL_ERRORS", DEFAULT_FATAL),
            storage_class=storage_class,
            pcie_minimum=read.optional_number("AUTOPILOT_PCIE_MINIMUM"),
            expected_gpus=read.optional_whole("AUTOPILOT_EXPECTED_GPUS"),
            mark_nodes=read.flag("AUTOPILOT_MARK_NODES", True),
            label_key=read.parsed("AUTOPILOT_LABEL_KEY", DEFAULT_LABEL, _label_key),
            taint=read.one_of("AUTOPILOT_TAINT", "", ("",) + TAINTS),
            taint_unfit=read.flag("AUTOPILOT_TAINT_UNFIT", False),
            cordon=read.flag("AUTOPILOT_CORDON", False),
            condition=read.flag("AUTOPILOT_CONDITION", True),
            max_bad_share=read.number("AUTOPILOT_MAX_BAD_SHARE", 0.1, 0.0, 1.0),
            slack_queue=read.matching("AUTOPILOT_SLACK_QUEUE", "", _DNS),
            auth_required=read.one_of("AUTOPILOT_AUTH", *_AUTH) == "required",
            open_metrics=read.flag("AUTOPILOT_OPEN_METRICS", True),
            fanout=read.whole("AUTOPILOT_FANOUT", 32, 1, 1024),
            service=read.matching("AUTOPILOT_SERVICE", "autopilot-healthchecks", _DNS),
            audience=read.text("AUTOPILOT_AUDIENCE", AUDIENCE),
            tls_dir=read.text("AUTOPILOT_TLS_DIR", ""),
            peer_token_file=read.text("AUTOPILOT_PEER_TOKEN_FILE", ""),
            api_server=read.api_server(),
            api_ca=read.text("AUTOPILOT_API_CA", f"{_ACCOUNT}/ca.crt"),
            api_token_file=read.text("AUTOPILOT_API_TOKEN_FILE", f"{_ACCOUNT}/token"),
            log_level=read.one_of("AUTOPILOT_LOG_LEVEL", "info", LOG_LEVELS),
            nvml_library=read.text("AUTOPILOT_NVML_LIBRARY", "") or None,
            host_root=read.matching("AUTOPILOT_HOST_ROOT", "/", "/.*"),
        )


#: The variables that only a pod has.
_OF_POD = {
    "NODE_NAME": "node",
    "NAMESPACE": "autopilot",
    "AUTOPILOT_API_SERVER": "https://kubernetes.default.svc",
}
#: Variable -> another one on which the accepted values depend.
_DEPENDS_ON = {
    "PERIODIC_CHECKS": "PVC_TEST_STORAGE_CLASS",
    "AUTOPILOT_INVASIVE_SECONDS": "AUTOPILOT_RESERVE_GPUS",
}


def problems_of(environ: Mapping[str, str]) -> Dict[str, str]:
    """By variable of the environment, why an agent would refuse to start with its value."""
    found: Dict[str, str] = {}
    for name in sorted(environ, key=_DEPENDS_ON.__contains__):
        other = _DEPENDS_ON.get(name, "")
        if other in found:
            continue
        given = {key: environ[key] for key in (name, other) if key in environ}
        try:
            AgentSettings.from_environment({**_OF_POD, **given})
        except ValueError as error:
            found[name] = str(error)
    return found


class _EnvironmentReader:
    """Reads variables one by one, with what each accepts."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str, default: str) -> str:
        value = self._environ.get(name, default).strip()
        if not value.isprintable():
            raise _refused(name, value, "printable characters")
        return value

    def matching(self, name: str, default: Optional[str], pattern: str) -> str:
        """Text that the pattern matches in full; required without a default, may be empty with the
        default "".
        """
        value = self.text(name, default or "")
        if (value or default != "") and not re.fullmatch(pattern, value):
            raise _refused(name, value, _ACCEPTED[name])
        return value

    def one_of(self, name: str, default: str, accepted: Tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in accepted:
            raise _refused(name, value, ", ".join(word or "nothing" for word in accepted))
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of(name, "true" if default else "false", ("true", "false")) == "true"

    def number(self, name: str, default: float, least: float, most: float = math.inf) -> float:
        text = self.text(name, "")
        return _number(name, text, least, most) if text else default

    def optional_number(self, name: str) -> Optional[float]:
        text = self.text(name, "")
        value = _number(name, text, 0.0, math.inf) if text else None
        if value == 0:
            raise _refused(name, text, _ACCEPTED[name])
        return value

    def optional_whole(self, name: str) -> Optional[int]:
        text = self.text(name, "")
        if text and not re.fullmatch(r"[1-9][0-9]{0,3}", text):
            raise _refused(name, text, _ACCEPTED[name])
        return int(text) if text else None

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name, "") or str(default)
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise _refused(name, text, f"a whole number from {least} to {most}")
        return int(text)

    def port(self, name: str, default: int) -> int:
        return self.whole(name, default, 1, 65535)

    def words(self, name: str, default: str) -> Tuple[str, ...]:
        return tuple(word.strip() for word in self.text(name, default).split(",") if word.strip())

    def parsed(self, name: str, default: str, parse: Callable[[str], _Value]) -> _Value:
        text = self.text(name, "") or default
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def api_server(self) -> str:
        """AUTOPILOT_API_SERVER, or the API server's address in the pod's environment."""
        host, port = (
            self.text("KUBERNETES_SERVICE_HOST", ""),
            self.text("KUBERNETES_SERVICE_PORT", "443"),
        )
        inside = (
            f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}" if host else ""
        )
        value = self.text("AUTOPILOT_API_SERVER", inside)
        if not re.fullmatch(r"https?://[^/?#@\s]+/?", value):
            name = "AUTOPILOT_API_SERVER"
            raise _refused(name, value, _ACCEPTED[name])
        return value.rstrip("/")


def _refused(name: str, value: object, accepted: str) -> ValueError:
    return ValueError(f"{name}: {value!r} is invalid; expected {accepted}")


def _number(name: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not least <= value <= most:
        raise _refused(name, text, _ACCEPTED[name])
    return value


def _label_key(text: str) -> str:
    """Validate by the rules of the label's writers."""
    mark_states.validate_rules(mark_states.Rules(label_key=text))
    return text


def _left_out(read: _EnvironmentReader) -> Tuple[str, ...]:
    """Return what the defaults leave out without dcgmi. A check or a period that a variable sets
    explicitly is not left out.
    """
    periodic = read.words("PERIODIC_CHECKS", "")
    left_out = {
        _DIAGNOSTIC: not periodic or (ALL in periodic and not _names_diagnostic(periodic)),
        "deep_diagnostic": not read.text("AUTOPILOT_INVASIVE_SECONDS", ""),
    }
    return tuple(name for name in LEFT_OUT if left_out[name])


def _names_diagnostic(words: Sequence[str]) -> bool:
    return bool({_DIAGNOSTIC, *registry.load(_DIAGNOSTIC).short_names} & set(words))


def _periodic_checks(
    read: _EnvironmentReader, storage_class: str, has_dcgmi: bool
) -> Tuple[str, ...]:
    default = DEFAULT_CHECKS + WITH_DCGM * has_dcgmi
    return read.parsed(
        "PERIODIC_CHECKS", default, lambda text: _periodic(text, storage_class, has_dcgmi)
    )


def _periodic(text: str, storage_class: str, has_dcgmi: bool) -> Tuple[str, ...]:
    """Names of checks in the registry's order, from names and short names, or `ALL`: every check
    that the agent is set up for.
    """
    given = [word.strip() for word in text.split(",") if word.strip()]
    possible = [name for name in registry.NAMES if name not in _NOT_PERIODIC]
    if ALL in given:
        without = {
            _CLAIM: not storage_class,
            _DIAGNOSTIC: not has_dcgmi and not _names_diagnostic(given),
        }
        return tuple(name for name in possible if not without.get(name))
    wanted = {registry.name_of(word) for word in given}
    for name in _NOT_PERIODIC:
        if name in wanted:
            raise ValueError(
                f"{text!r} is invalid: {name} loads the network and is not run "
                f"periodically; accepted are {ALL}, {', '.join(possible)}"
            )
    if _CLAIM in wanted and not storage_class:
        raise ValueError(
            f"{text!r} is invalid: {_CLAIM} needs a storage class; expected PVC_TEST_STORAGE_CLASS "
            f"to be set, or no {_CLAIM}"
        )
    if not wanted:
        raise ValueError(f"{text!r} names no check; accepted are {ALL}, {', '.join(possible)}")
    return tuple(name for name in possible if name in wanted)
