# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""make accuracy: the truth table. Every scenario of a corpus is put before the real checks on a
stand-in node, and what they find is compared with the truth.

A file of ``tests/accuracy`` is a list of entries:

    name      of the scenario
    kind      healthy | fault | recovered; a pair is made from two others
    each      {variable: [values]}: a scenario for each combination; $variable stands for the
              value everywhere below. With a variable gpu there are $slot (its place on the bus as
              sysfs spells it, 0000:5d:00.0), $kernel (as the kernel log does, 0000:5d:00) and
              $bridge (the port above it)
    node      the scenario of the node, see tests/sandbox/node.py
    checks    what to run beside all passive checks
    options   {check: {option: value}}
    nhc       a configuration file of NHC, from which options and expected_gpus are taken; a
              measuring check that it asks for runs if ``checks`` has it
    expected_gpus  how many GPUs the inventory says, where it is not as many as there are
    expect    [[check, code, subject, status, action]]: the check that must find this, and that
              nothing else from ``warn`` up may be found by any. A subject is the index of a GPU,
              null for the node, or a name (a bus id for what has none). Other checks may find the
              same too: a lost GPU is lost to all.
    fit       what the verdict must be, where it does not follow from ``expect``
    says      [texts] that must be in the messages of what is found from ``warn`` up
    passes    [hours] between passes beside a job that all find this, by the policy that stops a
              job for a fault seen twice; ``decision`` is what the last must decide
    before    the scenario of the node at a snapshot, with which ``node`` is compared
    alike     how many nodes of this scenario are in the run; what the run says counts as said of
              the node

or it makes pairs: ``{pairs: [names of scenarios]}``, every two of them on one node, or ``{pairs:
[...], with: [...]}``, each with each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "accuracy"
sys.path.insert(0, str(ROOT / "tests" / "sandbox"))
import node as sandbox  # noqa: E402

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import nhc, registry  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import node_changes  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import runner  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.job_decision import (
    STOP,
    JobPolicy,
    decide,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    COULD_NOT_TELL,
    FIT,
    UNFIT,
    identify_run,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_node,
    judge_run,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    FAIL,
    PASSIVE,
    UNKNOWN,
    WARN,
    CheckResult,
)  # noqa: E402

KINDS = ("healthy", "fault", "pair", "recovered")
_HEADINGS = {
    "healthy": "healthy nodes",
    "fault": "single faults",
    "pair": "pairs of faults",
    "recovered": "recovered faults",
}
_KEYS = {
    "name",
    "kind",
    "about",
    "each",
    "node",
    "checks",
    "options",
    "expected_gpus",
    "expect",
    "fit",
    "before",
    "alike",
    "nhc",
    "says",
    "passes",
    "decision",
}
#: The lines of a document between which the table stands.
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
#: Seconds for one scenario; every check has a deadline far below.
_PATIENCE = 120
#: Where the nodes are written: hundreds of small files each, ten times as fast in memory.
_SHELF = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: Checks of no pass, which run where a scenario names them.
_BY_REQUEST = ("gpu_activity", "iperf3_pairs")
#: The directory from which the loader takes the stand-in libraries, once and for all scenarios.
_LIBRARIES = "ACCURACY_LIBRARIES"


class Row(NamedTuple):
    """One fact that is to be found, or was: what, about whom, how bad, and what to do; and which
    check says so.
    """

    check: str
    code: str
    subject: Any
    status: str
    action: str

    @property
    def fact(self) -> Tuple[Any, ...]:
        return (self.code, self.subject, self.status, self.action)

    def __str__(self) -> str:
        subject = (
            "node"
            if self.subject is None
            else f"GPU {self.subject}"
            if isinstance(self.subject, int)
            else self.subject
        )
        return f"{self.check}: {self.code} of {subject}, {self.status}, {self.action}"


class Scenario(NamedTuple):
    name: str
    kind: str
    node: Dict[str, Any]
    checks: Tuple[str, ...]
    options: Dict[str, Dict[str, Any]]
    expect: Tuple[Row, ...]
    fit: str
    expected_gpus: Optional[int] = None
    before: Optional[Dict[str, Any]] = None
    alike: int = 1
    says: Tuple[str, ...] = ()
    passes: Tuple[float, ...] = ()
    decision: str = ""


class Comparison(NamedTuple):
    """How what was found differs from the truth, as rows; each difference counts for the check it
    stands with.
    """

    right: List[Row]
    missed: List[Row]
    false_alarms: List[Row]
    wrong_gpu: List[Tuple[Row, Row]]
    wrong_action: List[Tuple[Row, Row]]

    @property
    def exact(self) -> bool:
        return not (self.missed or self.false_alarms or self.wrong_gpu or self.wrong_action)


# ---- the corpus ----


def load(directory: Path = CORPUS) -> List[Scenario]:
    """Every scenario; raises ValueError that names the entry that is not understood."""
    scenarios: Dict[str, Scenario] = {}
    entries = [
        (path.name, entry)
        for path in sorted(directory.glob("*.yml"))
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    for where, entry in entries:
        if "pairs" not in entry:
            for scenario in _expanded(where, entry):
                _add(scenarios, scenario)
    for _where, entry in entries:
        if "pairs" in entry:
            for first, second in (
                itertools.product(entry["pairs"], entry["with"])
                if "with" in entry
                else itertools.combinations(entry["pairs"], 2)
            ):
                _add(scenarios, _both(scenarios[first], scenarios[second]))
    return sorted(scenarios.values(), key=lambda scenario: KINDS.index(scenario.kind))


def _add(scenarios: Dict[str, Scenario], scenario: Scenario) -> None:
    if scenario.name in scenarios:
        raise ValueError(f"{scenario.name}: there are two scenarios of this name")
    scenarios[scenario.name] = scenario


def _expanded(where: str, entry: Dict[str, Any]) -> Iterator[Scenario]:
    strange = set(entry) - _KEYS
    if strange or entry.get("kind") not in KINDS:
        raise ValueError(
            f"{where}: {entry.get('name')}: {', '.join(sorted(strange)) or entry.get('kind')} "
            "is not understood"
        )
    each = entry.get("each") or {}
    for values in itertools.product(*each.values()):
        variables = dict(zip(each, values))
        name = entry["name"] + "".join(
            f" {key}={value[0] if isinstance(value, list) else value}"
            for key, value in variables.items()
        )
        clash = sorted(set(variables) & set(_places(variables)))
        if clash:
            raise ValueError(
                f"{where}: {entry['name']}: {', '.join(clash)} is a place on the bus, give the "
                "variable another name"
            )
        # Values that go together: $name.0, $name.1.
        variables.update(
            {
                f"{key}.{place}": part
                for key, value in list(variables.items())
                if isinstance(value, list)
                for place, part in enumerate(value)
            }
        )
        filled = _filled(
            {key: entry.get(key) for key in _KEYS - {"each", "about"}},
            dict(variables, **_places(variables)),
        )
        rows = tuple(Row(*row) for row in filled["expect"] or ())
        wanted, options, fit = (
            tuple(filled["checks"] or ()),
            dict(filled["options"] or {}),
            filled["fit"] or _fitness(rows),
        )
        expected_gpus = filled["expected_gpus"]
        if filled["nhc"]:
            taken = nhc.read(filled["nhc"])
            options.update(taken.options)
            expected_gpus = taken.expected_gpus
        yield Scenario(
            name,
            entry["kind"],
            filled["node"] or {},
            wanted,
            options,
            rows,
            fit,
            expected_gpus,
            filled["before"],
            filled["alike"] or 1,
            tuple(filled["says"] or ()),
            tuple(filled["passes"] or ()),
            filled["decision"] or "",
        )


def _places(variables: Dict[str, Any]) -> Dict[str, str]:
    """Where a GPU is on the bus of the stand-in node."""
    if "gpu" not in variables:
        return {}
    bus = sandbox.BUSES[variables["gpu"]]
    bridge = f"sys/devices/pci0000:{bus - 1:02x}/0000:{bus - 1:02x}:01.0"
    return {"slot": f"0000:{bus:02x}:00.0", "kernel": f"0000:{bus:02x}:00", "bridge": bridge}


def _filled(value: Any, variables: Dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {_filled(key, variables): _filled(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    if isinstance(value, str) and "$" in value:
        if value[1:] in variables:
            return _filled(variables[value[1:]], variables)
        for name in sorted(variables, key=len, reverse=True):
            if f"${name}" in value:
                value = value.replace(f"${name}", str(_filled(variables[name], variables)))
    return value


def _fitness(rows: Iterable[Row]) -> str:
    """The verdict that follows from the facts."""
    statuses = {row.status for row in rows}
    return UNFIT if FAIL in statuses else COULD_NOT_TELL if UNKNOWN in statuses else FIT


def _both(first: Scenario, second: Scenario) -> Scenario:
    """Two scenarios on one node."""
    rows = tuple(dict.fromkeys(first.expect + second.expect))
    options = {
        check: {**first.options.get(check, {}), **second.options.get(check, {})}
        for check in {**first.options, **second.options}
    }
    node = _merged(first.node, second.node)
    if "boot" in (node.get("kmsg") or ()):
        node["kmsg"] = ["boot"] + [record for record in node["kmsg"] if record != "boot"]
    return Scenario(
        f"{first.name} + {second.name}",
        "pair",
        node,
        tuple(dict.fromkeys(first.checks + second.checks)),
        options,
        rows,
        _fitness(rows),
    )


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _merged(first.get(key), second.get(key)) for key in {**first, **second}}
    if isinstance(first, list) and isinstance(second, list):
        return first + second
    if first is not None and second is not None and first != second:
        raise ValueError(f"{first!r} and {second!r} are not to be had on one node")
    return first if second is None else second


# ---- one scenario ----


def examine(scenario: Scenario) -> List[Dict[str, Any]]:
    """What the checks say of a node of this scenario, as results in plain values. Changes this
    process's environment.
    """
    directory = Path(tempfile.mkdtemp(prefix="accuracy-", dir=_SHELF))
    try:
        then = None
        if scenario.before is not None:
            _results, then = _look(scenario, scenario.before, directory / "before")
        results, now = _look(scenario, scenario.node, directory / "node")
        if then and now:
            before, after = (dict(store.of(*one)) for one in (then, now))
            results.append(node_changes.judge({"before": before, "after": after}, {}))
        if now and scenario.alike > 1:
            results = _of_several(scenario.alike, results, now)
        return [result.to_dict() for result in results]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Look(NamedTuple):
    """What a pass over a node read, beside its results."""

    header: Dict[str, Any]
    facts: Dict[str, Any]
    readings: Dict[str, Any]


def _look(
    scenario: Scenario, node: Dict[str, Any], directory: Path
) -> Tuple[List[CheckResult], Optional[_Look]]:
    """The results of the scenario's checks on a node, and what they read, where they run here."""
    built = sandbox.build(node, directory, settings={"TMPDIR": str(directory.parent)})
    chosen = [
        name
        for name in registry.names_of_pass()
        if registry.load(name).intrusion == PASSIVE or name in scenario.checks
    ]
    chosen += [name for name in _BY_REQUEST if name in scenario.checks]
    settings = dict(
        expected_gpus=scenario.expected_gpus or built.scenario["gpus"] or None,
        nvml_library=built.library,
        host_root=built.root,
    )
    requests = [[name, scenario.options.get(name, {})] for name in chosen]
    if built.scenario["driver"]["library"] is not True:
        # The loader must not find what it finds for the others.
        return _in_a_program(built, requests, settings), None
    os.environ.update(built.environment)
    wanted = [
        (registry.load(name), dict(registry.load(name).defaults(), **options))
        for name, options in requests
    ]
    outcomes = runner.run(wanted, HostSettings(**settings), stop_on_fail=False)
    look = _Look(
        dict(store.header("accuracy", Host(built.root))),
        dict(runner.node_facts(outcomes, HostSettings(**settings))),
        {outcome.result.check: outcome.readings for outcome in outcomes},
    )
    return [outcome.result for outcome in outcomes], look


def _of_several(count: int, results: List[CheckResult], look: _Look) -> List[CheckResult]:
    """The results of the first of several nodes of a run that are all like this one, and what the
    run says of them.
    """
    readings = {check: {"readings": found} for check, found in look.readings.items()}
    answers = [
        NodeAnswer(f"node{number}", results, look.facts, readings) for number in range(count)
    ]
    report = judge_run(identify_run("accuracy", "preflight", 0, 1, False), answers, Policy())
    of_run = [
        CheckResult(found.check, found.finding.status, "", [found.finding])
        for found in report.findings
    ]
    return report.nodes[0].verdict.results + of_run


def _in_a_program(built: Any, requests: List[Any], settings: Dict[str, Any]) -> List[CheckResult]:
    asked = json.dumps({"checks": requests, "settings": settings, "how": {"stop_on_fail": False}})
    program = [built.python, str(sandbox.SANDBOX / "measure.py"), asked]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_LIBRARY_PATH", _LIBRARIES)
    }
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=True
    )
    return [CheckResult.from_dict(outcome["result"]) for outcome in json.loads(done.stdout)]


def found_in(results: List[Dict[str, Any]]) -> List[Row]:
    """Every finding from ``warn`` up, each once."""
    rows = []
    for result in results:
        before = len(rows)
        for finding in result["findings"]:
            subject = finding["subject"]
            about = (
                subject.get("index", subject.get("pci"))
                if subject["kind"] == "gpu"
                else subject.get("name", subject.get("pci"))
            )
            if finding["status"] in (WARN, UNKNOWN, FAIL):
                rows.append(
                    Row(
                        result["check"],
                        finding["code"],
                        about,
                        finding["status"],
                        finding["action"],
                    )
                )
        if len(rows) == before and result["status"] in (WARN, UNKNOWN, FAIL):
            rows.append(Row(result["check"], "no_finding", None, result["status"], "none"))
    return list(dict.fromkeys(rows))


def unsaid_in(results: List[Dict[str, Any]], texts: Iterable[str]) -> List[str]:
    """The texts that no message of a finding from ``warn`` up has."""
    messages = [
        finding["message"]
        for result in results
        for finding in result["findings"]
        if finding["status"] in (WARN, UNKNOWN, FAIL)
    ]
    return [text for text in texts if not any(text in message for message in messages)]


def decision_of(results: List[Dict[str, Any]], hours: Iterable[float]) -> str:
    """What passes with these results decide about a job, with the hours between them."""
    moment, history, decision = 1_700_000_000.0, None, ""
    for number, pause in enumerate((0.0, *hours)):
        moment += 3600 * pause
        run = identify_run(str(number), "ongoing", moment, moment, False)
        answer = NodeAnswer("node0", [CheckResult.from_dict(result) for result in results], {}, {})
        report = judge_run(run, [answer], Policy())
        decided = decide(report, JobPolicy(on_fail=STOP), history)
        history, decision = decided.history, decided.decision
    return decision


def compare(expected: Iterable[Row], found: Iterable[Row]) -> Comparison:
    """The truth against what was found. What is nearly right (the same code of another GPU, or of
    this one with another status or action) is one difference, not a miss and a false alarm.
    """
    expected, found = list(expected), list(found)
    facts = {row.fact for row in expected}
    said = {(row.check, *row.fact) for row in found}
    left = [row for row in expected if (row.check, *row.fact) not in said]
    result = Comparison([row for row in expected if (row.check, *row.fact) in said], [], [], [], [])
    strange = [row for row in found if row.fact not in facts]
    for row in left:
        same_subject = next(
            (
                one
                for one in strange
                if (one.check, one.code, one.subject) == (row.check, row.code, row.subject)
            ),
            None,
        )
        other_subject = next(
            (one for one in strange if (one.check, one.code) == (row.check, row.code)), None
        )
        near = same_subject or other_subject
        if near is None:
            result.missed.append(row)
            continue
        strange.remove(near)
        (result.wrong_action if same_subject else result.wrong_gpu).append((row, near))
    result.false_alarms.extend(strange)
    return result


def fitness(results: List[Dict[str, Any]]) -> str:
    return judge_node([CheckResult.from_dict(result) for result in results], Policy()).fit


def _answer(scenario: Scenario) -> Tuple[str, List[Dict[str, Any]], str]:
    try:
        return scenario.name, examine(scenario), ""
    except Exception as error:  # the others are still to be looked at
        return scenario.name, [], f"{type(error).__name__}: {error}"


def run(
    scenarios: List[Scenario], jobs: int
) -> Iterator[Tuple[Scenario, List[Dict[str, Any]], str]]:
    """(scenario, results, what went wrong with the examination itself), as they come. A process for
    each scenario, forked with all imports done.
    """
    import pynvml  # noqa: F401 - so that no scenario has to

    for name in (*registry.names_of_pass(), *_BY_REQUEST):
        registry.load(name)
    by_name = {scenario.name: scenario for scenario in scenarios}
    # Those that measure wait most of their time: for the GPUs to be idle, twice.
    measuring = [scenario for scenario in scenarios if scenario.checks]
    reading = [scenario for scenario in scenarios if not scenario.checks]
    forked = multiprocessing.get_context("fork")
    with forked.Pool(jobs, maxtasksperchild=1) as readers, forked.Pool(
        4 * jobs, maxtasksperchild=1
    ) as measurers:
        answers = [
            measurers.imap_unordered(_answer, measuring),
            readers.imap_unordered(_answer, reading),
        ]
        for waiting, count in zip(answers, (len(measuring), len(reading))):
            for _number in range(count):
                name, results, trouble = waiting.next(timeout=_PATIENCE)
                yield by_name[name], results, trouble


# ---- the table ----


class Tally:
    """Counts by kind of scenario and by check."""

    def __init__(self) -> None:
        self.kinds = {kind: {"scenarios": 0, "exact": 0} for kind in KINDS}
        self.checks: Dict[str, Dict[str, int]] = {}
        self.differences: List[str] = []

    def add(self, scenario: Scenario, results: List[Dict[str, Any]], trouble: str) -> None:
        self.kinds[scenario.kind]["scenarios"] += 1
        if trouble:
            self.differences.append(f"{scenario.name}: {trouble}")
            return
        comparison, fit = compare(scenario.expect, found_in(results)), fitness(results)
        unsaid = unsaid_in(results, scenario.says)
        decision = decision_of(results, scenario.passes) if scenario.decision else ""
        wrong_decision = decision != scenario.decision
        self.kinds[scenario.kind]["exact"] += (
            comparison.exact and fit == scenario.fit and not unsaid and not wrong_decision
        )
        for column, rows in (
            ("right", comparison.right),
            ("missed", comparison.missed),
            ("false_alarms", comparison.false_alarms),
            ("wrong_gpu", [pair[0] for pair in comparison.wrong_gpu]),
            ("wrong_action", [pair[0] for pair in comparison.wrong_action]),
        ):
            for row in rows:
                self._of(row.check)[column] += 1
        # A check can have a result of the node and one of the fleet.
        for check in {result["check"] for result in results}:
            self._of(check)["scenarios"] += 1
        said = [f"missed: {row}" for row in comparison.missed] + [
            f"false alarm: {row}" for row in comparison.false_alarms
        ]
        said += [
            f"wrong subject: {row}; found {other.subject}" for row, other in comparison.wrong_gpu
        ]
        said += [
            f"wrong status or action: {row}; found {other.status}, {other.action}"
            for row, other in comparison.wrong_action
        ]
        said += [f"not said: {text}" for text in unsaid]
        said += [f"decision: {decision}, not {scenario.decision}"] if wrong_decision else []
        said += [f"verdict: {fit}, not {scenario.fit}"] if fit != scenario.fit else []
        self.differences += [f"{scenario.name}: {words}" for words in said]

    def _of(self, check: str) -> Dict[str, int]:
        return self.checks.setdefault(
            check,
            {
                "scenarios": 0,
                "right": 0,
                "missed": 0,
                "false_alarms": 0,
                "wrong_gpu": 0,
                "wrong_action": 0,
            },
        )

    def to_dict(self) -> Dict[str, Any]:
        return {
            "kinds": self.kinds,
            "checks": {name: self.checks[name] for name in registry.NAMES if name in self.checks},
            "differences": self.differences,
        }


def table(tally: Dict[str, Any]) -> str:
    """The counts as two tables in Markdown."""
    lines = ["| corpus | scenarios | exactly right |", "| --- | ---: | ---: |"]
    lines += [
        f"| {_HEADINGS[kind]} | {counts['scenarios']} | {counts['exact']} |"
        for kind, counts in tally["kinds"].items()
    ]
    total, exact = (
        sum(counts[column] for counts in tally["kinds"].values())
        for column in ("scenarios", "exact")
    )
    lines += [f"| **all** | **{total}** | **{exact}** |", ""]
    lines += [
        "| check | scenarios | faults found | missed | false alarms | wrong subject | wrong "
        "status or action |"
    ]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    columns = ("scenarios", "right", "missed", "false_alarms", "wrong_gpu", "wrong_action")
    lines += [
        f"| `{name}` | {' | '.join(str(counts[column]) for column in columns)} |"
        for name, counts in tally["checks"].items()
    ]
    return "\n".join(lines)


def written(document: str, words: str) -> str:
    """A document with the table between its two marks; raises ValueError where it has none."""
    head, begin, rest = document.partition(BEGIN)
    _old, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(
            f"there is no place for the table: {BEGIN} and {END} on lines of their own"
        )
    return f"{head}{BEGIN}\n{words}\n{END}{tail}"


def _with_libraries() -> None:
    """Begin again with the stand-in libraries on the loader's path, which is read once, when a
    program starts.
    """
    if _LIBRARIES in os.environ:
        return
    home = Path(tempfile.mkdtemp(prefix="accuracy-lib-"))
    for source in ("libnvidia-ml.c", "libcuda.c"):
        (home / f"{source[:-2]}.so.1").symlink_to(sandbox.library(source))
    environment = dict(os.environ, **{_LIBRARIES: str(home), "LD_LIBRARY_PATH": str(home)})
    try:
        raise SystemExit(
            subprocess.run(
                [sys.executable, __file__, *sys.argv[1:]], env=environment, check=False
            ).returncode
        )
    finally:
        shutil.rmtree(home)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="scenarios at the same time (default: one for each processor)",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        default=CORPUS,
        help="directory of the scenarios (default: tests/accuracy)",
    )
    parser.add_argument("--only", metavar="TEXT", help="only scenarios whose name has this in it")
    parser.add_argument(
        "--json", action="store_true", help="the counts as JSON in place of the tables"
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="put the tables between the marks in this document too",
    )
    parser.add_argument("--list", action="store_true", help="the names of the scenarios, and end")
    chosen = parser.parse_args(arguments)
    scenarios = [
        scenario for scenario in load(chosen.corpus) if (chosen.only or "") in scenario.name
    ]
    if not scenarios:
        parser.error(f"no scenario has {chosen.only!r} in its name")
    if chosen.list:
        print("\n".join(f"{scenario.kind}: {scenario.name}" for scenario in scenarios))
        return 0
    _with_libraries()
    tally, began = Tally(), time.monotonic()
    for scenario, results, trouble in run(scenarios, chosen.jobs):
        tally.add(scenario, results, trouble)
    counts = dict(tally.to_dict(), seconds=round(time.monotonic() - began, 1))
    print(json.dumps(counts, indent=1) if chosen.json else table(counts))
    if not chosen.json:
        print(
            *(
                ["", f"{len(tally.differences)} differences:", *tally.differences]
                if tally.differences
                else []
            ),
            sep="\n",
        )
        print(f"accuracy: {len(scenarios)} scenarios in {counts['seconds']} s", file=sys.stderr)
    if chosen.write:
        chosen.write.write_text(
            written(chosen.write.read_text(encoding="utf-8"), table(counts)), encoding="utf-8"
        )
    return 1 if tally.differences else 0


if __name__ == "__main__":
    sys.exit(main())
