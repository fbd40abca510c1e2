# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of what is around a job: the container it runs in, the registries of its images, the file systems
of its data.
"""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, Entry

FINDINGS: Dict[str, Entry] = {
    # gpu_visibility; gpu_not_visible stands with the GPUs
    "gpu_env_missing": Entry(
        "A container has no GPU because none was asked for, or lacks the driver's compute part.",
        "In a pod, set a limit of `nvidia.com/gpu` and the runtime class of NVIDIA's container "
        "runtime; elsewhere `NVIDIA_VISIBLE_DEVICES`, and "
        "`NVIDIA_DRIVER_CAPABILITIES` with `compute,utility`.",
    ),
    "gpu_device_missing": Entry(
        "A container has GPUs and lacks a device file that CUDA needs.",
        "Run `nvidia-modprobe -u` on the host and start the container anew; look which device "
        "files its runtime gives it.",
    ),
    "gpu_driver_too_old": Entry(
        "The image of a container asks for a newer driver or GPU than there is.",
        "Upgrade the driver, or take an image for an older CUDA. If it is known to work here, "
        "set `NVIDIA_DISABLE_REQUIRE=1`.",
    ),
    "gpu_requirement_not_told": Entry(
        "What an image asks of the driver could not be compared.",
        "Nothing is to be done unless CUDA programs fail there.",
    ),
    # image_registry
    "image_registry_unresolvable": Entry(
        "The node cannot tell the address of an image's registry.",
        "Try `getent hosts <registry>` on the node; correct its resolvers (/etc/resolv.conf), "
        "or the image's name.",
    ),
    "image_registry_unreachable": Entry(
        "The node gets no connection to an image's registry.",
        "Look at the route, the firewall and the proxy from this node to the registry; if no "
        "node gets through, at the registry.",
    ),
    "image_registry_tls": Entry(
        "The certificate of an image's registry is invalid, unknown or about to end, or the "
        "registry speaks no TLS.",
        "Renew it where it ends. Otherwise look at the node's clock, and give the node the "
        "authority's certificate (`ca_file` for this check).",
    ),
    "image_registry_denied": Entry(
        "The registry does not let the given credentials, or nobody, pull the image.",
        "Correct the pull secret, or the check's credentials (`auth_file`); some registries "
        "say this of images that they do not have.",
    ),
    "image_not_found": Entry(
        "The registry does not have the image.", "Correct its name, tag or digest, or push it."
    ),
    "image_registry_error": Entry(
        "An image was not looked up to the end: its registry has trouble, or an option cannot "
        "be used.",
        f"The finding has the words. {AGAIN}.",
    ),
    # nfs_mounts; nfs_unreachable stands with the volume claims, mount_hung with the host
    "nfs_not_mounted": Entry(
        "The NFS export that jobs need is not mounted where they look for it.",
        "Mount it (`mount <mount point>`), and look why it was not: /etc/fstab, the "
        "automounter, `dmesg`.",
    ),
    "nfs_mount_error": Entry(
        "An NFS mount answers with an error, or was not looked at.",
        "If its file handle is stale, unmount and mount it again; otherwise look at the "
        "export's rights and at the server's log.",
    ),
}
