# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases of Kueue and AppWrapper by profile, and what a lab changes of their objects."""

from __future__ import annotations

from typing import NamedTuple

import yaml
from lab.build import Recipe, version

from . import programs

_MARK = "autopilot.ibm.com/gpuhealth"
_AUTOPILOT = {
    "resourceTaints": {
        "nvidia.com/gpu": [
            {"key": _MARK, "value": "TESTING", "effect": "NoSchedule"},
            {"key": _MARK, "value": "EVICT", "effect": "NoExecute"},
        ]
    }
}
_IMAGES = {
    programs.KUEUE: "registry.k8s.io/kueue/kueue",
    programs.APPWRAPPER: "quay.io/ibm/appwrapper",
}


class Profile(NamedTuple):
    """Versions that go together."""

    name: str
    #: By module, of Kueue and of AppWrapper.
    recipes: dict[str, Recipe]
    #: What is changed in Kueue's settings as released.
    kueue: dict
    #: AppWrapper's.
    appwrapper: dict
    #: The newest version of Kueue's API.
    api: str

    def image(self, module) -> str:
        """The full name of a release's image."""
        return f"{_IMAGES[module]}:v{version(self.recipes[module].source, module)}"


PROFILES = {
    "mlbatch": Profile(
        "mlbatch",
        dict.fromkeys(_IMAGES, programs.MLBATCH),
        kueue={
            "manageJobsWithoutQueueName": True,
            "managedJobsNamespaceSelector": {"matchLabels": {"mlbatch-team-namespace": "true"}},
            "integrations": {
                "frameworks": ["jobset.x-k8s.io/jobset", "kubeflow.org/pytorchjob"],
                "externalFrameworks": ["AppWrapper.v1beta2.workload.codeflare.dev"],
            },
        },
        appwrapper={
            "enableKueueIntegrations": True,
            "defaultQueueName": "default-queue",
            "slackQueueName": "slack-cluster-queue",
            "userRBACAdmissionCheck": False,
            "autopilot": _AUTOPILOT,
        },
        api="kueue.x-k8s.io/v1beta1",
    ),
    "current": Profile(
        "current",
        dict.fromkeys(_IMAGES, programs.CURRENT),
        kueue={
            "manageJobsWithoutQueueName": True,
            "managedJobsNamespaceSelector": {"matchLabels": {"mlbatch-team-namespace": "true"}},
            "integrations": {
                "frameworks": [
                    "batch/job",
                    "jobset.x-k8s.io/jobset",
                    "kubeflow.org/pytorchjob",
                    "ray.io/raycluster",
                    "ray.io/rayjob",
                    "trainer.kubeflow.org/trainjob",
                    "workload.codeflare.dev/appwrapper",
                ]
            },
        },
        appwrapper={
            "defaultQueueName": "default-queue",
            "userRBACAdmissionCheck": False,
            "autopilot": _AUTOPILOT,
        },
        api="kueue.x-k8s.io/v1beta2",
    ),
}
#: As MLBatch pins them.
PROFILES["pinned"] = PROFILES["mlbatch"]._replace(
    name="pinned", recipes={programs.KUEUE: programs.MLBATCH, programs.APPWRAPPER: programs.PINNED}
)


def adapted(found: dict, image) -> dict:
    """An object as released, whose manager has the image and is asked often whether it is ready."""
    if found["kind"] == "Deployment":
        pod = found["spec"]["template"]["spec"]
        # In Kueue 0.10 there is a proxy before its metrics, whose image is not to be had here.
        pod["containers"] = [one for one in pod["containers"] if one["name"] == "manager"]
        pod["containers"][0].update(image=image, imagePullPolicy="IfNotPresent")
        pod["containers"][0]["readinessProbe"].update(initialDelaySeconds=1, periodSeconds=1)
    return found


def configured(objects: list, profile: Profile) -> list:
    """The objects with the profile's settings in their configuration."""
    for one in objects:
        if one["kind"] != "ConfigMap":
            continue
        for name, text in one["data"].items():
            settings = yaml.safe_load(text)
            if settings.get("kind") == "Configuration":
                # Nobody contends, and a lease would delay the start after a crash.
                settings["leaderElection"]["leaderElect"] = False
                settings.update(profile.kueue)
            else:
                settings["controllerManager"]["leaderElection"] = False
                settings["appwrapper"] = profile.appwrapper
            one["data"][name] = yaml.safe_dump(settings)
    return objects
