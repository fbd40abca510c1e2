# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The module usage_capture on the host: validate its options, drive the sampler, return a result."""

from __future__ import annotations

import math
import os
import re
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling import (
    daemon,
    record,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling.cgroup import (
    KINDS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import stamp_of

OPTIONS: dict[str, dict[str, t.Any]] = {
    "name": {"type": "str", "required": True},
    "state": {
        "type": "str",
        "default": "started",
        "choices": ["started", "stopped", "collected", "absent"],
    },
    "interval": {"type": "float", "default": 5.0},
    "duration": {"type": "int", "default": 86400},
    "max_bytes": {"type": "int", "default": 268435456},
    "job": {
        "type": "dict",
        "options": {"pod_uid": {"type": "str"}, "unit": {"type": "str"}, "pid": {"type": "int"}},
        "mutually_exclusive": [KINDS],
    },
    "declared": {"type": "dict", "default": {}},
    "throughput_log": {"type": "path"},
    "throughput_regex": {"type": "str"},
    "dest": {"type": "path"},
    "rules": {"type": "dict", "default": {}},
    "expected_gpus": {"type": "int"},
    "directory": {"type": "path"},
    "nvml_library": {"type": "path"},
    "host_root": {"type": "path", "default": "/"},
}
#: Lowest and highest value of each numeric option; a sample of sixteen GPUs has 10 kB.
_RANGES = {
    "interval": (1, 60, "seconds"),
    "duration": (1, 30 * 86400, "seconds"),
    "max_bytes": (8192, 1 << 34, "bytes"),
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=OPTIONS,
        supports_check_mode=True,
        required_together=[("throughput_log", "throughput_regex")],
        required_if=[("state", "collected", ("dest",))],
    )
    try:
        result = _perform(module.params, module.check_mode)
    except (ValueError, daemon.CaptureError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg="directory: "
            f"{error.filename or module.params['directory'] or daemon.default_directory()}: "
            f"{error.strerror}"
        )
    module.exit_json(**result)


def _perform(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    _validate(params)
    directory = os.path.join(params["directory"] or daemon.default_directory(), params["name"])
    if params["state"] == "started":
        return _start(directory, params, check_mode)
    found = daemon.state(directory)
    if params["state"] == "stopped":
        changed = found["state"] == "running" if check_mode else daemon.stop(directory)
        return _result(directory, changed)
    if params["state"] == "absent":
        if not check_mode:
            daemon.stop(directory)
            daemon.remove(directory)
        return {
            "changed": os.path.isdir(directory) if check_mode else found["state"] != "none",
            "state": "none",
        }
    if found["state"] == "none" or check_mode:
        return dict(_result(directory, found["state"] != "none"), parts=[])
    daemon.stop(directory)
    collected = daemon.collect(directory)
    finished_record = dict(
        found["record"], collected=stamp_of(time.time()), ended=collected.pop("ended")
    )
    if params["throughput_log"]:
        finished_record["throughput"] = record.throughput(
            params["throughput_log"], params["throughput_regex"]
        )
    return dict(_result(directory, True), **collected, record=finished_record)


def _start(directory: str, params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    job = {name: value for name, value in (params["job"] or {}).items() if value is not None}
    settings: record.CaptureSettings = {
        "name": params["name"],
        "interval": params["interval"],
        "duration": params["duration"],
        "max_bytes": params["max_bytes"],
        "host_root": params["host_root"],
        "nvml_library": params["nvml_library"],
        "job": job or None,
    }
    if check_mode:
        daemon.validate_start(directory, settings)
        return _result(directory, daemon.state(directory)["state"] != "running")
    found = daemon.start(
        directory, settings, lambda: record.gather(settings, params["declared"], time.time())
    )
    return _result(directory, found["changed"])


def _result(directory: str, changed: bool) -> dict[str, t.Any]:
    found = daemon.state(directory)
    return {
        "changed": changed,
        "state": found["state"],
        "pid": found["pid"],
        "directory": directory,
        "bytes": found["bytes"],
        "record": found["record"],
    }


def _validate(params: dict[str, t.Any]) -> None:
    """Raise ValueError that names an invalid option, its value and what is accepted."""
    if not daemon.NAME.match(params["name"]):
        raise ValueError(
            f"name: {params['name']!r} is invalid; expected up to 64 letters, digits, '.', "
            "'_' and '-', with a letter or digit first"
        )
    for name, (least, most, unit) in _RANGES.items():
        if not least <= params[name] <= most or not math.isfinite(params[name]):
            raise ValueError(
                f"{name}: {params[name]} is invalid; expected {least} to {most} {unit}"
            )
    if params["job"] is not None and not any(params["job"].values()):
        raise ValueError(f"job: {params['job']} is invalid; expected one of {', '.join(KINDS)}")
    if not os.path.isdir(params["host_root"]):
        raise ValueError(
            f"host_root: {params['host_root']} is not a directory on this host; expected the one "
            "where its root file system is mounted"
        )
    if params["throughput_regex"] is not None:
        try:
            groups = re.compile(params["throughput_regex"]).groups
        except re.error as error:
            raise ValueError(
                f"throughput_regex: {params['throughput_regex']!r} is not a regular expression: "
                f"{error}"
            ) from None
        if groups < 1:
            raise ValueError(
                f"throughput_regex: {params['throughput_regex']!r} is invalid; expected one "
                "with a group around the number"
            )
