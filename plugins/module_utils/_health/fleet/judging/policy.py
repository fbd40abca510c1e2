# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The policy of a run: read from the user's options, and applied to the results of checks. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from ...knowledge.fleet import FALSE_DRAINS
from ...lenient import mapping
from ...model import FAIL, UNKNOWN, WARN, CheckResult, Finding, concluded, worst
from ...spelling import unsupported

#: Findings about a node that was not checked; no policy turns them into a warning, since that
#: would make it fit.
_NOT_CHECKED = ("unreachable", "not_checked")

#: Code of the finding by which check mode names what would run.
WOULD_RUN = "would_run"

Limit = Union[int, str]


class Policy(NamedTuple):
    """What the operator tolerates. `policy_from` reads it from the user's options."""

    #: Statuses that make a node unfit.
    unfit: Tuple[str, ...] = (FAIL,)
    #: Codes of findings that count as a warning at most.
    warn_only: Tuple[str, ...] = ()
    #: Unfit nodes that a passed run may have: a number, or a share of the nodes such as ``"5%"``.
    max_unfit: Limit = 0
    #: Undecided nodes that a passed run may have, likewise.
    max_unknown: Limit = 0
    #: Fit nodes with skipped checks that a passed run may have, likewise.
    max_partial: Limit = "100%"
    #: Expected number of healthy nodes that the mesh fails in a run of a healthy fleet.
    false_drains: float = FALSE_DRAINS

    def to_dict(self) -> Dict[str, Any]:
        return dict(
            unfit=list(self.unfit),
            warn_only=list(self.warn_only),
            max_unfit=self.max_unfit,
            max_unknown=self.max_unknown,
            max_partial=self.max_partial,
            false_drains=self.false_drains,
        )


def policy_from(given: Any, option: str = "policy") -> Policy:
    """The user's policy; raises ValueError that names the option, its value and what is accepted."""
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise _invalid(option, given, f"a dictionary with any of {', '.join(Policy._fields)}")
    for name in given:
        if name not in Policy._fields:
            raise ValueError(f"{option}: {unsupported('option', name, Policy._fields)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    read: Dict[str, Callable[[str, Any], Any]] = {
        "unfit": _unfit,
        "warn_only": _codes,
        "max_unfit": _limit,
        "max_unknown": _limit,
        "max_partial": _limit,
        "false_drains": _expected_number,
    }
    return Policy(**{name: read[name](f"{option}.{name}", value) for name, value in chosen.items()})


def _invalid(name: str, value: Any, accepted: str) -> ValueError:
    return ValueError(f"{name}: {value!r} is invalid; expected {accepted}")


def _unfit(name: str, value: Any) -> Tuple[str, ...]:
    accepted = (FAIL, UNKNOWN, WARN)
    if (
        not isinstance(value, (list, tuple))
        or FAIL not in value
        or any(item not in accepted for item in value)
    ):
        raise _invalid(
            name, value, f"a list that contains {FAIL}, and may contain {UNKNOWN} and {WARN}"
        )
    return tuple(status for status in accepted if status in value)


def _codes(name: str, value: Any) -> Tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or any(
        not isinstance(item, str) or not re.match(r"^[a-z][a-z0-9_]*$", item) for item in value
    ):
        raise _invalid(name, value, "a list of codes of findings, such as [link_degraded]")
    for code in _NOT_CHECKED:
        if code in value:
            raise _invalid(
                name,
                code,
                "codes of findings of checks; the number of nodes without a result is "
                "policy.max_unknown",
            )
    return tuple(str(item) for item in value)


def _limit(name: str, value: Any) -> Limit:
    accepted = "a number of nodes from 0, or a share from 0% to 100% such as '5%'"
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _invalid(name, value, accepted)
    text = str(value).strip()
    if re.match(r"^[0-9]+$", text):
        return int(text)
    if re.match(r"^[0-9]+(\.[0-9]+)? ?%$", text) and _share(text) <= 1:
        return text
    raise _invalid(name, value, accepted)


def _expected_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise _invalid(name, value, "a number from 0 to 1, such as 0.001")
    return float(value)


def _share(text: str) -> Fraction:
    return Fraction(text.rstrip("% ")) / 100


def tolerated(limit: Limit, nodes: int) -> int:
    """The limit as a number of nodes; a share is rounded down."""
    return limit if isinstance(limit, int) else int(_share(limit) * nodes)


def apply_policy(results: Sequence[CheckResult], policy: Policy) -> List[CheckResult]:
    """The results as the policy takes them; what would run is left out as far as nothing is known
    without running it.
    """
    known = [_known_without_running(result) if is_planned(result) else result for result in results]
    return [lower_by_codes(result, policy.warn_only) for result in known if result]


def is_planned(result: CheckResult) -> bool:
    """True for a result of check mode, which says only what would run."""
    return any(finding.code == WOULD_RUN for finding in result.findings)


def _known_without_running(result: CheckResult) -> Optional[CheckResult]:
    """The findings of a result of check mode that are known without running the check."""
    rest = [finding for finding in result.findings if finding.status in (WARN, UNKNOWN, FAIL)]
    return concluded(result.check, rest, result.summary) if rest else None


def lower_by_codes(result: CheckResult, codes: Iterable[str]) -> CheckResult:
    """The result with the findings of these codes no worse than a warning."""
    lenient = [
        Finding(one.code, WARN, one.message, one.action, one.subject, one.evidence)
        if one.code in codes and one.status in (FAIL, UNKNOWN)
        else one
        for one in result.findings
    ]
    if lenient == result.findings:
        return result
    # A status that no finding explains is the check's own word and stays.
    own = result.status if result.status != worst([one.status for one in result.findings]) else WARN
    return CheckResult(
        result.check,
        worst([own] + [one.status for one in lenient]),
        result.summary,
        lenient,
        result.measurements,
        result.duration_seconds,
    )


def recorded_policy(recorded: Any) -> Policy:
    """The policy of a run document, as far as this version knows it; raises ValueError for an
    invalid one.
    """
    known = {name: value for name, value in mapping(recorded).items() if name in Policy._fields}
    return policy_from(known)


def policy_as_far_as_valid(recorded: Any) -> Policy:
    """The policy of a run document; the default where it has none that is valid."""
    try:
        return recorded_policy(recorded)
    except ValueError:
        return Policy()
