#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_registry
short_description: Check that a host can pull the images of jobs
version_added: 0.1.0
description:
  - Looks up each image from the host as a container runtime does (DNS name, connection, TLS,
    registry API, token, manifest of the image). Downloads no layer.
  - V(fail) for a name that does not exist, no connection in two tries, a certificate that is
    invalid for every client, missing permission to pull, and a missing image, because a job with
    this image does not start.
  - V(unknown) for a resolver, proxy or registry with an error, a certificate of an unknown
    authority, and a registry without TLS, because a retry or the container runtime may succeed.
  - V(warn) for a certificate that expires within 14 days.
  - The proxies of the environment (C(https_proxy), C(http_proxy), C(no_proxy)) are used. When the
    container runtime has other proxies, set them with the keyword C(environment).
  - Trusted are the authorities of Python, of O(ca_file), and those that Docker, Podman, CRI-O or
    containerd keep for a registry below C(/etc/docker/certs.d), C(/etc/containers/certs.d) or
    C(/etc/containerd/certs.d).
  - V(skip) without O(images).
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  images:
    description:
      - The images, with their registry, such as V(registry.example.com/team/image:tag) or
        V(registry.example.com/team/image@sha256:…). At most 32.
      - Give the host that serves the registry API when it differs from the host in the image names.
    type: list
    elements: str
    default: []
  username:
    description: User for all registries of O(images). Needs O(password).
    type: str
  password:
    description: Password or access token of O(username). No result and no run document contains it.
    type: str
  auth_file:
    description:
      - Path on the host of a file with credentials by registry, as C(docker login) and C(podman
        login) write it, or as in C(.dockerconfigjson) of a pull secret.
      - Credential helpers (C(credsStore)) are not called.
    type: path
  ca_file:
    description: Path on the host of certificates (PEM) of further trusted authorities. A
      certificate of any other authority is then V(fail).
    type: path
  insecure:
    description:
      - Whether to accept plain HTTP and certificates of unknown authorities, for registries that
        the container runtime treats as insecure.
      - Plain HTTP is always accepted for loopback addresses.
    type: bool
    default: false
  push:
    description:
      - Whether to check also that the credentials allow a push to the repository of each image. The
        image need not exist.
      - Begins the upload of a layer and cancels it (C(POST) and C(DELETE) of the registry API). No
        data is uploaded, and no image changes. A registry that does not support the cancellation
        removes the upload later by itself; the summary reports this.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Check that the node can pull the image of the job
  autopilot.gpu.image_registry:
    images:
      - registry.example.com/training/llm:2026-11

- name: Check with the kubelet's pull secret, as a gate
  autopilot.gpu.image_registry:
    images:
      - registry.example.com:5000/training/llm@sha256:7d865e959b2466918c9863afca942d0fb89d7c9ac0c99bafc3749504ded97730
    auth_file: /var/lib/kubelet/config.json
    fail_on: fail

- name: Check that jobs can push their images
  autopilot.gpu.image_registry:
    images:
      - registry.example.com/training/checkpoints
    auth_file: /var/lib/kubelet/config.json
    push: true
"""

RETURN = r"""
brief:
  description: The check's status and summary in one line.
  type: str
  returned: always
status:
  description: The worst status of the check, one of V(pass), V(skip), V(warn), V(unknown), V(fail).
  type: str
  returned: always
  sample: pass
health:
  description: The check's result, with its findings, and C(image_lookup), the slowest answer of
    each registry in seconds.
  type: list
  elements: dict
  returned: always
  contains:
    check: {description: Name of the check., type: str, returned: always}
    status: {description: Worst status of its findings., type: str, returned: always}
    summary: {description: What the check found in one line., type: str, returned: always}
    duration_seconds: {description: Seconds that the check took., type: float, returned: always}
    findings:
      description: What the check judged.
      type: list
      elements: dict
      returned: always
      contains:
        code: {description: The fact by its code., type: str, returned: always}
        status: {description: Status of the finding., type: str, returned: always}
        action: {description: 'Next step, such as V(watch) or V(drain_node).', type: str, returned: always}
        subject: {description: 'The part: kind, index, uuid, pci, name.', type: dict, returned: always}
        message: {description: The fact with its figures., type: str, returned: always}
        evidence: {description: The figures by name., type: dict, returned: always}
    measurements:
      description: Figures worth keeping.
      type: list
      elements: dict
      returned: always
      contains:
        name: {description: Name of the measurement., type: str, returned: always}
        value: {description: The figure., type: float, returned: always}
        unit: {description: Unit of the figure., type: str, returned: always}
        labels: {description: 'The part, such as the GPU.', type: dict, returned: always}
node:
  description: The GPUs of the node (index, uuid, pci, name), the driver's version and the boot id.
  type: dict
  returned: always
readings:
  description: The options and raw readings by check.
  type: dict
  returned: when O(readings=true)
"""

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import main_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.image_registry import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
