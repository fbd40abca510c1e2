# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The releases that the role `queue` installs: where their manifests come from, the checksum of
these, and the images that they run.

A checksum is that of `cluster.queue.install.sources.checksum`: over the paths and contents of the
files below ``subtrees``, not over the bytes of an archive, which a host may pack anew. Each was
computed from the module archive of the same tag that the Go checksum database vouches for.

Digests of registry.k8s.io are those of the promotion lists in github.com/kubernetes/k8s.io
(registry.k8s.io/images). A digest that no such list has is unknown, "": an operator completes it
with ``queue_image_digests``.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple


class Image(NamedTuple):
    """The image of a container. ``digest`` is "" if unknown."""

    container: str
    repository: str
    tag: str
    digest: str = ""


class Release(NamedTuple):
    """A version of a component. ``subtrees`` are folders of the archive, without its top folder;
    ``build`` is the folder of the kustomization, "" if the files are taken as they are.
    """

    component: str
    version: str
    archive: str
    subtrees: Tuple[str, ...]
    build: str
    files: int
    checksum: str
    images: Tuple[Image, ...]
    #: Leases that the controllers make for their election, which stay when these have gone.
    leases: Tuple[str, ...] = ()


_KUEUE = "https://github.com/kubernetes-sigs/kueue/archive/refs/tags"
_APPWRAPPER = "https://github.com/project-codeflare/appwrapper/archive/refs/tags"
_TRAINING = "https://github.com/kubeflow/training-operator/archive/refs/tags"
_KUBERAY = "https://github.com/ray-project/kuberay/archive/refs/tags/ray-operator"
_SCHEDULER = "https://github.com/kubernetes-sigs/scheduler-plugins/archive/refs/tags"
_KUEUE_TREE = ("config/components", "config/default")
_APPWRAPPER_TREE = tuple(
    f"config/{name}" for name in ("crd", "default", "internalcert", "manager", "rbac", "webhook")
)
_KUBERAY_TREE = tuple(
    f"ray-operator/config/{name}" for name in ("crd", "default", "manager", "rbac")
)
_KUEUE_LEASES = ("c1f6bfd2.kueue.x-k8s.io",)
_APPWRAPPER_LEASES = ("f134c674.codeflare.dev",)
_KUBERAY_LEASES = ("ray-operator-leader",)
_SCHEDULER_LEASES = ("sched-plugins-controllers",)


def _kueue(version: str, files: int, checksum: str, *images: Image) -> Release:
    archive = f"{_KUEUE}/v{version}.tar.gz"
    return Release(
        "kueue",
        version,
        archive,
        _KUEUE_TREE,
        "config/default",
        files,
        checksum,
        images,
        _KUEUE_LEASES,
    )


def _appwrapper(version: str, files: int, checksum: str, *others: Image) -> Release:
    return Release(
        "appwrapper",
        version,
        f"{_APPWRAPPER}/v{version}.tar.gz",
        _APPWRAPPER_TREE,
        "config/default",
        files,
        checksum,
        (Image("manager", "quay.io/ibm/appwrapper", f"v{version}"), *others),
        _APPWRAPPER_LEASES,
    )


def _training(version: str, files: int, checksum: str, image: Image) -> Release:
    return Release(
        "training_operator",
        version,
        f"{_TRAINING}/v{version}.tar.gz",
        ("manifests",),
        "manifests/overlays/standalone",
        files,
        checksum,
        (image,),
    )


def _kuberay(version: str, files: int, checksum: str) -> Release:
    return Release(
        "kuberay",
        version,
        f"{_KUBERAY}/v{version}.tar.gz",
        _KUBERAY_TREE,
        "ray-operator/config/default",
        files,
        checksum,
        (Image("kuberay-operator", "quay.io/kuberay/operator", f"v{version}"),),
        _KUBERAY_LEASES,
    )


def _scheduler(
    version: str, files: int, checksum: str, scheduler: str = "", controller: str = ""
) -> Release:
    repository, tag = "registry.k8s.io/scheduler-plugins", f"v{version}"
    return Release(
        "scheduler",
        version,
        f"{_SCHEDULER}/v{version}.tar.gz",
        ("config/crd/bases",),
        "",
        files,
        checksum,
        (
            Image("scheduler", f"{repository}/kube-scheduler", tag, scheduler),
            Image("controller", f"{repository}/controller", tag, controller),
        ),
        _SCHEDULER_LEASES,
    )


_PROXY = "registry.k8s.io/kubebuilder/kube-rbac-proxy"
_RELEASES = (
    _kueue(
        "0.10.2",
        92,
        "15cff7b2cc33bd8dda0ed0b6fd345daf893b40fe5c5e9c89ff9fab6cb3171c00",
        Image(
            "manager",
            "registry.k8s.io/kueue/kueue",
            "v0.10.2",
            "sha256:3cc80f3b1588b3e7cf51634cdb73b43d73185ba7be3c3cbb3a086236b3af8292",
        ),
        Image(
            "kube-rbac-proxy",
            _PROXY,
            "v0.16.0",
            "sha256:771a9a173e033a3ad8b46f5c00a7036eaa88c8d8d1fbd89217325168998113ea",
        ),
    ),
    _kueue(
        "0.19.2",
        137,
        "9ff73ec5ce857b7b8b932ff779e2298390eea3cba8444b10adaa3b1b50fb588b",
        Image("manager", "registry.k8s.io/kueue/kueue", "v0.19.2"),
    ),
    _appwrapper(
        "0.30.0",
        30,
        "8a3b2d2cae819929d5642ab98541ec306c8ee2a96e473ec61f50d20537297416",
        # The release names gcr.io/kubebuilder, which its project gave up; the image is the same.
        Image(
            "kube-rbac-proxy",
            _PROXY,
            "v0.15.0",
            "sha256:d8cc6ffb98190e8dd403bfe67ddcb454e6127d32b87acc237b3e5240f70a20fb",
        ),
    ),
    _appwrapper("1.0.7", 29, "ab7ac8f076b5ef3cfe4f18c842f99b42ce9ca599abdbb33d3ab3fec3fad45650"),
    _appwrapper("1.2.2", 29, "da0dc777d74e5b1dfc67fad369cf7bc0efd6d59de34737c8d78740566ea2e0c1"),
    _training(
        "1.7.0",
        17,
        "14fe438c0e86437e9fabb9afc463d9eddef72fece801fe97d00acca11d640227",
        Image("training-operator", "docker.io/kubeflow/training-operator", "v1-855e096"),
    ),
    _training(
        "1.9.3",
        21,
        "70a6c773bcd3c8ccd6d046ba864deeda58b3cd3e2fb5b259af88c33eaf998576",
        Image("training-operator", "ghcr.io/kubeflow/training-v1/training-operator", "v1-d6eb98e"),
    ),
    _kuberay("1.1.0", 20, "beb87ef9ed791ad8a26a06aea5f9e9705f7c803996bb9f001174d118478f8321"),
    _kuberay("1.6.2", 22, "7c39c28f50ec38f301363663d39723dfc0b8d8ed01ba88747eca35bdea8ec45c"),
    _scheduler(
        "0.28.9",
        2,
        "5376dc027944a7b22bc437fd455891b37f591d7c59387c545874ab5051c68722",
        "sha256:bb414354e9b45760a53d6a677c12c2dfb5c019fb271292c2ec1cbf9593d001cf",
        "sha256:2683e1235a738c8e1f3abd309604fc2cbd890fc7fb8f968607c7d5b8c607b022",
    ),
    _scheduler("0.34.7", 2, "cb580b376c59e3c1e0824a95c5ccffc7ebe27daf1dbb9d5c30492bcb5a8869ba"),
)
#: The NFS provisioner has no manifests of a release here, only its image.
NFS_PROVISIONER = Image(
    "nfs-provisioner",
    "registry.k8s.io/sig-storage/nfs-subdir-external-provisioner",
    "v4.0.2",
    "sha256:63d5e04551ec8b5aae83b6f35938ca5ddc50a88d85492d9731810c31591fa4c9",
)
RELEASES: Dict[Tuple[str, str], Release] = {
    (release.component, release.version): release for release in _RELEASES
}

#: By profile, the versions of each component that may be installed together, the default first.
#: ``mlbatch`` is what project-codeflare/mlbatch pins (setup.k8s at 7ca9825), with the last
#: AppWrapper that has a slack queue, or its own 0.30.0.
PROFILES: Dict[str, Dict[str, Tuple[str, ...]]] = {
    "mlbatch": {
        "scheduler": ("0.28.9",),
        "training_operator": ("1.7.0",),
        "kuberay": ("1.1.0",),
        "kueue": ("0.10.2",),
        "appwrapper": ("1.0.7", "0.30.0"),
    },
    "current": {
        "scheduler": ("0.34.7",),
        "training_operator": ("1.9.3",),
        "kuberay": ("1.6.2",),
        "kueue": ("0.19.2",),
        "appwrapper": ("1.2.2",),
    },
}
