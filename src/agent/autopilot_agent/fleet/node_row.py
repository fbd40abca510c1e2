# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The row of a node in an answer: its results and verdict. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, NamedTuple, Optional, Sequence

from _health.cluster.agents_without_dcgm import AgentWithoutDcgm
from _health.fleet.judging.policy import Policy
from _health.fleet.judging.report import COULD_NOT_TELL
from _health.fleet.judging.verdict import judge_node
from _health.model import UNKNOWN, CheckResult

#: Words that scripts search for.
_KEYWORDS = re.compile(
    r"\w*(?:SUCCESS|FAIL|WARN|ABORT|SKIP)\w*|\bERR|\bO[Kk]\b|Node (?:Status|Summary):"
)
_MOST_CHARACTERS = 500


class Row(NamedTuple):
    """The data about one node."""

    node: str
    status: str
    fit: str
    results: Sequence[CheckResult] = ()
    #: Why there are no results, or "".
    trouble: str = ""
    #: The agent's address.
    endpoint: str = ""
    seconds: float = 0.0
    #: The node's agent if it has no dcgmi, else None.
    without_dcgm: Optional[AgentWithoutDcgm] = None
    #: Why these are earlier results, and their age; "" for results of this request.
    testing: str = ""

    @property
    def summary(self) -> str:
        return (
            self.trouble
            or "; ".join(
                f"{one.check}: {one.summary}" for one in self.results if one.status == self.status
            )
            or self.status
        )

    def to_dict(self) -> Dict[str, Any]:
        return {
            "node": self.node,
            "status": self.status,
            "fit": self.fit,
            "summary": self.summary,
            "health": [one.to_dict() for one in self.results],
            "endpoint": self.endpoint,
            "seconds": round(self.seconds, 3),
            **({"testing": self.testing} if self.testing else {}),
        }


def judged(
    node: str, results: Sequence[CheckResult], endpoint: str = "", seconds: float = 0.0
) -> Row:
    """The row of a node whose checks answered, with the core's verdict."""
    decided = judge_node(results, Policy())
    trouble = "" if results else "could not tell: there is no result"
    return Row(node, decided.status, decided.fit, results, trouble, endpoint, seconds)


def could_not_tell(node: str, why: str, endpoint: str = "", seconds: float = 0.0) -> Row:
    """The row of a node without data."""
    return Row(node, UNKNOWN, COULD_NOT_TELL, (), f"could not tell: {why}", endpoint, seconds)


def plain(text: str, most: int = _MOST_CHARACTERS) -> str:
    """One line without control characters, and with the words that scripts search for in lower
    case.
    """
    line = " ".join(
        "".join(
            character if character.isprintable() else " " for character in text[: 4 * most]
        ).split()
    )
    return _KEYWORDS.sub(
        lambda found: found.group().lower(), line if len(line) <= most else line[: most - 3] + "..."
    )
