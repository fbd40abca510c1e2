# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import atomic_file
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import document
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.usage import (
    judge,
    reading,
    runs,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    decode,
    mapping,
    text,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._usage import OPTIONS
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import on_node, usage

_MODULE = "autopilot.gpu.usage_capture"
#: Largest packed capture in bytes if the task does not say: the module's own default for the
#: samples, which are about ten times as large before they are packed.
_MAX_BYTES = OPTIONS["max_bytes"]["default"]


class _Packed(t.TypedDict, total=False):
    """The answer of the module for a capture that is collected."""

    changed: bool
    state: str
    directory: str
    record: dict[str, t.Any]
    parts: list[str]
    sha256: str


#: What the answer has if there is a capture.
_NEEDED = ("directory", "record", "parts", "sha256")


class _ModuleFailed(Exception):
    """A module on the host failed; ``result`` is its result."""

    def __init__(self, result: dict[str, t.Any]) -> None:
        super().__init__(str(result.get("msg")))
        self.result = result


class ActionModule(on_node.OnNode):
    """Run the module on the host; fetch and judge the collected capture on the controller."""

    TRANSFERS_FILES = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        args = dict(self._task.args)
        try:
            rules = usage.rules_of(args.get("rules"))
            if args.get("state") != "collected" or not args.get("dest"):
                return dict(
                    result,
                    **self._execute_module(
                        module_name=_MODULE, module_args=args, task_vars=variables
                    ),
                )
            return dict(result, **self._collected(args, rules, variables))
        except ValueError as error:
            return dict(result, failed=True, msg=str(error))
        except _ModuleFailed as failed:
            return dict(result, **failed.result)
        except OSError as error:
            return dict(
                result,
                failed=True,
                msg=f"dest: {args.get('dest')!r} cannot be written ({error.strerror}); expected "
                "a directory on the controller",
            )

    def _collected(
        self, args: dict[str, t.Any], rules: dict[str, t.Any], variables: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        host = re.sub(r"[^A-Za-z0-9._-]", "_", str(variables["inventory_hostname"]))
        directory = os.path.join(os.getcwd(), os.path.expanduser(str(args["dest"])))
        args = dict(args, dest=directory)
        returned = self._on_host(_MODULE, args, variables)
        samples = os.path.join(directory, host + runs.SAMPLES)
        if self._task.check_mode:
            return returned
        answer = decode(_Packed, returned)
        if answer.get("state", "none") != "none":
            missing = [name for name in _NEEDED if name not in answer]
            if missing:
                raise ValueError(f"the answer of the host has no valid {', '.join(missing)}")
            os.makedirs(directory, exist_ok=True)
            self._fetch(answer, samples, int(args.get("max_bytes") or _MAX_BYTES), variables)
            atomic_file.write(
                os.path.join(directory, host + runs.RECORD), document.to_json(answer["record"])
            )
            capture = _read(directory, host)
            self._on_host(
                _MODULE, {"name": args["name"], "state": "absent", **_where(args)}, variables
            )
        elif os.path.exists(samples):
            capture = _read(directory, host)
        else:
            raise ValueError(
                f"neither this host nor {args['dest']} has the capture {args['name']}: it was "
                "never started, or was removed"
            )
        own = judge.judge(
            capture,
            rules,
            int(args["expected_gpus"]) if args.get("expected_gpus") is not None else None,
        )
        return {
            "changed": answer.get("changed", False),
            "state": "none",
            "pid": None,
            "record": capture.recorded,
            "samples": samples,
            "status": own.status,
            "health": [own.to_dict()],
            "node": _node(capture),
        }

    def _fetch(self, answer: _Packed, path: str, most: int, variables: dict[str, t.Any]) -> None:
        """Fetch the parts of the samples into one file of at most ``most`` bytes, which appears only
        when it is complete.
        """
        handle, temporary = tempfile.mkstemp(
            prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path)
        )
        digest = hashlib.sha256()
        try:
            with os.fdopen(handle, "wb") as stream:
                for part in answer["parts"]:
                    sent = self._on_host("ansible.legacy.slurp", {"src": part}, variables)
                    block = base64.b64decode(text(sent.get("content")))
                    if stream.tell() + len(block) > most:
                        raise ValueError(
                            f"max_bytes: the packed capture has more than {most} bytes; give the "
                            "max_bytes with which the capture was started"
                        )
                    digest.update(block)
                    stream.write(block)
                os.fchmod(stream.fileno(), 0o644)
            if digest.hexdigest() != answer["sha256"]:
                raise _ModuleFailed(
                    {
                        "failed": True,
                        "msg": f"the capture from {answer['directory']} was damaged on the "
                        "way (its checksum differs); collect it again",
                    }
                )
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _on_host(
        self, module: str, args: dict[str, t.Any], variables: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        answer: dict[str, t.Any] = self._execute_module(
            module_name=module, module_args=args, task_vars=variables
        )
        if answer.get("failed") or answer.get("unreachable"):
            raise _ModuleFailed(answer)
        return answer


def _read(directory: str, host: str) -> reading.Capture:
    """The collected capture of the host. Files that are invalid get another name, so that they do
    not cost the captures of other hosts the comparison; raises ValueError for them.
    """
    try:
        return runs.load_host(directory, host)
    except ValueError:
        for suffix in (runs.SAMPLES, runs.RECORD):
            path = os.path.join(directory, host + suffix)
            if os.path.exists(path):
                os.replace(path, f"{path}.invalid")
        raise


def _where(args: dict[str, t.Any]) -> dict[str, t.Any]:
    return {"directory": args["directory"]} if args.get("directory") else {}


def _node(capture: reading.Capture) -> dict[str, t.Any]:
    """The facts of the node in the form of the check modules."""
    gpus, node = mapping(capture.recorded.get("gpus")), mapping(capture.recorded.get("node"))
    listed = gpus.get("list") if isinstance(gpus.get("list"), list) else []
    return {
        "gpus": [
            {key: gpu.get(key) for key in ("index", "uuid", "pci", "name")}
            for gpu in listed or []
            if isinstance(gpu, dict)
        ],
        "driver_version": gpus.get("driver_version"),
        "cpu_model": node.get("cpu_model"),
        "boot_id": node.get("boot_id"),
    }
