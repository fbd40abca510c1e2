# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The modules of the queue: from their options to validated settings, and from verified sources to
rendered objects.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiObject
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    components,
    managers,
    sources,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.quantity import (
    parse_quantity,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.queue_releases import (
    PROFILES,
    Release,
)

try:
    import yaml
except ImportError:
    HAS_YAML = False
else:
    HAS_YAML = True

_COUNT = {"type": "int"}
#: Options that decide which releases are installed; documented in the fragment ``_queue``.
RELEASE_OPTIONS: dict[str, dict[str, t.Any]] = {
    "profile": {"type": "str", "default": "mlbatch", "choices": sorted(PROFILES)},
    "appwrapper_version": {"type": "str"},
    "scheduler": {"type": "str", "default": "coscheduling", "choices": sorted(managers.SCHEDULERS)},
    "sakkara_image": {"type": "str", "default": ""},
    "registry": {"type": "str", "default": ""},
    "image_digests": {"type": "dict", "default": {}},
    "sources": {"type": "path"},
    "cache": {"type": "path", "default": "~/.cache/autopilot-gpu/queue"},
}
#: Options of the objects; documented in the module queue_component.
OBJECT_OPTIONS: dict[str, dict[str, t.Any]] = {
    "namespace": {"type": "str", "default": "mlbatch-system"},
    "label_key": {"type": "str", "default": "autopilot.ibm.com/gpuhealth", "no_log": False},
    "gpu_resources": {"type": "list", "elements": "str", "default": ["nvidia.com/gpu"]},
    "sakkara_topology": {"type": "dict", "default": {}},
    "topologies": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "levels": {"type": "list", "elements": "str", "required": True},
        },
    },
    "flavors": {
        "type": "list",
        "elements": "dict",
        "default": [{"name": "default-flavor"}],
        "options": {
            "name": {"type": "str", "required": True},
            "node_labels": {"type": "dict"},
            "node_taints": {"type": "list", "elements": "dict"},
            "tolerations": {"type": "list", "elements": "dict"},
            "topology": {"type": "str"},
        },
    },
    "slack_quotas": {"type": "dict", "default": {}},
    "fault_tolerance": {
        "type": "dict",
        "options": {name: _COUNT for name in (*managers.FAULT_TOLERANCE, managers.RETRY_LIMIT)},
    },
}

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9.:_/-]*/[a-z0-9._/-]+:[A-Za-z0-9._-]+(@sha256:[0-9a-f]{64})?")
#: Seconds that kubectl may take to render a release; the largest takes one or two.
_RENDER_SECONDS = 120


def settings_of(params: t.Mapping[str, t.Any]) -> components.QueueSettings:
    """The settings of a module's options. Raises ValueError that names each invalid option, its
    value and what is accepted.
    """
    problems = [*_release_problems(params), *_object_problems(params)]
    if problems:
        raise ValueError("; ".join(problems))
    versions = {name: own[0] for name, own in PROFILES[params["profile"]].items()}
    if params["appwrapper_version"]:
        versions["appwrapper"] = params["appwrapper_version"]
    tolerance = params.get("fault_tolerance") or {}
    return components.QueueSettings(
        versions=versions,
        namespace=params.get("namespace") or "mlbatch-system",
        registry=params["registry"],
        digests=params["image_digests"],
        label_key=params.get("label_key") or "",
        gpu_resources=params.get("gpu_resources") or [],
        scheduler=params["scheduler"],
        sakkara_image=params["sakkara_image"],
        sakkara_topology=params.get("sakkara_topology") or {},
        topologies=params.get("topologies") or [],
        flavors=params.get("flavors") or [],
        slack={
            flavor: {name: str(value) for name, value in quotas.items()}
            for flavor, quotas in (params.get("slack_quotas") or {}).items()
        },
        fault_tolerance={name: one for name, one in tolerance.items() if one is not None},
    )


def _release_problems(params: t.Mapping[str, t.Any]) -> list[str]:
    problems = []
    versions = PROFILES[params["profile"]]["appwrapper"]
    version = params["appwrapper_version"]
    if version and version not in versions:
        problems.append(
            f"appwrapper_version: {version!r} is invalid; expected {' or '.join(versions)} with "
            f"profile {params['profile']}"
        )
    problems += image_problems(params)
    image = params["sakkara_image"]
    if params["scheduler"] == "sakkara" and not _IMAGE.fullmatch(image):
        problems.append(
            f"sakkara_image: {image!r} is invalid; expected an image with a tag, such as "
            "registry.example/sakkara-scheduler:v0.0.1: no release of Sakkara is pinned here"
        )
    return problems


def image_problems(params: t.Mapping[str, t.Any]) -> list[str]:
    """Why the options ``registry`` and ``image_digests`` are invalid, one message each."""
    problems = []
    if params["registry"] and not _REGISTRY.fullmatch(params["registry"]):
        problems.append(
            f"registry: {params['registry']!r} is invalid; expected a registry with an optional "
            "path, such as registry.example/mirror"
        )
    for image, digest in params["image_digests"].items():
        if digest != "" and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            problems.append(
                f"image_digests: {digest!r} of {image} is invalid; expected sha256: and 64 "
                "hexadecimal digits, or an empty text to use the image by its tag"
            )
    return problems


def _object_problems(params: t.Mapping[str, t.Any]) -> list[str]:
    if "flavors" not in params:
        return []
    problems = []
    if not _NAME.fullmatch(params["namespace"]):
        problems.append(
            f"namespace: {params['namespace']!r} is invalid; expected the name of a namespace"
        )
    topologies = [one["name"] for one in params["topologies"]]
    flavors = [one["name"] for one in params["flavors"]]
    for option, names in (("topologies", topologies), ("flavors", flavors)):
        problems += [
            f"{option}: {name!r} is invalid; expected a name of lower-case letters, digits, - and ."
            for name in names
            if not _NAME.fullmatch(name)
        ]
        problems += [
            f"{option}: {name!r} is there twice; expected different names"
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
    for one in params["flavors"]:
        if one.get("topology") and one["topology"] not in topologies:
            problems.append(
                f"flavors: {one['name']} has the unknown topology {one['topology']!r}; expected "
                f"one of topologies: {', '.join(topologies) or 'none is given'}"
            )
    tolerance = params["fault_tolerance"] or {}
    problems += [
        f"fault_tolerance.{name}: {value} is invalid; expected 0 or a greater number"
        for name, value in tolerance.items()
        if value is not None and value < 0
    ]
    return [*problems, *_slack_problems(params["slack_quotas"], flavors)]


def _slack_problems(slack: t.Mapping[str, t.Any], flavors: list[str]) -> list[str]:
    problems = []
    covered: set[str] | None = None
    for flavor, quotas in slack.items():
        if flavor not in flavors:
            problems.append(
                f"slack_quotas: {flavor!r} is an unknown flavor; expected one of flavors: "
                f"{', '.join(flavors)}"
            )
        if not isinstance(quotas, dict) or not quotas:
            problems.append(
                f"slack_quotas.{flavor}: {quotas!r} is invalid; expected quotas by resource"
            )
            continue
        for name, value in quotas.items():
            amount = parse_quantity(value)
            if amount is None or amount < 0:
                problems.append(
                    f"slack_quotas.{flavor}.{name}: {value!r} is invalid; expected a quantity "
                    "such as 8, 500m or 2000G, 0 or more"
                )
        if covered is not None and set(quotas) != covered:
            problems.append(
                f"slack_quotas.{flavor}: covers {', '.join(sorted(quotas))}; expected the same "
                f"resources for each flavor: {', '.join(sorted(covered))}"
            )
        covered = set(quotas) if covered is None else covered
    return problems


def directory_of(params: t.Mapping[str, t.Any]) -> str:
    """The folder of the archives: the operator's own, or the cache."""
    return str(params["sources"] or os.path.expanduser(params["cache"]))


def codec() -> components.Codec:
    """YAML as the managers read it."""
    return components.Codec(yaml.safe_load, lambda value: yaml.safe_dump(value, sort_keys=False))


def readable(value: t.Any) -> str:
    """A value as YAML for a diff: texts of several lines as they are."""

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: t.Any, text: str) -> t.Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    return str(yaml.dump(value, Dumper=Dumper, width=10_000))


def render(
    component: str, settings: components.QueueSettings, directory: str, kubectl: str
) -> list[ApiObject]:
    """The objects of a component from the verified files of its release. Raises
    `sources.SourceError`, and ValueError if kubectl cannot render them.
    """
    rendered: list[ApiObject] = []
    is_released = component in components.RELEASED
    if is_released and not (component == "scheduler" and not settings.choice.name):
        release = settings.release(component)
        rendered = _render_release(release, sources.read_release(release, directory), kubectl)
    return components.objects_of(component, settings, rendered, codec())


def _render_release(release: Release, files: sources.Files, kubectl: str) -> list[ApiObject]:
    if not release.build:
        return _parse(b"\n---\n".join(files[path] for path in sorted(files)), release)
    program = shutil.which(kubectl)
    if not program:
        raise ValueError(
            f"kubectl: {kubectl!r} is not a program on this host; expected kubectl 1.27 or newer, "
            "whose kustomize renders the manifests"
        )
    with tempfile.TemporaryDirectory(prefix="autopilot-queue-") as directory:
        sources.write_files(files, directory)
        try:
            done = subprocess.run(
                [program, "kustomize", os.path.join(directory, release.build)],
                capture_output=True,
                timeout=_RENDER_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                # Only files of the verified tree: no plugins, no settings of the user.
                env={"PATH": os.environ.get("PATH", ""), "HOME": directory},
            )
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"{program} kustomize: no result for {release.component} {release.version} within "
                f"{_RENDER_SECONDS} s"
            ) from None
    if done.returncode:
        words = " ".join(done.stderr.decode("utf-8", "replace").split())[-600:]
        raise ValueError(
            f"{program} kustomize: {release.component} {release.version}: {words}; expected kubectl "
            "1.27 or newer"
        )
    return _parse(done.stdout, release)


def _parse(text: bytes, release: Release) -> list[ApiObject]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Safe loaders only.
        found = [one for one in yaml.load_all(text, loader) if one]  # nosec B506
    except yaml.YAMLError as error:
        raise ValueError(f"{release.component} {release.version}: {error}") from None
    return found
