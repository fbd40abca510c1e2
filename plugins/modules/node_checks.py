#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_checks
short_description: Run all checks of a GPU node in one task
version_added: 0.1.0
description:
  - Runs the selected checks of a host in one task, which costs about as much as a single check.
  - Passive checks run first. Light and invasive checks run one at a time, and not on a node that
    already failed.
  - A check that hangs is stopped or abandoned at its timeout. The results of the other checks are
    returned in any case.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
  - autopilot.gpu._checks.action
options:
  checks:
    description:
      - Checks to run, by name or short name (for example V(remapped), V(pciebw), V(dcgm)).
      - Every check of a node when not given. V(ping_mesh), V(iperf3_pairs) and V(rdma_pairs) are
        ignored, because they need two nodes; the role C(mesh) runs them. V(volume_claim) is skipped, with a result
        that says so; M(autopilot.gpu.volume_claim) runs it.
    type: list
    elements: str
  options:
    description:
      - "Options by check name or short name, for example C({pcie_bandwidth: {minimum: 46}})."
      - The module of each check documents its options.
    type: dict
    default: {}
  stop_on_fail:
    description: Whether light and invasive checks are skipped on a node that failed another check.
    type: bool
    default: true
  beside_job:
    description:
      - Whether a job runs on the host, so that only checks run that do not disturb it, among them
        M(autopilot.gpu.gpu_activity).
      - Other selected checks are skipped, with a result that says so. A comparison with a snapshot
        leaves out what can be judged only after the job.
    type: bool
    default: false
  run:
    description: Name of the run of the snapshot, such as the name of the job.
    type: str
  snapshot:
    description:
      - Whether to keep a snapshot under O(run), or to compare with the snapshot that was kept; the
        comparison is the result C(node_changes).
      - The node keeps the newest 20 in C(/var/lib/autopilot-gpu/snapshots), or in a user's state
        directory. M(autopilot.gpu.verdict) keeps a copy on the controller.
    type: str
    default: none
    choices: [none, keep, compare]
  report_dir:
    description: Directory of runs on the controller, with the copy that O(snapshot=compare) reads.
    type: path
  baseline:
    description: Snapshot to compare with, instead of the controller's copy.
    type: dict
  release_seconds:
    description: Seconds to wait with O(snapshot=compare) for the release of GPUs that were free in
      the snapshot.
    type: float
    default: 30
"""

EXAMPLES = r"""
- name: Run all checks of a node
  autopilot.gpu.node_checks:
    expected_gpus: 8

- name: Run two checks, one of them with an option
  autopilot.gpu.node_checks:
    checks: [remapped, pciebw]
    options: {remapped_rows: {require_clean: true}}

- name: Report the changes since the snapshot before the job
  autopilot.gpu.node_checks: {run: job42, snapshot: compare}
"""

RETURN = r"""
brief:
  description: One line with the checks that did not pass and were not skipped, the worst first.
  type: str
  returned: always
status:
  description: The worst status of the checks, one of V(pass), V(skip), V(warn), V(unknown), V(fail).
  type: str
  returned: always
  sample: pass
health:
  description: One result for each check, with its findings and measurements.
  type: list
  elements: dict
  returned: always
  contains:
    check: {description: Name of the check., type: str, returned: always}
    status: {description: Worst status of its findings., type: str, returned: always}
    summary: {description: What the check found in one line., type: str, returned: always}
    duration_seconds: {description: Seconds that the check took., type: float, returned: always}
    findings:
      description: What the check judged.
      type: list
      elements: dict
      returned: always
      contains:
        code: {description: The fact by its code., type: str, returned: always}
        status: {description: Status of the finding., type: str, returned: always}
        action: {description: 'Next step, such as V(watch) or V(drain_node).', type: str, returned: always}
        subject: {description: 'The part: kind, index, uuid, pci, name.', type: dict, returned: always}
        message: {description: The fact with its figures., type: str, returned: always}
        evidence: {description: The figures by name., type: dict, returned: always}
    measurements:
      description: Figures worth keeping.
      type: list
      elements: dict
      returned: always
      contains:
        name: {description: Name of the measurement., type: str, returned: always}
        value: {description: The figure., type: float, returned: always}
        unit: {description: Unit of the figure., type: str, returned: always}
        labels: {description: 'The part, such as the GPU.', type: dict, returned: always}
node:
  description: GPUs (index, uuid, pci, name), driver version, CPU model and boot id of the node.
  type: dict
  returned: always
readings:
  description: The options and raw readings by check.
  type: dict
  returned: when O(readings=true)
started:
  description: Start of the checks, in seconds since the epoch by the controller's clock.
  type: float
  returned: when the node was reached
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import (
    COMMON_OPTIONS,
    ACTION_OPTIONS,
    accepted,
    keep_secret,
    leave,
    left_out,
    options_of,
    result_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import around_pass
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import node_changes
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.check import (
    Check,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.runner import (
    Outcome,
    planned,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.registry import (
    ELSEWHERE,
    beside_a_job,
    chosen,
    name_of,
    names_beside_a_job,
)


def main() -> None:
    argument_spec = {
        **COMMON_OPTIONS,
        "checks": {"type": "list", "elements": "str"},
        "options": {"type": "dict", "default": {}},
        "stop_on_fail": {"type": "bool", "default": True},
        "beside_job": {"type": "bool", "default": False},
        "run": {"type": "str"},
        "snapshot": {"type": "str", "default": "none", "choices": ["none", "keep", "compare"]},
        "report_dir": {"type": "path"},
        "baseline": {"type": "dict"},
        "release_seconds": {"type": "float", "default": 30},
        **ACTION_OPTIONS,
    }
    module = AnsibleModule(argument_spec=argument_spec, supports_check_mode=True)
    try:
        checks = (beside_a_job if module.params["beside_job"] else chosen)(
            module.params["checks"] or []
        )
        given = {name_of(name): value for name, value in module.params["options"].items()}
    except ValueError as error:
        module.fail_json(msg=f"checks, options: {error}")
    try:
        has_run = module.params["snapshot"] != "none"
        run = store.validate_run_name(module.params["run"]) if has_run else ""
        requests = [(check, options_of(check, _given(module, check, given))) for check in checks]
        of_changes = options_of(node_changes.CHECK, _given(module, node_changes.CHECK, given))
    except ValueError as error:
        module.fail_json(msg=str(error))
    for check, options in requests:
        keep_secret(module, check, options)
    settings = accepted(module)
    if module.check_mode:
        outcomes = planned(requests, settings)
    else:
        around = around_pass.Around(
            run,
            *(module.params[name] for name in ("snapshot", "baseline", "release_seconds")),
            of_changes,
            settings,
        )
        outcomes = around.run(requests, module.params["stop_on_fail"])
    outcomes += _skipped(module)
    leave(module, result_of(outcomes, settings, with_readings=module.params["readings"]))


def _given(module: AnsibleModule, check: Check, given: dict[str, t.Any]) -> t.Any:
    """The options that the task gives a check; beside a job those that disturb it are overridden."""
    options = given.get(check.name, {})
    if not isinstance(options, dict) or not module.params["beside_job"]:
        return options
    phase = {"phase": "inflight"} if check.name == node_changes.NAME else {}
    return {**phase, **options, **check.quiet}


def _skipped(module: AnsibleModule) -> list[Outcome]:
    """Outcomes of the checks that were named and do not run here."""
    asked = list(dict.fromkeys(name_of(name) for name in module.params["checks"] or []))
    quiet = names_beside_a_job() if module.params["beside_job"] else tuple(asked)
    return left_out(
        [name for name in asked if name == "volume_claim"],
        [name for name in asked if name not in (*quiet, *ELSEWHERE)],
    )


if __name__ == "__main__":
    main()
