# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab with a queue: the Kubernetes of `Lab`, nodes with GPUs that KWOK pretends, and one real node
whose containerd has the images of Kueue, AppWrapper and the second scheduler.

    with QueueLab("current") as lab:            # three nodes gpu-0, ... with 8 GPUs each
        lab.install()                           # Kueue and AppWrapper as released

Without `install` nothing of a queue is there: whoever applies the Deployments of a release, with
the images that `images` names, has their managers run in pods, with their accounts, settings,
certificates and probes. Pods on the nodes of KWOK run for ever, or as stages/ says.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import yaml
from lab import Lab, LabError, build, images, wait_until
from lab import obstacle as lab_obstacle

from . import programs, releases, second_scheduler

__all__ = ["PROFILES", "QueueLab", "obstacle", "programs", "second_scheduler"]

PROFILES = releases.PROFILES
_NODE = "node-a"
_FAKE = {"kwok.x-k8s.io/node": "fake"}
#: What is not for GPUs goes to the real node.
_TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "PreferNoSchedule"}
#: KWOK's own.
_STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "node/chaos/node-not-ready",
    "pod/fast/pod-ready",
)
_NOT_READY = "node-not-ready.stage.kwok.x-k8s.io"
_TAINT_NOT_READY = "node.kubernetes.io/not-ready"


@functools.lru_cache(maxsize=None)
def obstacle(profile, with_scheduler=False) -> str | None:
    """Why there can be no such lab on this machine, in one line; None when there can."""
    return lab_obstacle(1) or next(
        filter(None, (one.obstacle() for one in _recipes(profile, with_scheduler))), None
    )


def _recipes(profile, with_scheduler) -> list:
    """What has to be built; KWOK comes with the newer Kueue."""
    return [
        *PROFILES[profile].recipes.values(),
        programs.CURRENT,
        *([programs.SECOND_SCHEDULER] if with_scheduler else []),
    ]


class QueueLab(Lab):
    """See the top of this file. ``profile``: `mlbatch` (Kueue 0.10, AppWrapper 1.0), `pinned` (the same
    with AppWrapper 0.30) or `current`.
    """

    def __init__(self, profile, gpu_nodes=3, with_scheduler=False):
        if profile not in PROFILES:
            raise ValueError(f"profile={profile!r}: give {' or '.join(PROFILES)}")
        super().__init__(nodes=1)
        self.profile = PROFILES[profile]
        self.gpu_nodes = [f"gpu-{number}" for number in range(gpu_nodes)]
        self._recipes = _recipes(profile, with_scheduler)
        self._with_scheduler = with_scheduler

    def __enter__(self):
        reason = obstacle(self.profile.name, self._with_scheduler)
        if reason:
            raise LabError(reason)
        for recipe in self._recipes:
            recipe.programs()
        return super().__enter__()

    def _start(self):
        super()._start()
        self.set_gpus(_NODE, 0)
        self.kubectl("label", "node", _NODE, "nvidia.com/gpu.present-")
        #: Full names of images that the real node has, by what is in them.
        self.images = {}
        temporary = self.directory / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        for name, recipe, image, path in self._wanted_images():
            archive = self.image_archive(name)
            files = {path: (recipe.programs() / name).resolve(), "/tmp": temporary}
            images.make(archive, image, files, [path], user="65532")
            self.load_image(archive)
            self.images[name] = image
        self._kwok = self._start_kwok()
        if self.gpu_nodes:
            self.make_nodes(self.gpu_nodes)

    def _wanted_images(self):
        """Program, recipe, image and its path there, as the releases have them."""
        for module, recipe in self.profile.recipes.items():
            yield module.rpartition("/")[2], recipe, self.profile.image(module), "/manager"
        if self._with_scheduler:
            second = programs.SECOND_SCHEDULER
            for name in ("kube-scheduler", "controller"):
                image = f"registry.k8s.io/scheduler-plugins/{name}:v{second.version}"
                yield name, second, image, f"/bin/{name}"

    def image_archive(self, name) -> Path:
        """For `load_image` under one more name, as of a private registry."""
        return self.directory / f"image-{name}.tar"

    def _start_kwok(self):
        stages = programs.CURRENT.module(programs.KWOK) / "kustomize/stage"
        configured = [*(stages / f"{name}.yaml" for name in _STAGES)]
        configured.extend(sorted(Path(__file__).with_name("stages").glob("*.yaml")))
        annotation = ",".join(f"{key}={value}" for key, value in _FAKE.items())
        admin = self.control_plane.kubeconfig(
            "kwok", self.control_plane.keys / "admin", self.control_plane.inner_server
        )
        return self._world.daemon(
            "kwok",
            [
                "env",
                f"HOME={self.directory}",
                programs.CURRENT.programs() / "kwok",
                f"--kubeconfig={admin}",
                "--manage-all-nodes=false",
                f"--manage-nodes-with-annotation-selector={annotation}",
                # Without leases the nodes' life-cycle takes them for dead.
                "--node-lease-duration-seconds=40",
                "--server-address=127.0.0.1:10247",
                *(f"--config={path}" for path in configured),
            ],
        )

    # ---- nodes ----

    def make_nodes(self, names, labels=None, gpus=8):
        """Nodes whose kubelet is KWOK: they run what is scheduled to them; returns once they are
        Ready.
        """
        self._create_nodes(names, labels, gpus, annotations=_FAKE, taints=[_TAINT])
        self.wait(lambda: set(names) <= self._ready_nodes(), "KWOK's nodes are ready", 180)

    def _ready_nodes(self) -> set:
        """Those that pods are scheduled to, as far as their kubelets decide."""
        return {
            one["metadata"]["name"]
            for one in self.get("nodes")["items"]
            if one["status"].get("phase") == "Running"
            and _TAINT_NOT_READY not in {taint["key"] for taint in one["spec"].get("taints", [])}
        }

    def set_ready(self, name, ready):
        """Have the kubelet of a node of KWOK's say that it is ready, or not; returns once all of
        Kubernetes knows.
        """
        self.kubectl("label", "node", name, f"{_NOT_READY}=true" if not ready else f"{_NOT_READY}-")
        self.wait(
            lambda: ready == (name in self._ready_nodes()),
            f"{name} is {'' if ready else 'not '}ready",
        )

    # ---- the queue ----

    def release(self, component) -> list:
        """The objects of `kueue` or `appwrapper` as released, with this lab's images."""
        module = {"kueue": programs.KUEUE, "appwrapper": programs.APPWRAPPER}[component]
        directory = self.profile.recipes[module].module(module) / "config/default"
        said = self.kubectl("kustomize", directory).stdout
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return [
            releases.adapted(one, self.images[component])
            for one in yaml.load_all(said, Loader=loader)
        ]

    def install(self, *components):
        """Kueue, then AppWrapper, or those that are named, set up as the profile says; returns once
        they serve.
        """
        for component in components or ("kueue", "appwrapper"):
            objects = releases.configured(self.release(component), self.profile)
            self._apply_whole(objects)
            self.wait_for_deployment(f"{component}-system", f"{component}-controller-manager")
            for served in (one for one in objects if one["kind"] == "APIService"):
                self.wait_for_api(served["metadata"]["name"])

    def install_second_scheduler(self):
        """For pods that name second_scheduler.SCHEDULER; returns once it serves."""
        self._apply_whole(second_scheduler.objects(self.images))
        for name in (second_scheduler.SCHEDULER, second_scheduler.CONTROLLER):
            self.wait_for_deployment(second_scheduler.NAMESPACE, name)

    def _apply_whole(self, objects):
        """What is too large for the annotation that `apply` would make."""
        self.kubectl(
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            "-",
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
            timeout=120,
        )

    def wait_for_deployment(self, namespace, name, patience=180):
        """Until its pods are ready, and those of its earlier state gone."""
        self.wait(
            lambda: self._is_rolled_out(namespace, name), f"{namespace}/{name} is ready", patience
        )

    def wait_for_api(self, name, patience=60):
        """Until what serves the part of the API, an APIService, does: before, no namespace ends."""
        self.wait(
            lambda: any(
                one["type"] == "Available" and one["status"] == "True"
                for one in self.get("apiservice", name).get("status", {}).get("conditions", [])
            ),
            f"{name} is served",
            patience,
        )

    def _is_rolled_out(self, namespace, name) -> bool:
        done = self.kubectl("get", "-n", namespace, "deployment", name, "-o", "json", check=False)
        if done.returncode:
            return False
        found = json.loads(done.stdout)
        status, wanted = found.get("status", {}), found["spec"]["replicas"]
        return status.get("observedGeneration") == found["metadata"]["generation"] and all(
            status.get(field, 0) == wanted
            for field in ("replicas", "updatedReplicas", "availableReplicas")
        )

    # ---- failures ----

    def wait(self, true, what, patience=60):
        """What ``true()`` returns once that is something; a LabError tells what the lab's parts
        said last.
        """
        processes = {**self.control_plane.processes, "kwok": self._kwok}
        try:
            return wait_until(true, what, patience, processes)
        except LabError as error:
            dead = [name for name, process in processes.items() if process.poll() is not None]
            told = [f"{name}: {self._world.tail(name)}" for name in dead]
            raise LabError("\n".join([str(error), *(told or self._managers_words())])) from None

    def _managers_words(self) -> list:
        """Pods of the real node with their states and the ends of their logs."""
        here = ["--all-namespaces", f"--field-selector=spec.nodeName={_NODE}"]
        told = [self.kubectl("get", "pods", *here, "-o", "wide", check=False).stdout]
        for pod in self.get("pods", *here)["items"]:
            where = ("-n", pod["metadata"]["namespace"], pod["metadata"]["name"], "--tail=8")
            for previous in ((), ("--previous",)):
                said = self.kubectl("logs", *where, "--all-containers", *previous, check=False)
                told.append(f"{pod['metadata']['name']} {' '.join(previous)}\n{said.stdout}")
        warnings = self.kubectl(
            "get",
            "events",
            "--all-namespaces",
            "--field-selector=type=Warning,reason!=MissingClusterDNS",
            check=False,
        ).stdout.splitlines()
        return [*told, *warnings[-15:]]


def build_all(profile, with_scheduler=False) -> None:
    """Build what such a lab needs; raises build.Unavailable where it is not to be had."""
    build.programs()
    for recipe in _recipes(profile, with_scheduler):
        recipe.programs()
