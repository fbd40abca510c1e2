# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Install and remove the objects of a component, and report it as the result of a module, for
modules with the options ``timeout`` and those of the connection.
"""

from __future__ import annotations

import hashlib
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils import _deployments
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiObject,
    Procedure,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    apply,
    kinds,
    remove,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import Cluster
from ansible_collections.autopilot.gpu.plugins.module_utils._queue.install import readable

#: Seconds that a removal waits at least.
_LEAST_REMOVAL = 60
#: Seconds for the requests of one component, beside its waits.
_REQUESTS = 300
#: A diff shows a new object of at most so many characters.
_MOST_SHOWN = 20_000


def shown(one: ApiObject | None) -> str:
    """An object in a diff; a long one by its size and content hash."""
    if one is None:
        return ""
    if one["kind"] == "Secret":
        return "hidden, as it may hold keys\n"
    text = readable(apply.comparable(one))
    if len(text) <= _MOST_SHOWN:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{len(text)} characters, SHA-256 {digest}\n"


def diff_of(changes: list[apply.Change], removed: list[str]) -> list[dict[str, str]]:
    """What changes, for Ansible's diff."""
    found = []
    for change in changes:
        if change.action in (apply.CREATED, apply.CHANGED):
            found.append(
                {
                    "before_header": change.what,
                    "after_header": change.what,
                    "before": shown(change.before),
                    "after": shown(change.after),
                }
            )
    found += [{"before_header": what, "before": f"{what}\n", "after": ""} for what in removed]
    return found


def install(
    module: AnsibleModule, cluster: Cluster, component: str, objects: list[ApiObject]
) -> dict[str, t.Any]:
    """Apply the objects of the component, remove obsolete ones, and wait; the module's result."""
    timeout = module.params["timeout"]
    changes = cluster.run(
        apply.apply_objects(objects, module.check_mode, timeout), timeout + _REQUESTS
    )
    obsolete = cluster.run(apply.obsolete_objects(component, objects), _REQUESTS)
    kept = [f"{one.what} stays as others made it" for one in changes if one.action == apply.KEPT]
    if component == "queues":
        queues, unused = cluster.run(remove.obsolete_queues(objects), _REQUESTS)
        obsolete, kept = [*obsolete, *queues], [*kept, *unused]
    if not module.check_mode:
        for one in obsolete:
            cluster.run(apply.delete(one))
    removed = [kinds.reference(one) for one in obsolete]
    names = {
        action: [change.what for change in changes if change.action == action]
        for action in (apply.CREATED, apply.CHANGED)
    }
    result = {
        "changed": bool(names[apply.CREATED] or names[apply.CHANGED] or removed),
        "created": names[apply.CREATED],
        "updated": names[apply.CHANGED],
        "removed": removed,
        "kept": kept,
    }
    if module._diff:
        result["diff"] = diff_of(changes, removed)
    if timeout and not module.check_mode:
        _wait(module, cluster, component, objects, result)
    return result


def _wait(
    module: AnsibleModule,
    cluster: Cluster,
    component: str,
    objects: list[ApiObject],
    result: dict[str, t.Any],
) -> None:
    """Wait until the component answers; fails the module after its timeout."""
    timeout = module.params["timeout"]
    reasons = cluster.run(_deployments.follow(objects, timeout), timeout + 60)
    if reasons:
        lines = "\n".join(f"  {what}: {why}" for what, why in sorted(reasons.items()))
        module.fail_json(
            msg=f"{component} is applied, but does not answer after {timeout} s:\n"
            f"{lines}\nCorrect the cause and run the playbook again: components after this "
            "one, if any, are not installed yet.",
            **result,
        )


def uninstall(
    module: AnsibleModule,
    cluster: Cluster,
    procedure: t.Callable[[float], Procedure[remove.RemovedObjects]],
) -> dict[str, t.Any]:
    """Run the removal, which gets the seconds that it may wait; the module's result."""
    # A removal without a wait would go on while a manager still works.
    timeout = module.params["timeout"] or _LEAST_REMOVAL
    found = cluster.run(procedure(timeout), timeout * 10 + _REQUESTS)
    result: dict[str, t.Any] = {
        "changed": bool(found.removed),
        "removed": found.removed,
        "kept": found.kept,
    }
    if module._diff:
        result["diff"] = diff_of([], found.removed)
    return result
