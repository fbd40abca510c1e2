# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Meaning and next step of each finding code, for alerts, the report page and ``docs/findings.md``.

The message of a finding describes one node, with figures. Sources for statements about NVIDIA's
tools and counters are named in the checks.
"""

from __future__ import annotations

import re
from typing import Dict, Sequence

from ...knowledge.finding_text import FindingText, node_step
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
    queue,
    usage,
)
from ...model import STATUSES, Finding
from ...node import registry

#: The tables of codes that several checks share or that belong to no check.
SHARED = (node, activity, gpu, errors, links, dcgm, network, host, changes, cluster, queue, usage)
#: Text by code: from the shared tables, and from the record of each check.
FINDINGS: Dict[str, FindingText] = {
    **{code: text for table in SHARED for code, text in table.FINDINGS.items()},
    **{code: text for check in registry.every() for code, text in check.findings.items()},
}

#: For unknown codes: from newer versions or other programs.
_GENERAL = FindingText(
    "This version does not know the code.",
    "Read the message of the finding; the run document has the evidence.",
)

#: Codes with a text in a short next step.
_MOST_TEXTS = 2
#: The blank after a sentence; the next one begins with a capital letter or a command.
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z`])")


def runbook(code: str) -> FindingText:
    """Meaning and next step of a code. ``<check>_<status>`` stands for the status of a check that
    none of its findings explains.
    """
    if code in FINDINGS:
        return FINDINGS[code]
    check, _line, status = code.rpartition("_")
    if check and status in STATUSES:
        return FindingText(
            f"The status of the check {check} is {status}, and no finding explains it.",
            "Read the summary of the check; the run document has its readings.",
        )
    return _GENERAL


def next_step(finding: Finding) -> str:
    """The next step for a finding, in whole sentences: what its action asks for, then what to do
    about the cause. The only wording of it: summary, page and documents show this text.
    """
    own = runbook(finding.code).next
    return " ".join(filter(None, (node_step(finding.action, finding.status), own)))


def brief_steps(findings: Sequence[Finding]) -> str:
    """The next step for findings with the same action, in short: the action's first sentence, and the
    first sentence of at most two codes.
    """
    worst = max(findings, key=lambda finding: STATUSES.index(finding.status))
    codes = dict.fromkeys(finding.code for finding in findings if finding.code in FINDINGS)
    texts = [node_step(worst.action, worst.status), *(FINDINGS[code].next for code in codes)]
    brief = dict.fromkeys(_SENTENCE_END.split(text)[0] for text in texts[: 1 + _MOST_TEXTS] if text)
    return " ".join(brief) or "Run the check again."
