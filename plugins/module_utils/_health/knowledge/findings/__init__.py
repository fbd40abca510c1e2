# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What each code of a finding means and what to do about it: the words of alerts, of the report
page and of ``docs/findings.md``.

The finding itself says it of one node, with figures. What is said of NVIDIA's tools and counters is
from the sources that stand beside the checks.
"""

from __future__ import annotations

from typing import Dict

from ...model import STATUSES
from . import activity, changes, cluster, dcgm, environment, errors, gpu, host, links, network, node, usage
from .entry import Entry

#: By subject; a code stands in one of them only.
TABLES = (
    node,
    activity,
    gpu,
    errors,
    links,
    dcgm,
    network,
    host,
    environment,
    changes,
    cluster,
    usage,
)
FINDINGS: Dict[str, Entry] = {
    code: entry for table in TABLES for code, entry in table.FINDINGS.items()
}

#: For codes that are not in the table: those of newer versions, of other programs, and a check's
#: status that none of its findings explains.
_GENERAL = Entry(
    "This version has no further words for the finding.",
    "Its message says what was found; the run document has the evidence.",
)


def runbook(code: str) -> Entry:
    """What is said about a code, also about one that no table has: ``<check>_<status>`` is a
    check's own word, which no finding explains.
    """
    if code in FINDINGS:
        return FINDINGS[code]
    check, _line, status = code.rpartition("_")
    if check and status in STATUSES:
        return Entry(
            f"The check {check} says {status}, and none of its findings says why.",
            "Look at its summary; the run document has its readings.",
        )
    return _GENERAL
