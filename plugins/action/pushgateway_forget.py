# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import callback_loader
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node_names import fold, natural
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    options,
    screen,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway import push
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import (
    Gateway,
    GatewayError,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import (
    PushSettings,
    missing_packages,
    settings_from,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    WorkerThreads,
)

_CALLBACK = "autopilot.gpu.pushgateway"
_OPTIONS: dict[str, dict[str, t.Any]] = {"nodes": {"type": "list", "elements": "str"}}


class ActionModule(ActionBase):
    """Remove nodes from the Pushgateway, on the controller, once for all hosts."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        try:
            nodes = options.validated(_OPTIONS, hosts.plain(self._task.args)).get("nodes")
            result.update(self._forget(nodes, variables))
        except (AnsibleError, ValueError, OSError, GatewayError) as error:
            words = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            result.update(failed=True, msg=words)
        return result

    def _forget(self, nodes: list[str] | None, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        # Ansible knows the options of a callback, under its load name, once it is loaded.
        callback = callback_loader.get(_CALLBACK, class_only=True)
        settings = settings_from(callback._load_name, variables, self._templar)
        if settings is None:
            raise ValueError(
                "url: is missing; expected the address of the Pushgateway (pushgateway_url)"
            )
        if missing_packages():
            raise ValueError(
                f"{' and '.join(missing_packages())} cannot be imported on the controller"
            )
        until = time.monotonic() + settings.timeout
        gateway, workers = Gateway(settings), WorkerThreads()
        found = _pushed(settings, gateway, workers, until)
        names = _chosen(
            nodes, {key["node"] for key in found}, set(map(str, variables["groups"]["all"]))
        )
        keys = [key for key in found if key["node"] in names]
        if not self._task.check_mode:
            # First, since it waits for a concurrent run that may be pushing these nodes.
            push.forget(settings, names, until)
        left = {} if self._task.check_mode else _removed(gateway, workers, keys, until)
        gone = fold({key["node"] for key in keys} - set(left))
        if gone:
            verb = "would forget" if self._task.check_mode else "forgot"
            screen.show(f"autopilot: {verb} at {settings.url}: {', '.join(gone)}")
        result = {
            "changed": bool(gone),
            "forgotten": sorted({key["node"] for key in keys} - set(left), key=natural),
            "groups": len(keys),
        }
        if left:
            result.update(
                failed=True,
                msg=f"not forgotten: {', '.join(fold(left))}: {next(iter(left.values()))}",
            )
        return result


def _chosen(nodes: list[str] | None, pushed: set[str], inventory: set[str]) -> set[str]:
    """The nodes to forget. Raises ValueError if the inventory seems to be the wrong one."""
    if nodes is not None:
        return set(nodes)
    if not inventory:
        raise ValueError(
            "the inventory has no hosts, so every node would be forgotten; set the inventory (-i) "
            "or the option nodes"
        )
    # The inventory of another cluster would silently remove all nodes of this one.
    if 2 * len(pushed & inventory) < len(pushed):
        found = f"{len(pushed & inventory)} of the {len(pushed)} nodes that were pushed"
        raise ValueError(
            f"only {found} are in the inventory, which seems to be the wrong one; set the "
            "option nodes"
        )
    return pushed - inventory


def _pushed(
    settings: PushSettings, gateway: Gateway, workers: WorkerThreads, until: float
) -> list[dict[str, str]]:
    """The grouping keys of the nodes that this job pushed with these labels. Raises GatewayError."""
    found: list[dict[str, str]] = []
    errors: list[GatewayError] = []

    def look() -> None:
        try:
            for labels, _group in gateway.groups(until):
                if "node" in labels and labels == settings.key(
                    {name: labels.get(name, "") for name in ("node", "phase")}
                ):
                    found.append(labels)
        except GatewayError as error:
            errors.append(error)

    if not workers.run([look], until):
        errors.append(GatewayError(f"no answer within {settings.timeout:.0f} s"))
    if errors:
        raise GatewayError(f"{settings.url}: {errors[0]}")
    return found


def _removed(
    gateway: Gateway, workers: WorkerThreads, keys: list[dict[str, str]], until: float
) -> dict[str, str]:
    """Remove the groups. Returns the nodes that still have a group, each with the reason."""
    left = {key["node"]: "the timeout was reached" for key in keys}
    why: dict[str, str] = {}
    several: dict[str, list[dict[str, str]]] = {}
    for key in keys:
        several.setdefault(key["node"], []).append(key)

    def remove(name: str) -> None:
        try:
            for key in several[name]:
                gateway.delete(key, until)
            left.pop(name)
        except GatewayError as error:
            why[name] = str(error)

    workers.run([lambda name=name: remove(name) for name in several], until)  # type: ignore[misc]
    return {name: why.get(name, words) for name, words in list(left.items())}
