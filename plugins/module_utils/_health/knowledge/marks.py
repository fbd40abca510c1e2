# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The marks of a node and what each does: the rules in `marks`, ``docs/marks.md`` and the alert
rules are made of this table.

What AppWrapper does by the label is from its configuration (pkg/config/config.go of v1.0.4 and
newer; until v1.0.3 it knew ERR in place of WARN).
"""

from __future__ import annotations

from typing import Dict, NamedTuple

NONE, PASS, WARN, TESTING, EVICT = "", "PASS", "WARN", "TESTING", "EVICT"

#: The label that says whether the node is fit to run, which the mark does not: WARN is also what
#: could not be told. Its values.
FITNESS_LABEL = "autopilot.gpu/fitness"
FIT, UNFIT, UNKNOWN = "fit", "unfit", "unknown"
#: The effect of the optional taint on unfit nodes: its key is the fitness label, its value UNFIT.
UNFIT_EFFECT = "NoSchedule"
#: The code of a node that a deep diagnostic found unfit.
DIAGNOSTIC_FAILED = "deep_diagnostic_failed"

#: Label values of other programs that mean one of ours: ERR is what IBM Autopilot wrote for WARN
#: until its version 2.1.0.
OLD_WORDS = {"ERR": WARN}

#: The node condition, and what its reason begins with, by which ours is told from another program's
#: of the same type.
CONDITION, CONDITION_REASON = "GPUHealthy", "Autopilot"


class Mark(NamedTuple):
    """One value of the label. Texts are sentences for the documentation."""

    meaning: str
    #: Writers that set the mark.
    set_by: str
    #: Events that end the mark.
    cleared_by: str
    #: Value of the fitness label where no check has told: a person set the mark.
    fitness: str
    #: The effect on pods that request GPUs, by AppWrapper's default configuration.
    appwrapper: str
    #: The word for it in AppWrapper's configuration, from v1.0.4 on; "" for no effect.
    effect: str = ""
    #: True if the taint and the cordon apply, if they are enabled.
    out_of_service: bool = False
    #: Severity, minutes of patience and what to do of its alert; no severity, no alert.
    severity: str = ""
    patience: int = 0
    next: str = ""


MARKS: Dict[str, Mark] = {
    NONE: Mark(
        "Nothing is known of the node: it was never checked, or the label was taken off.",
        "No writer yet, or a person who removed the label.",
        "The next pass of the checks.",
        "",
        "Nothing.",
    ),
    PASS: Mark(
        "All checks had a result and found nothing.",
        "A pass of all periodic checks; a deep diagnostic that passes; a person.",
        "The next pass with a finding or an unknown result.",
        FIT,
        "Nothing.",
    ),
    WARN: Mark(
        "A check failed, warned or had an unknown result. The node goes on working; a person "
        "should check it.",
        "A pass of the checks; a deep diagnostic with a failure that is not fatal; a fatal one "
        "where too many nodes are EVICT already; a person.",
        "A pass of all checks without a finding; a deep diagnostic that passes; a person.",
        UNKNOWN,
        "From v1.0.4 on it prefers other nodes (PreferNoSchedule). Before v1.0.4, or with "
        "ERR in the configuration, nothing.",
        effect="PreferNoSchedule",
        severity="warning",
        patience=15,
        next="Query /status of the node's agent, or run a preflight on the node. The "
        "findings name the fault and the next step.",
    ),
    TESTING: Mark(
        "A deep diagnostic uses the GPUs under a lease. The record names the holder and the "
        "end of the lease.",
        "The agent before a deep diagnostic of an idle node; a person.",
        "The result of the diagnostic; a person; the end of the lease, which restores the "
        "previous mark.",
        UNKNOWN,
        "It keeps new pods off the node (NoSchedule).",
        effect="NoSchedule",
        severity="warning",
        patience=240,
        next="The lease should have ended it. Check that the node's agent runs and reaches "
        "the API server.",
    ),
    EVICT: Mark(
        "A deep diagnostic found a fault that is fatal to jobs, or a person set the mark.",
        "A deep diagnostic with a fatal failure, within the allowed share of nodes; a person.",
        "A deep diagnostic that started later and passes; a person. No later check, no time "
        "and no restart clears it.",
        UNFIT,
        "It keeps new pods off the node and starts those that run there again "
        "elsewhere (NoExecute).",
        effect="NoExecute",
        out_of_service=True,
        severity="critical",
        patience=1,
        next="Read the failed tests in the label and annotation of the deep diagnostic. "
        "Replace or reset the GPU, then run a deep diagnostic again.",
    ),
}


class Effect(NamedTuple):
    """What becomes of a job's pods on a node, and of new pods; words for the documentation."""

    running: str
    new: str


STAY, REPLACED, RESTARTED = (
    "pods stay",
    "its pods there are replaced elsewhere",
    "all its pods start again elsewhere",
)
ALLOWED, AVOIDED, KEPT_OFF = (
    "new pods may come",
    "new pods prefer other nodes",
    "new pods are kept off",
)
#: What is said of a node by mark and optional taint.
EVICT_TAINTED, UNFIT_TAINTED = (
    "EVICT with the taint NoExecute",
    f"unfit with the taint {UNFIT_EFFECT}",
)
_BY_TAINTS = {
    WARN: Effect(STAY, ALLOWED),
    TESTING: Effect(STAY, ALLOWED),
    EVICT: Effect(STAY, ALLOWED),
    EVICT_TAINTED: Effect(REPLACED, KEPT_OFF),
    UNFIT_TAINTED: Effect(STAY, KEPT_OFF),
}
#: Kind of workload -> what is said of a node -> the effect. AppWrapper is configured with `MARKS`,
#: Kueue is 0.17 or newer, whose topology-aware scheduling acts on taints.
WORKLOADS: Dict[str, Dict[str, Effect]] = {
    "AppWrapper": {
        WARN: Effect(STAY, AVOIDED),
        TESTING: Effect(STAY, KEPT_OFF),
        EVICT: Effect(RESTARTED, KEPT_OFF),
        EVICT_TAINTED: Effect(RESTARTED, KEPT_OFF),
        UNFIT_TAINTED: Effect(STAY, KEPT_OFF),
    },
    "job of Kueue with a topology": _BY_TAINTS,
    "any other job": _BY_TAINTS,
}
