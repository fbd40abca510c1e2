# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Parse the output of ``dcgmi diag -j`` of DCGM 2 to 4 into one format. Pure.

`normalise` never raises; output that could not be parsed completely is no result (see ``problem``).
Sources of the formats: dcgmi/Diag.cpp and DcgmiOutput at v2.1.4, v3.1.8, v3.3.9, v4.0 to v4.6, and
NVIDIA's schema for DCGM 4 (testing/python3/dcgm_diag_schema.json).
"""

from __future__ import annotations

import json
import re
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypedDict,
    Union,
)

from ...knowledge import dcgm as knowledge
from ...lenient import decode, mappings_in

#: The key of a diagnostic's document in DCGM 4, and in DCGM 2 and 3.
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
#: The start of an object with a key; noise before the document may contain braces too.
_OBJECT = re.compile(r'\{\s*"')
#: Maximum characters of each text, texts of each result, and results of each document (a level 4
#: run of 16 GPUs has about 250).
_TEXT, _TEXTS, _ROWS = 500, 16, 1000
_GPU = 1  # dcgm_field_entity_group_t: DCGM_FE_GPU
_STATUSES = {"pass": "pass", "skip": "skip", "fail": "fail", "warn": "fail"}

NO_DOCUMENT, INCOMPLETE = "no document", "incomplete document"


# --- the output of dcgmi ---

#: A number. Some versions write it as text, or several numbers as one text or a list; an item that
#: is not a number means the node.
_Number = Union[int, str]
_Numbers = Union[int, str, List[Any]]

_Header = TypedDict(
    "_Header",
    {
        "version": str,
        "Driver Version Detected": str,
        "GPU Device IDs": List[Any],
        "GPU Device Serials": Dict[str, Optional[str]],
    },
    total=False,
)


class _About(TypedDict, total=False):
    """The kind of a result's entity; a GPU if the result has neither field."""

    entity_group_id: Any
    entity_group: Any


class _Entity(TypedDict, total=False):
    entity_id: _Number
    serial_num: str


class _EntityGroup(_About, total=False):
    entities: List[_Entity]


class _WarningItem(TypedDict, total=False):
    """A warning, for any text or error number."""

    warning: Any
    warnings: Any
    error_id: Any
    error_category: _Number
    error_severity: _Number


class _TestResult(_About, total=False):
    entity_id: _Numbers
    gpu_id: _Numbers
    gpu_ids: _Numbers
    status: Any
    #: See `_warnings`.
    warnings: Any
    error_id: Any
    error_category: _Number
    error_severity: _Number
    #: A text or a list of them.
    info: Any


class _Test(TypedDict, total=False):
    name: Union[str, int, float]
    #: DCGM 2 and 3 have null for a GPU that did not run.
    results: List[_TestResult]
    test_summary: _TestResult


class _Category(TypedDict, total=False):
    tests: List[_Test]


class _Surroundings(TypedDict, total=False):
    """The fields beside a diagnostic's document, or in it."""

    metadata: _Header
    entity_groups: List[_EntityGroup]


class _Diagnostic(_Header, total=False):
    metadata: _Header
    entity_groups: List[_EntityGroup]
    #: Any value is an error.
    runtime_error: Any
    test_categories: List[_Category]


# --- the parsed report ---


class DcgmWarning(TypedDict, total=False):
    text: str
    error_id: Optional[int]
    category: Optional[int]
    severity: Optional[int]


class DcgmResult(TypedDict, total=False):
    """The result of one test for one GPU or other entity; for the node if both are None."""

    #: The test's name for ``--run``, and its printed name.
    test: str
    title: str
    #: DCGM's GPU id.
    gpu: Optional[int]
    entity: Optional[str]
    #: ``pass``, ``skip``, ``fail`` or another word of DCGM. Every version of DCGM prints a warning
    #: as fail, so use `faults`.
    status: str
    warnings: List[Optional[DcgmWarning]]
    info: List[str]


class DcgmReport(TypedDict, total=False):
    #: None, `NO_DOCUMENT` or `INCOMPLETE`.
    problem: Optional[str]
    errors: List[Any]
    version: Optional[str]
    driver: Optional[str]
    #: DCGM's GPU ids; None if DCGM does not list them.
    gpus: Optional[List[int]]
    #: By DCGM's GPU id.
    serials: Dict[str, str]
    #: True if this DCGM version reports severities.
    rates: bool
    results: List[Optional[DcgmResult]]


def normalise(text: str) -> DcgmReport:
    """Parse the output of a run into plain JSON values."""
    reader = _Reader()
    try:
        documents, complete = _documents(text)
        for document in documents:
            reader.read(document)
    except RecursionError:
        complete = False
    problem = None if complete else INCOMPLETE
    if not reader.seen:
        problem = INCOMPLETE if not complete else NO_DOCUMENT
    reader.report["problem"] = problem
    return reader.report


def before_document(text: str) -> str:
    """What dcgmi printed before its document; the whole text if there is none."""
    found = _OBJECT.search(text)
    return text[: found.start()] if found and text[: found.start()].strip() else text


def _documents(text: str) -> Tuple[List[Dict[str, Any]], bool]:
    """The JSON objects in a text, and whether all were parsed. Parsing stops at an invalid object:
    part of a truncated document must not pass for the whole.
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
        self.report: DcgmReport = {
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
        for iteration in mappings_in(document.get("iterations")):
            self.read(iteration)
        around = decode(_Surroundings, document)
        for root in _ROOTS:
            if root not in document:
                continue
            self.seen = True
            self.report["rates"] = self.report["rates"] or root == _ROOTS[0]
            body = decode(_Diagnostic, document[root])
            for header in (body, around.get("metadata", {}), body.get("metadata", {})):
                self._read_header(header)
            self._read_entities(around.get("entity_groups") or body.get("entity_groups", []))
            if "runtime_error" in body:
                self.report["errors"].append(
                    _short(body["runtime_error"]) or "an error without a message"
                )
            for category in body.get("test_categories", []):
                for test in category.get("tests", []):
                    self._read_test(test)

    def _read_header(self, header: _Header) -> None:
        if "version" in header:
            self.report["version"] = header["version"][:_TEXT]
        if "Driver Version Detected" in header:
            self.report["driver"] = header["Driver Version Detected"][:_TEXT]
        devices, serials = header.get("GPU Device IDs"), header.get("GPU Device Serials")
        if devices:
            self.report["gpus"] = list(range(len(devices[:_ROWS])))
        if serials:
            self.report["gpus"] = [number for number in map(_whole, serials) if number is not None]
            self.report["serials"] = {
                key: serial for key, serial in serials.items() if serial is not None
            }

    def _read_entities(self, groups: List[_EntityGroup]) -> None:
        for group in groups:
            if not _is_gpu(group):
                continue
            for entity in group.get("entities", []):
                number = _whole(entity.get("entity_id"))
                if number is None:
                    continue
                self.report["gpus"] = (self.report["gpus"] or []) + [number]
                if "serial_num" in entity:
                    self.report["serials"][str(number)] = entity["serial_num"][:_TEXT]

    def _read_test(self, test: _Test) -> None:
        title = _short(test.get("name"))
        if not title:
            return
        before = len(self.report["results"])
        told: Set[Tuple[Any, Any]] = set()
        for result in test.get("results", []):
            warnings = _warnings(result)
            told.update((one.get("error_id"), one.get("text")) for one in warnings)
            for gpu, entity in _about(result):
                self._add(title, gpu, entity, result, warnings)
        summary = test.get("test_summary")
        if not summary:
            return
        # The summary repeats the worst status of its results, and from DCGM 4.5.0 on their
        # warnings; only an error without a GPU is unique to it.
        own = [
            one for one in _warnings(summary) if (one.get("error_id"), one.get("text")) not in told
        ]
        if own or len(self.report["results"]) == before:
            self._add(title, None, None, summary, own)

    def _add(
        self,
        title: str,
        gpu: Optional[int],
        entity: Optional[str],
        result: _TestResult,
        warnings: List[DcgmWarning],
    ) -> None:
        word = result.get("status")
        if len(self.report["results"]) >= _ROWS:
            return
        self.report["rates"] = self.report["rates"] or any(
            warning.get("severity") is not None for warning in warnings
        )
        self.report["results"].append(
            {
                "test": knowledge.run_name(title),
                "title": title,
                "gpu": gpu,
                "entity": entity,
                "warnings": [*warnings[:_TEXTS]],
                "status": _STATUSES.get(word.strip().lower(), word[:_TEXT])
                if isinstance(word, str)
                else "no status",
                "info": [_short(line) for line in _strings(result.get("info"))][:_TEXTS],
            }
        )


def _about(result: _TestResult) -> Iterator[Tuple[Optional[int], Optional[str]]]:
    """The GPUs, or other entity, of a result: ``(GPU id, None)``, ``(None, "CPU 0")``, ``(None,
    None)`` for the node.
    """
    if "entity_id" in result and not _is_gpu(result):
        yield (
            None,
            f"{_short(result.get('entity_group')) or 'entity'} {_short(result['entity_id'])}",
        )
        return
    given = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids")))
    parts = given.split(",") if isinstance(given, str) else given
    numbers = [_whole(part) for part in (parts if isinstance(parts, list) else [parts])]
    for number in numbers[:_ROWS]:
        yield number, None


def _is_gpu(about: _About) -> bool:
    group = about.get("entity_group_id")
    return (
        group == _GPU
        if group is not None
        else str(about.get("entity_group", "GPU")).upper() == "GPU"
    )


def _warnings(result: _TestResult) -> List[DcgmWarning]:
    """The warnings of a result: one string (2.x to 3.2, from 3.2 on with an ``error_id`` beside
    it), or objects with the text in ``warning`` (in the deployment tests of 3.3 in ``warnings``).
    """
    given = result.get("warnings")
    found: List[DcgmWarning] = []
    for item in given if isinstance(given, list) else [given]:
        if isinstance(item, dict):
            source = decode(_WarningItem, item)
            text = source.get("warning") or source.get("warnings")
        else:
            source, text = decode(_WarningItem, result), item
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
    error_id = _whole(result.get("error_id"))
    if not found and error_id:
        found.append({"text": "", "error_id": error_id, "category": None, "severity": None})
    return found


# --- the meaning of the results ---


class Result(NamedTuple):
    """One result of a report, with every field."""

    test: str
    title: str
    gpu: Optional[int]
    entity: Optional[str]
    status: str
    warnings: List[DcgmWarning]


class Fault(NamedTuple):
    """A fault that a result reports. ``kind`` is a word of `knowledge`, or an error code with an
    override.
    """

    kind: Union[str, int]
    result: Result
    warnings: List[DcgmWarning]


def results(report: DcgmReport) -> List[Result]:
    """The results of a report; an invalid result has no status."""
    found = []
    for row in report.get("results", []):
        row = row or {}
        test, title, status = (_short(row.get(key)) for key in ("test", "title", "status"))
        warnings: List[DcgmWarning] = [warning or {} for warning in row.get("warnings", [])]
        found.append(
            Result(test, title or test, row.get("gpu"), row.get("entity"), status, warnings)
        )
    return found


def faults(report: DcgmReport) -> List[Fault]:
    """All faults in a report: the warnings of each result by severity, so that the worst does not
    hide the others.
    """
    rates = report.get("rates", False)
    found: List[Fault] = []
    for result in results(report):
        by_kind: Dict[Union[str, int], List[DcgmWarning]] = {}
        for warning in result.warnings:
            by_kind.setdefault(_kind(warning, result), []).append(warning)
        none = by_kind.pop(knowledge.NONE, [])
        if result.status == "fail" and not by_kind:
            by_kind[knowledge.UNEXPLAINED if rates else _kind({}, result)] = none
        found += [Fault(kind, result, warnings) for kind, warnings in by_kind.items()]
    return found


def meaning(fault: Fault) -> knowledge.Meaning:
    """The status of the GPU if the test's result is final."""
    row = (
        knowledge.OVERRIDES.get(fault.kind)
        if isinstance(fault.kind, int)
        else knowledge.MEANINGS.get(fault.kind)
    )
    return row or knowledge.MEANINGS[knowledge.UNRECOGNISED]


def _kind(warning: DcgmWarning, result: Result) -> Union[str, int]:
    """The severity: the document's own before the table's, since severities change between
    releases.
    """
    error_id, severity = warning.get("error_id"), warning.get("severity")
    if error_id is not None and error_id in knowledge.OVERRIDES:
        return error_id
    if severity is not None:
        known = (
            knowledge.SEVERITIES[severity]
            if 0 <= severity < len(knowledge.SEVERITIES)
            else knowledge.UNRECOGNISED
        )
        if known != knowledge.UNRECOGNISED:
            return known
    if error_id is not None and error_id in knowledge.SEVERITY_OF:
        return knowledge.SEVERITY_OF[error_id]
    if severity is not None:
        return knowledge.UNRECOGNISED
    if result.title.lower() in knowledge.CONFIG_TESTS:
        return knowledge.CONFIG
    return knowledge.UNRATED


def gpu_ids(gpus: Sequence[Mapping[str, Any]], report: DcgmReport) -> List[int]:
    """DCGM's id of each GPU: by serial number if every GPU has one that DCGM lists, else the index,
    which DCGM counts alike; -1 for a GPU without an index.
    """
    by_serial: Dict[Optional[str], int] = {
        serial: number
        for key, serial in report.get("serials", {}).items()
        for number in [_whole(key)]
        if number is not None
    }
    matched = [by_serial[gpu["serial"]] for gpu in gpus if gpu.get("serial") in by_serial]
    if len(set(matched)) == len(gpus):
        return matched
    return [-1 if gpu.get("index") is None else gpu["index"] for gpu in gpus]


# --- reading values of any type ---


def _strings(value: Any) -> List[Any]:
    return [item for item in (value if isinstance(value, list) else [value]) if item]


def _short(value: Any) -> str:
    """A text on one line, of bounded length."""
    return " ".join(str(value).split())[:_TEXT] if isinstance(value, (str, int, float)) else ""


def _whole(value: Any) -> Optional[int]:
    """An integer, also one written as text; None for anything else or for too many digits."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None
