# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Describe the variables of the playbooks as argument specs, and find misspelt variables."""

from __future__ import annotations

import functools
import os
import re
import typing as t

import yaml

from ansible_collections.autopilot.gpu.plugins.module_utils._health.spelling import (
    did_you_mean,
    nearest,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import CONNECTION_OPTIONS
from ansible_collections.autopilot.gpu.plugins.module_utils._mark import RULE_OPTIONS

Spec = dict[str, dict[str, t.Any]]

_TEXT: dict[str, t.Any] = {"type": "str"}
_PATH: dict[str, t.Any] = {"type": "path"}
_FLAG: dict[str, t.Any] = {"type": "bool"}
_DICT: dict[str, t.Any] = {"type": "dict"}
_LIST: dict[str, t.Any] = {"type": "list", "elements": "str"}
_ANY: dict[str, t.Any] = {"type": "raw"}
_NUMBER: dict[str, t.Any] = {"type": "float"}
_COUNT: dict[str, t.Any] = {"type": "int"}
#: The value may contain addresses and passwords, so no message shows it.
_SECRET: dict[str, t.Any] = {"type": "dict", "no_log": True}


def _prefixed(prefix: str, **spec: dict[str, t.Any]) -> Spec:
    return {f"{prefix}_{name}": rules for name, rules in spec.items()}


_MARKS: Spec = {
    "mark_nodes": _FLAG,
    **{f"mark_{name}": {"type": rules["type"]} for name, rules in CONNECTION_OPTIONS.items()},
    **{f"mark_{name}": rules for name, rules in RULE_OPTIONS.items()},
}
_PHASE: Spec = {"hosts": _ANY, "become": _FLAG, "policy": _DICT, "report_dir": _PATH}

#: By playbook, its variables beyond those of the roles.
PLAYBOOKS: dict[str, Spec] = {
    "preflight": {
        "run": _TEXT,
        **_prefixed("preflight", **_PHASE, run_id=_TEXT, nhc_conf=_PATH, **_MARKS),
    },
    "inflight": {
        "run": _TEXT,
        "watch": _ANY,
        **_prefixed(
            "inflight",
            **_PHASE,
            every=_ANY,
            checks=_LIST,
            dry_run=_FLAG,
            decisions=_DICT,
            notify=_SECRET,
            act=_DICT,
            kubeconfig=_PATH,
            timeout=_NUMBER,
            context=_TEXT,
        ),
    },
    "postflight": {
        "run": {**_TEXT, "required": True},
        **_prefixed("postflight", **_PHASE, checks=_LIST, release_seconds=_NUMBER, **_MARKS),
    },
    "capture": {
        "run": {**_TEXT, "required": True},
        "state": _TEXT,
        "dest": _PATH,
        "declared": _DICT,
        "job": _DICT,
        "interval": _NUMBER,
        "duration": _NUMBER,
        "max_bytes": _COUNT,
        "throughput_log": _PATH,
        "throughput_regex": _TEXT,
        **_prefixed("capture", hosts=_ANY, become=_FLAG, rules=_DICT, directory=_PATH),
    },
    "compare": {"a": _PATH, "b": _PATH, **_prefixed("compare", report_dir=_PATH, rules=_DICT)},
    "replay": {"run": _PATH, **_prefixed("replay", policy=_DICT, report_dir=_PATH)},
    "calibrate": _prefixed("calibrate", runs=_ANY, newest=_COUNT, dest=_PATH),
    "status": {
        **{name: _ANY for name in ("host", "check", "batch", "job", "nodelabel", "r")},
        **_prefixed(
            "status",
            url=_TEXT,
            token_file=_PATH,
            service_account=_TEXT,
            timeout=_NUMBER,
            allow_plaintext=_FLAG,
            ca_file=_PATH,
        ),
        **_prefixed("agent", namespace=_TEXT, audience=_TEXT, kubeconfig=_PATH, context=_TEXT),
    },
    "forget": {"forget_nodes": _LIST},
    "quota": _prefixed(
        "quota",
        fail_on={"type": "str", "choices": ["never", "fail", "unknown", "warn"]},
        slack_queue=_TEXT,
        label_key={"type": "str", "no_log": False},
        tolerations={"type": "list", "elements": "dict"},
        scheduler=_TEXT,
        timeout=_NUMBER,
        kubeconfig=_PATH,
        context=_TEXT,
    ),
    "nfs_provisioner": {
        "state": {"type": "str", "choices": ["absent", "present"]},
        **_prefixed(
            "nfs_provisioner",
            server=_TEXT,
            path=_TEXT,
            storage_class=_TEXT,
            name=_TEXT,
            namespace=_TEXT,
            rollout_timeout=_COUNT,
            kubeconfig=_PATH,
            context=_TEXT,
        ),
        **_prefixed("queue", registry=_TEXT, image_digests=_DICT),
    },
    "scrape_targets": _prefixed(
        "scrape_targets",
        monitors=_LIST,
        prometheus=_TEXT,
        url=_TEXT,
        timeout=_COUNT,
        kubeconfig=_PATH,
        context=_TEXT,
    ),
    "agent": {"state": _TEXT, **_prefixed("agent", hosts=_ANY)},
    "queue": {"state": _TEXT, **_prefixed("queue", hosts=_ANY)},
    "teams": {"state": _TEXT, **_prefixed("teams", hosts=_ANY)},
}
#: Playbooks that are just the role of the same name.
_OF_ROLE = ("agent", "queue", "teams")
#: The phases of a job: their playbooks run the roles `checks` and `mesh`.
PHASES = ("preflight", "inflight", "postflight")
#: Variables that describe the cluster or a host in the inventory.
OF_HOST: Spec = {"cluster_name": _TEXT, "expected_gpus": _COUNT, "node_name": _TEXT}
#: Options of the callback `pushgateway`, which validates them itself.
PUSHGATEWAY = tuple(
    f"pushgateway_{name}"
    for name in (
        *("url", "job", "labels", "timeout", "username", "password", "password_file", "token"),
        *(
            "token_file",
            "allow_plaintext",
            "ca_file",
            "client_cert",
            "client_key",
            "on_failure",
            "spool_dir",
        ),
        *("spool_limit", "compatibility"),
    )
)
#: Variables that the roles set for themselves.
INTERNAL = ("mesh_again", "mesh_started", "mesh_started_again", "mesh_waits_for")

#: Prefixes of this collection: an unknown variable with such a prefix is misspelt.
_PREFIXES = re.compile(r"(preflight|inflight|postflight|checks|mesh|pushgateway)_")
#: Variables that may mean the name of a run, also checked on the command line.
_RUN_NAME = re.compile(r"runs?(_|$)")
#: Lowest similarity (`difflib`) at which a variable of the command line counts as misspelt.
_SIMILAR = 0.8
_ROLES = os.path.join(os.path.dirname(__file__), *[os.pardir] * 3, "roles")


@functools.lru_cache(maxsize=None)
def role_options(role: str) -> Spec:
    """The argument spec of a role of this collection."""
    specs = _read(role, "meta", "argument_specs.yml")["argument_specs"]
    return t.cast(Spec, specs["main"]["options"])


@functools.lru_cache(maxsize=None)
def role_defaults(role: str) -> dict[str, t.Any]:
    """The defaults of a role of this collection, untemplated."""
    return t.cast("dict[str, t.Any]", _read(role, "defaults", "main.yml"))


def _read(role: str, *path: str) -> t.Any:
    with open(os.path.join(_ROLES, role, *path), encoding="utf-8") as file:
        return yaml.safe_load(file)


def names_of_role(playbook: str) -> set[str]:
    """The variables that the role of the playbook defines for itself, and no user may set."""
    return set(_read(playbook, "vars", "main.yml")) if playbook in _OF_ROLE else set()


def spec_of(playbook: str) -> Spec:
    """The argument spec of all variables that a playbook validates."""
    if playbook in _OF_ROLE:
        return {**PLAYBOOKS[playbook], **role_options(playbook)}
    if playbook not in PHASES:
        return PLAYBOOKS[playbook]
    return {**PLAYBOOKS[playbook], **OF_HOST, **role_options("checks"), **role_options("mesh")}


def known_names(playbook: str) -> set[str]:
    """The names of all variables that a user may set: the playbook's own, and those of the rest of
    this collection.
    """
    names = {*spec_of(playbook), *PUSHGATEWAY, *INTERNAL, *OF_HOST}
    for role in ("checks", "mesh"):
        names.update(role_options(role))
    for spec in PLAYBOOKS.values():
        names.update(name for name in spec if _PREFIXES.match(name))
    return names


def misspelt(playbook: str, given: t.Collection[str], extra: t.Collection[str]) -> list[str]:
    """One message for each unknown variable among ``given``. ``extra`` are those from the command
    line.

    A variable of the command line without a prefix of this collection is ignored, unless it
    resembles a variable of the playbook.
    """
    known = known_names(playbook)
    found = []
    # Other programs have variables with the prefixes agent_ and queue_ too.
    prefixes = re.compile(f"{playbook}_") if playbook in _OF_ROLE else _PREFIXES
    for name in sorted(set(given) - known):
        prefix = prefixes.match(name)
        same = sorted(
            variable for variable in known if prefix and variable.startswith(prefix.group())
        )
        same = [variable for variable in same if variable in spec_of(playbook)] or same
        near = nearest(name, set(same) - set(INTERNAL))
        if not near and name in extra:
            near = _nearest(name, playbook, given)
        if near:
            found.append(f"unsupported variable {name!r}{did_you_mean(near)}")
        elif prefix:
            found.append(f"unsupported variable {name!r}; supported: {', '.join(same)}")
    return found


def _nearest(name: str, playbook: str, given: t.Collection[str]) -> list[str]:
    """The playbook's variables that an unknown variable of the command line resembles. A user's own
    playbook may define ``preflight_hosts`` for its ``hosts``, so ``hosts`` is not a misspelling.
    """
    spec = spec_of(playbook)
    prefix = f"{playbook}_"
    tails = [
        variable[len(prefix) :]
        for variable in spec
        if variable.startswith(prefix) and variable not in given
    ]
    meant = [prefix + tail for tail in nearest(name, tails, _SIMILAR)]
    if not meant and "run" in spec and "run" not in given and _RUN_NAME.match(name):
        meant = ["run"]
    return meant or list(
        nearest(name, [variable for variable in spec if len(variable) > 1], _SIMILAR)
    )
