# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Reads what ``dcgmi diag -j`` prints, in every shape DCGM 2 to 4 has given it, into one (pure).

`normalise` never raises, and what it could not read to the end is no result: see ``problem``.
Sources of the shapes: dcgmi/Diag.cpp and DcgmiOutput at v2.1.4, v3.1.8, v3.3.9, v4.0 to v4.6, and
NVIDIA's schema for DCGM 4 (testing/python3/dcgm_diag_schema.json).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ...knowledge import dcgm as knowledge
from ...lenient import sequence, mapping

#: The key of a diagnostic's document in DCGM 4, and in DCGM 2 and 3.
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
#: Where an object with a key begins; noise before a document may have braces too.
_OBJECT = re.compile(r'\{\s*"')
#: Characters kept of each text, texts kept of each result, and results kept of each document (a
#: level 4 run of 16 GPUs has about 250).
_TEXT, _TEXTS, _ROWS = 500, 16, 1000
_GPU = 1  # dcgm_field_entity_group_t: DCGM_FE_GPU
_STATUSES = {"pass": "pass", "skip": "skip", "fail": "fail", "warn": "fail"}

NO_DOCUMENT, INCOMPLETE = "no document", "incomplete document"


def normalise(text: Any) -> Dict[str, Any]:
    """What a run printed, as plain JSON values::

        {"problem": None | NO_DOCUMENT | INCOMPLETE, "errors": [text], "version": text | None,
         "driver": text | None, "gpus": [DCGM's ids] | None (it does not list them),
         "serials": {id: serial}, "rates": whether this DCGM gives severities,
         "results": [{"test", "title", "gpu": id | None (all of the node), "entity": text | None,
                      "status", "warnings", "info"}]}

    There is one result for each test and GPU (or other entity). ``test`` is the name ``--run``
    takes, ``title`` the one printed. ``status`` is pass, skip, fail or whatever other word there
    was; a warning is printed as fail in every version of DCGM, so ask `faults`. ``warnings`` are
    ``{"text", "error_id", "category", "severity"}``, the last three whole numbers or None.
    """
    reader = _Reader()
    try:
        documents, complete = _documents(text if isinstance(text, str) else "")
        for document in documents:
            reader.read(document)
    except RecursionError:
        complete = False
    problem = None if complete else INCOMPLETE
    if not reader.seen:
        problem = INCOMPLETE if not complete else NO_DOCUMENT
    return dict(reader.report, problem=problem)


def _documents(text: str) -> Tuple[List[Dict[str, Any]], bool]:
    """The JSON objects in a text, and whether all of them could be read. What follows an unreadable
    one is not looked into: a part of a document that was cut off must not pass for the whole.
    """
    decoder = json.JSONDecoder()
    found: List[Dict[str, Any]] = []
    position = 0
    while True:
        match = _OBJECT.search(text, position)
        if not match:
            return found, True
        try:
            document, position = decoder.raw_decode(text, match.start())
        except ValueError:
            return found, False
        found.append(document)


class _Reader:
    def __init__(self) -> None:
        self.seen = False
        self.report: Dict[str, Any] = {
            "problem": None,
            "errors": [],
            "version": None,
            "driver": None,
            "gpus": None,
            "serials": {},
            "rates": False,
            "results": [],
        }

    def read(self, document: Dict[str, Any]) -> None:
        for iteration in sequence(document.get("iterations")):
            if isinstance(iteration, dict):
                self.read(iteration)
        for root in _ROOTS:
            if root not in document:
                continue
            self.seen = True
            self.report["rates"] = self.report["rates"] or root == _ROOTS[0]
            body = mapping(document[root])
            self._read_header(body)
            self._read_header(mapping(document.get("metadata")))
            self._read_header(mapping(body.get("metadata")))
            self._read_entities(document.get("entity_groups") or body.get("entity_groups"))
            if "runtime_error" in body:
                self.report["errors"].append(
                    _short(body["runtime_error"]) or "an error without words"
                )
            for category in sequence(body.get("test_categories")):
                for test in sequence(mapping(category).get("tests")):
                    self._read_test(mapping(test))

    def _read_header(self, header: Dict[str, Any]) -> None:
        for key, name in (("version", "version"), ("Driver Version Detected", "driver")):
            if isinstance(header.get(key), str):
                self.report[name] = header[key][:_TEXT]
        devices, serials = (
            sequence(header.get("GPU Device IDs")),
            mapping(header.get("GPU Device Serials")),
        )
        if devices:
            self.report["gpus"] = list(range(len(devices[:_ROWS])))
        if serials:
            self.report["gpus"] = [number for number in map(_whole, serials) if number is not None]
            self.report["serials"] = {
                key: serial for key, serial in serials.items() if isinstance(serial, str)
            }

    def _read_entities(self, groups: Any) -> None:
        for group in sequence(groups):
            if not _is_gpu(mapping(group)):
                continue
            for entity in map(mapping, sequence(mapping(group).get("entities"))):
                number = _whole(entity.get("entity_id"))
                if number is None:
                    continue
                self.report["gpus"] = (self.report["gpus"] or []) + [number]
                if isinstance(entity.get("serial_num"), str):
                    self.report["serials"][str(number)] = entity["serial_num"][:_TEXT]

    def _read_test(self, test: Dict[str, Any]) -> None:
        title = _short(test.get("name"))
        if not title:
            return
        before = len(self.report["results"])
        for result in sequence(test.get("results")):
            if isinstance(result, dict):  # DCGM 2 and 3 leave null where a GPU did not run
                for gpu, entity in _about(result):
                    self._add(title, gpu, entity, result)
        summary = mapping(test.get("test_summary"))
        # The summary repeats its results' worst status; only an error of no GPU in particular
        # stands nowhere else.
        if summary and (_warnings(summary) or len(self.report["results"]) == before):
            self._add(title, None, None, summary)

    def _add(
        self, title: str, gpu: Optional[int], entity: Optional[str], result: Dict[str, Any]
    ) -> None:
        word = result.get("status")
        warnings = _warnings(result)
        if len(self.report["results"]) >= _ROWS:
            return
        self.report["rates"] = self.report["rates"] or any(
            warning["severity"] is not None for warning in warnings
        )
        self.report["results"].append(
            {
                "test": knowledge.run_name(title),
                "title": title,
                "gpu": gpu,
                "entity": entity,
                "warnings": warnings,
                "status": _STATUSES.get(word.strip().lower(), word[:_TEXT])
                if isinstance(word, str)
                else "no status",
                "info": [_short(line) for line in _strings(result.get("info"))][:_TEXTS],
            }
        )


def _about(result: Dict[str, Any]) -> Iterator[Tuple[Optional[int], Optional[str]]]:
    """The GPUs, or other entity, that a result is about: ``(GPU id, None)``, ``(None, "CPU 0")``,
    ``(None, None)`` for the node.
    """
    if "entity_id" in result and not _is_gpu(result):
        yield (
            None,
            f"{_short(result.get('entity_group')) or 'entity'} {_short(result['entity_id'])}",
        )
        return
    given = next(
        (result[key] for key in ("entity_id", "gpu_id", "gpu_ids") if result.get(key) is not None),
        None,
    )
    numbers = [
        _whole(part)
        for part in (
            given.split(",")
            if isinstance(given, str)
            else given
            if isinstance(given, list)
            else [given]
        )
    ]
    for number in numbers[:_ROWS]:
        yield number, None


def _is_gpu(about: Dict[str, Any]) -> bool:
    group = about.get("entity_group_id")
    return (
        group == _GPU
        if group is not None
        else str(about.get("entity_group", "GPU")).upper() == "GPU"
    )


def _warnings(result: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Warnings are one string (2.x to 3.2, with an ``error_id`` beside it from 3.2 on), or objects
    whose text is called ``warning``, in the deployment tests of 3.3 ``warnings``.
    """
    given = result.get("warnings")
    found = []
    for item in given if isinstance(given, list) else [given]:
        source = item if isinstance(item, dict) else result
        text = (
            next((item[key] for key in ("warning", "warnings") if item.get(key)), "")
            if isinstance(item, dict)
            else item
        )
        error_id = _whole(source.get("error_id"))
        if text or error_id:
            found.append(
                {
                    "text": _short(text),
                    "error_id": error_id,
                    "category": _whole(source.get("error_category")),
                    "severity": _whole(source.get("error_severity")),
                }
            )
    if not found and _whole(result.get("error_id")):
        found.append(
            {"text": "", "error_id": _whole(result["error_id"]), "category": None, "severity": None}
        )
    return found[:_TEXTS]


# --- what the results mean ---


class Result(NamedTuple):
    """One result of a report, with every field of its type."""

    test: str
    title: str
    gpu: Optional[int]
    entity: Optional[str]
    status: str
    warnings: List[Dict[str, Any]]


class Fault(NamedTuple):
    """What one result says is wrong, by class: ``kind`` is one of `knowledge`'s words, or an error
    code that is overridden.
    """

    kind: Any
    result: Result
    warnings: List[Dict[str, Any]]


def results(report: Any) -> List[Result]:
    """The results of a report; what is not understood in it is passed over."""
    found = []
    for row in map(mapping, sequence(mapping(report).get("results"))):
        warnings = [mapping(warning) for warning in sequence(row.get("warnings"))]
        entity = row.get("entity") if isinstance(row.get("entity"), str) else None
        test, title, status = (_short(row.get(key)) for key in ("test", "title", "status"))
        found.append(Result(test, title or test, _whole(row.get("gpu")), entity, status, warnings))
    return found


def faults(report: Any) -> List[Fault]:
    """Everything that a report says is wrong: the warnings of each result by class, the worst not
    hiding the others.
    """
    rates = bool(mapping(report).get("rates"))
    found: List[Fault] = []
    for result in results(report):
        by_kind: Dict[Any, List[Dict[str, Any]]] = {}
        for warning in result.warnings:
            by_kind.setdefault(_kind(warning, result), []).append(warning)
        none = by_kind.pop(knowledge.NONE, [])
        if result.status == "fail" and not by_kind:
            by_kind[knowledge.UNEXPLAINED if rates else _kind({}, result)] = none
        found += [Fault(kind, result, warnings) for kind, warnings in by_kind.items()]
    return found


def meaning(fault: Fault) -> knowledge.Meaning:
    """What the fault makes of its GPU, were the test's word final."""
    row = (
        knowledge.OVERRIDES.get(fault.kind)
        if isinstance(fault.kind, int)
        else knowledge.MEANINGS.get(fault.kind)
    )
    return row or knowledge.MEANINGS[knowledge.UNRECOGNISED]


def _kind(warning: Dict[str, Any], result: Result) -> Any:
    """The document's own severity before the table's: they change between releases."""
    error_id, severity = _whole(warning.get("error_id")), _whole(warning.get("severity"))
    if error_id in knowledge.OVERRIDES:
        return error_id
    if severity is not None:
        known = (
            knowledge.SEVERITIES[severity]
            if 0 <= severity < len(knowledge.SEVERITIES)
            else knowledge.UNRECOGNISED
        )
        if known != knowledge.UNRECOGNISED:
            return known
    if error_id in knowledge.SEVERITY_OF:
        return knowledge.SEVERITY_OF[error_id]
    if severity is not None:
        return knowledge.UNRECOGNISED
    if result.title.lower() in knowledge.CONFIG_TESTS:
        return knowledge.CONFIG
    return knowledge.UNRATED


def gpu_ids(gpus: List[Dict[str, Any]], report: Any) -> List[int]:
    """DCGM's id of each GPU: by serial number where every GPU has one that DCGM gives too, else its
    index, which DCGM counts alike.
    """
    by_serial: Dict[Any, int] = {}
    for key, serial in mapping(mapping(report).get("serials")).items():
        number = _whole(key)
        if number is not None and isinstance(serial, str):
            by_serial[serial] = number
    matched = [by_serial.get(str(gpu.get("serial"))) for gpu in gpus]
    if None not in matched and len(set(matched)) == len(gpus):
        return [number for number in matched if number is not None]
    return [
        number if number is not None else -1
        for number in (_whole(gpu.get("index")) for gpu in gpus)
    ]


# --- reading what may be anything ---


def _strings(value: Any) -> List[Any]:
    return [item for item in (value if isinstance(value, list) else [value]) if item]


def _short(value: Any) -> str:
    """A text on one line, of bounded length."""
    return " ".join(str(value).split())[:_TEXT] if isinstance(value, (str, int, float)) else ""


def _whole(value: Any) -> Optional[int]:
    """A whole number, also one written as text; None for what is none or too long to be one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None
