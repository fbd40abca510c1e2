# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What each code of a finding means and what to do about it: the words of alerts, of the report
page and of ``docs/findings.md``.

The finding itself says it of one node, with figures. What is said of NVIDIA's tools and counters is
from the sources that stand beside the checks.
"""

from __future__ import annotations

from typing import Dict

from ...knowledge.finding_text import FindingText
from ...knowledge.findings import (
    activity,
    changes,
    cluster,
    dcgm,
    errors,
    gpu,
    host,
    links,
    network,
    node,
    usage,
)
from ...model import STATUSES
from ...node import registry

#: The tables of codes that several checks share or that belong to no check, by subject.
SHARED = (node, activity, gpu, errors, links, dcgm, network, host, changes, cluster, usage)
#: Code -> its text: the shared tables, and each check's own from its record.
FINDINGS: Dict[str, FindingText] = {
    **{code: text for table in SHARED for code, text in table.FINDINGS.items()},
    **{code: text for check in registry.every() for code, text in check.findings.items()},
}

#: For codes that are not in the table: those of newer versions, of other programs, and a check's
#: status that none of its findings explains.
_GENERAL = FindingText(
    "This version has no further words for the finding.",
    "Its message says what was found; the run document has the evidence.",
)


def runbook(code: str) -> FindingText:
    """What is said about a code, also about one that no table has: ``<check>_<status>`` is a
    check's own word, which no finding explains.
    """
    if code in FINDINGS:
        return FINDINGS[code]
    check, _line, status = code.rpartition("_")
    if check and status in STATUSES:
        return FindingText(
            f"The check {check} says {status}, and none of its findings says why.",
            "Look at its summary; the run document has its readings.",
        )
    return _GENERAL
