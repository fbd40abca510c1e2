# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Can this node pull the images of jobs? Looks up each image as a container runtime does, up to its
manifest, without fetching it.

A fail means that a job with this image cannot start here now. It needs final evidence from the
network, TLS or the registry: no such name, refused, no route, no answer to any connection attempt,
a certificate that is invalid for every client, no permission, no such image. Temporary errors
(resolver or registry), and differences between this check and the node's container runtime (private
CA, plain HTTP), are unknown.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict

from ..system.bounded import Child, CrashReading, HungReading, end, wait
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ..system.image_reference import reference_of
from ...model import (
    FAIL,
    PASSIVE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)
from ...lenient import number
from ...times import day_of

NAME = "image_registry"
#: Images looked up at the same time; each has a process of its own.
MOST_IMAGES = 32
#: Deadline in seconds: two connection attempts each to the registry and its token service.
SECONDS = 29.0
#: Seconds for ending processes that hang.
_ENDING = 1.5
#: Minimum remaining days of a certificate: automatic renewal happens a month before the end.
EXPIRY_DAYS = 14

_DAY = 86400.0
#: Maximum plausible seconds since the epoch.
_LATEST = 1e12
_EVIDENCE = (
    "registry",
    "addresses",
    "proxy",
    "tls",
    "plain",
    "credentials",
    "trouble",
    "hung",
    "crashed",
)
#: (step, kind) -> code, status, prefix of the message. Kind None: every kind that is not listed.
_TROUBLES: Dict[Tuple[Any, Any], Tuple[str, str, str]] = {
    ("resolve", "no_such_name"): ("image_registry_unresolvable", FAIL, "the name does not exist"),
    ("resolve", None): ("image_registry_unresolvable", UNKNOWN, "the resolver did not answer"),
    ("connect", None): ("image_registry_unreachable", FAIL, "connection failed twice"),
    ("connect", "other"): ("image_registry_unreachable", UNKNOWN, "connection failed"),
    ("proxy", None): ("image_registry_unreachable", UNKNOWN, "the proxy refuses the connection"),
    ("tls", "expired"): (
        "image_registry_tls",
        FAIL,
        "the certificate has expired, by this node's clock",
    ),
    ("tls", "not_yet_valid"): (
        "image_registry_tls",
        FAIL,
        "the certificate is not valid yet, by this node's clock",
    ),
    ("tls", "wrong_name"): ("image_registry_tls", FAIL, "the certificate is for another name"),
    ("tls", "not_trusted"): (
        "image_registry_tls",
        UNKNOWN,
        "the certificate's authority is not trusted here",
    ),
    ("tls", "no_tls"): ("image_registry_tls", UNKNOWN, "the registry does not use TLS"),
    ("tls", None): ("image_registry_tls", UNKNOWN, "the TLS handshake failed"),
    ("token", "denied"): ("image_registry_denied", FAIL, "access denied"),
    ("manifest", "denied"): ("image_registry_denied", FAIL, "access denied"),
    ("push", "denied"): ("image_registry_denied", FAIL, "access denied to push"),
    ("push", "not_found"): ("image_registry_denied", FAIL, "no such repository to push to"),
    ("manifest", "not_found"): ("image_not_found", FAIL, "the registry does not have this image"),
}


class TlsReading(TypedDict, total=False):
    version: Optional[str]
    #: End of the certificate, seconds since the epoch.
    expires: Optional[float]
    verified: bool


class RegistryTrouble(TypedDict, total=False):
    """Where a lookup ended, from `registry_client.Trouble`."""

    step: Optional[str]
    kind: Optional[str]
    host: Optional[str]
    message: Optional[str]
    #: HTTP status.
    status: Optional[int]


class ImageReading(TypedDict, total=False):
    """A lookup, from `registry_client.examine`."""

    image: str
    registry: str
    addresses: List[str]
    #: Host and port.
    proxy: Optional[str]
    #: The last step that began.
    step: str
    tls: Optional[TlsReading]
    #: Whether the registry was queried without TLS.
    plain: bool
    #: Source of the credentials.
    credentials: Optional[str]
    digest: Optional[str]
    #: HTTP status of the cancelled upload, 0 without an answer.
    pushed: int
    #: Seconds of the whole lookup.
    seconds: Optional[float]
    trouble: Optional[RegistryTrouble]
    hung: HungReading
    crashed: CrashReading


class ImageRegistryReadings(TypedDict, total=False):
    images: List[Optional[ImageReading]]
    #: Seconds since the epoch.
    now: float


def measure(probe: Probe) -> Readings:
    """Look up each image; returns `ImageRegistryReadings`. Without images, only the time."""
    readings: Readings = {"images": [], "now": time.time()}
    references = [reference_of(text) for text in dict.fromkeys(probe.options.get("images") or [])]
    if not references:
        return readings
    # Imported here: loading TLS and HTTP costs a node without images more than all passive checks.
    from ..system import registry_client

    options, host = probe.options, probe.host
    access = registry_client.Access(*(options.get(name) for name in registry_client.Access._fields))
    probe.stage("querying registries for images")
    seconds = min(probe.seconds, SECONDS) - _ENDING
    until = time.monotonic() + seconds
    # Separate processes: a resolver has no time limit and must not delay other images.
    children = [
        Child(
            partial(registry_client.examine, reference=reference, access=access, host=host), seconds
        )
        for reference in references
    ]
    try:
        wait(children, until)
    finally:
        end(children, 0.5)
    readings["images"] = [
        {"image": reference.text, "registry": reference.registry, **child.values, **child.mishap()}
        for reference, child in zip(references, children)
    ]
    return readings


def judge(readings: ImageRegistryReadings, options: Options) -> CheckResult:
    if "images" not in readings:
        return concluded(
            NAME,
            [Finding("image_registry_error", UNKNOWN, "the measurement was stopped", "watch")],
            "",
        )
    images = [image or ImageReading() for image in readings["images"]]
    if not images:
        return CheckResult(NAME, SKIP, "no images are given (option images)")
    findings: List[Finding] = []
    for image in images:
        findings += _judge_image(image, options)
    findings += _expiring(images, readings.get("now"))
    return concluded(NAME, findings, _healthy(images), _measurements(images))


def _judge_image(image: ImageReading, options: Options) -> List[Finding]:
    subject = Subject("image", name=str(image.get("image")))
    trouble, hung, crashed = image.get("trouble"), image.get("hung"), image.get("crashed")
    known: Mapping[str, Any] = image
    evidence = {key: known[key] for key in _EVIDENCE if key in known}
    code, message = "image_registry_error", "the lookup did not end"
    hung_step = str(hung.get("what")) if hung else ""
    if hung_step.startswith("resolving"):
        code = "image_registry_unresolvable"
        message = f"the resolver did not answer within {SECONDS:.0f} s"
    elif hung_step.startswith("TLS"):
        # A short timeout ends the lookup before the limit of the handshake does: the same finding.
        code, message = "image_registry_tls", "the TLS handshake did not end"
    elif hung is not None or crashed is not None:
        message += f"; its last step: {(hung or crashed or HungReading()).get('what')}"
    elif trouble is None and image.get("seconds") is not None:
        return []
    if hung is not None or crashed is not None or trouble is None:
        return [Finding(code, UNKNOWN, message, "watch", subject, evidence)]
    step, kind = trouble.get("step"), trouble.get("kind")
    code, status, message = (
        _TROUBLES.get((step, kind))
        or _TROUBLES.get((step, None))
        or ("image_registry_error", UNKNOWN, "not looked up")
    )
    if kind == "not_trusted" and options.get("ca_file"):
        status, message = FAIL, "the certificate's authority is not in ca_file"
    if code == "image_registry_denied" and not image.get("credentials"):
        message += (
            " for anonymous users, and no credentials are given for this registry (options "
            "auth_file, or username and password)"
        )
    own = str(image.get("registry"))
    where = (
        ""
        if trouble.get("host") in (None, own, own.rpartition(":")[0].strip("[]"))
        else f"at {trouble.get('host')}: "
    )
    lasting = status == FAIL or kind in ("not_trusted", "no_tls", "not_read", "not_known")
    words = f"{message}: {where}{trouble.get('message')}"
    return [
        Finding(code, status, words, "fix_configuration" if lasting else "watch", subject, evidence)
    ]


def _expiring(images: List[ImageReading], now: Optional[float]) -> List[Finding]:
    """Registries whose certificate expires soon, each once."""
    ends = {
        str(image.get("registry")): expires
        for image in images
        for expires in [_expiry(image)]
        if expires is not None
    }
    found = []
    for registry, expires in ends.items():
        days = (expires - now) / _DAY if now is not None else EXPIRY_DAYS
        if 0 <= days < EXPIRY_DAYS:
            message = f"the certificate expires in {days:.0f} days, on {day_of(expires)}"
            subject = Subject("registry", name=registry)
            found.append(
                Finding(
                    "image_registry_tls",
                    WARN,
                    message,
                    "fix_configuration",
                    subject,
                    {"expires": expires, "warned_days_before": EXPIRY_DAYS},
                )
            )
    return found


def _expiry(image: ImageReading) -> Optional[float]:
    tls = image.get("tls")
    return None if tls is None else number(tls.get("expires"), -_LATEST, _LATEST)


def _healthy(images: List[ImageReading]) -> str:
    registries = sorted({str(image.get("registry")) for image in images})
    parts = [f"{len(images)} image{'s' if len(images) > 1 else ''} at {', '.join(registries)}"]
    ends = [expires for expires in map(_expiry, images) if expires is not None]
    if ends:
        parts.append(f"certificates until {day_of(min(ends))}")
    if any(image.get("plain") for image in images):
        parts.append("without TLS")
    left = sum("pushed" in image and not 200 <= image["pushed"] < 300 for image in images)
    parts += ["push allowed"] * any("pushed" in image for image in images)
    parts += [f"{left} uploads not cancelled, the registry removes them"] * (left > 0)
    slowest = max((image.get("seconds") or 0.0 for image in images), default=0.0)
    return ", ".join([*parts, f"answered within {slowest:.1f} s"])


def _measurements(images: List[ImageReading]) -> List[Measurement]:
    """The slowest answer of each registry."""
    slowest: Dict[str, float] = {}
    for image in images:
        seconds = number(image.get("seconds"))
        if seconds is not None:
            registry = str(image.get("registry"))
            slowest[registry] = max(seconds, slowest.get(registry, 0.0))
    return [
        Measurement("image_lookup", seconds, "seconds", {"registry": registry})
        for registry, seconds in slowest.items()
    ]


def validate_options(options: Options) -> None:
    images = options.get("images") or []
    for image in images:
        try:
            reference_of(image)
        except ValueError as error:
            raise ValueError(f"images: {error}") from None
    if len(images) > MOST_IMAGES:
        raise ValueError(f"images: {len(images)} are invalid; expected at most {MOST_IMAGES}")
    if options.get("username") and options.get("auth_file"):
        raise ValueError("username excludes auth_file; give one of them")
    if options.get("username") and not options.get("password"):
        raise ValueError("username needs password")


CHECK = Check(
    name=NAME,
    purpose="Can this node pull the images that jobs start from?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=ImageRegistryReadings,
    options={
        "images": {"type": "list", "elements": "str", "default": []},
        "username": {"type": "str"},
        "password": {"type": "str", "no_log": True},
        "auth_file": {"type": "path"},
        "ca_file": {"type": "path"},
        "insecure": {"type": "bool", "default": False},
        "push": {"type": "bool", "default": False},
    },
    validate_options=validate_options,
    grace=0.5,
    gpu=False,
    metrics=(
        CheckMetric(
            "image_lookup",
            "seconds",
            "autopilot_image_lookup_seconds",
            "Time until the registry answered about an image, the slowest of its images.",
            ("registry",),
        ),
    ),
    status_text=StatusText("[[ IMAGE REGISTRY ]]", "IMAGE REGISTRY", "Image registry"),
    findings={
        "image_registry_unresolvable": FindingText(
            "The node cannot resolve the name of an image registry.",
            "Run `getent hosts <registry>` on the node. Correct its resolvers (/etc/resolv.conf), "
            "or the image's name.",
        ),
        "image_registry_unreachable": FindingText(
            "The node cannot connect to an image registry.",
            "Check the route, firewall and proxy between this node and the registry. If no node "
            "can connect, check the registry.",
        ),
        "image_registry_tls": FindingText(
            "The certificate of an image registry is invalid, untrusted or about to expire, or "
            "the registry does not use TLS.",
            "Renew the certificate if it expires. Otherwise check the node's clock, and give the "
            "node the CA certificate (`ca_file` for this check).",
        ),
        "image_registry_denied": FindingText(
            "The registry refuses to let the given credentials, or an anonymous user, pull the "
            "image, or push to its repository.",
            "Correct the pull secret, or the check's credentials (`auth_file`). Some registries "
            "give this answer for images that do not exist.",
        ),
        "image_not_found": FindingText(
            "The registry does not have the image.",
            "Correct the image's name, tag or digest, or push the image.",
        ),
        "image_registry_error": FindingText(
            "An image could not be looked up: its registry reports errors, or an option is "
            "unusable.",
            "Resolve the error in the message, then run the check again.",
        ),
    },
)
