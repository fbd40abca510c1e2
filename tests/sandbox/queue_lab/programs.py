# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of a queue's lab, built as those of its Kubernetes are, and the released files of
their modules: ``python tests/sandbox/queue_lab/programs.py [current | mlbatch | pinned | scheduler]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.build import Recipe, command, main, version

_SOURCE = Path(__file__).resolve().parent / "go"
KUEUE, APPWRAPPER = "sigs.k8s.io/kueue", "github.com/project-codeflare/appwrapper"
KWOK, SCHEDULER = "sigs.k8s.io/kwok", "sigs.k8s.io/scheduler-plugins"
#: Whose kinds Kueue manages: their CRDs are in the releases.
JOBSET, TRAINER = "sigs.k8s.io/jobset", "github.com/kubeflow/trainer/v2"
TRAINING_OPERATOR = "github.com/kubeflow/training-operator"
RAY_OPERATOR = "github.com/ray-project/kuberay/ray-operator"


def _managers(profile, *more) -> Recipe:
    """Kueue and AppWrapper of a profile: one graph of modules, since they share most of it."""
    source = _SOURCE / profile
    kueue, appwrapper = version(source, KUEUE), version(source, APPWRAPPER)
    return Recipe(
        title="Kueue",
        source=source,
        version=kueue,
        commands=[
            ("kueue", f"{KUEUE}/cmd/kueue", command(f"{KUEUE}/pkg/version.GitVersion=v{kueue}")),
            _appwrapper(appwrapper),
            *more,
        ],
    )


def _appwrapper(number) -> tuple:
    return "appwrapper", f"{APPWRAPPER}/cmd", command(f"main.BuildVersion=v{number}")


#: KWOK shares most of its modules with the newer Kueue.
CURRENT = _managers("current", ("kwok", f"{KWOK}/cmd/kwok", command()))
MLBATCH = _managers("mlbatch")
#: The AppWrapper that MLBatch pins. Its library of Kueue is 0.8.2, since no proxy has the 0.8.3 that
#: it was released with.
PINNED = Recipe(
    title="AppWrapper",
    source=_SOURCE / "pinned",
    version=version(_SOURCE / "pinned", APPWRAPPER),
    commands=[_appwrapper(version(_SOURCE / "pinned", APPWRAPPER))],
)
#: The scheduler with Coscheduling, and the controller of its groups.
SECOND_SCHEDULER = Recipe(
    title="Scheduler-plugins",
    source=_SOURCE / "scheduler",
    version=version(_SOURCE / "scheduler", SCHEDULER),
    commands=[("kube-scheduler", ".", command())],
    names=("controller",),
)
RECIPES = {"current": CURRENT, "mlbatch": MLBATCH, "pinned": PINNED, "scheduler": SECOND_SCHEDULER}


if __name__ == "__main__":
    for name in sys.argv[1:] or RECIPES:
        main(RECIPES[name])
