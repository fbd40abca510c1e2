#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_provisioner
short_description: Install or remove a storage class whose volumes are folders of an NFS export
version_added: 0.1.0
description:
  - Installs the NFS subdir external provisioner 4.0.2 and its storage class with server-side apply,
    and waits until its pod runs. A folder that the nodes cannot mount is reported with the event of
    the pod.
  - On OpenShift, only the account of the provisioner may use the SecurityContextConstraints
    V(hostmount-anyuid).
  - Refuses to change an object that another program made, such as a storage class of the same name.
  - Refuses to remove or rename the storage class while claims use it, or volumes that would be
    deleted with their claims; they are named.
  - Try the class with M(autopilot.gpu.volume_claim) afterwards.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._kube
options:
  state:
    description: Whether the provisioner is installed or removed. The folders on the server stay.
    type: str
    choices: [present, absent]
    default: present
  server:
    description: Host name or address of the NFS server. Required unless O(state=absent).
    type: str
  path:
    description: Absolute path of the folder that the server exports. Required unless
      O(state=absent).
    type: str
  storage_class:
    description: Name of the storage class.
    type: str
    default: nfs-client
  provisioner:
    description: Name of the provisioner in the storage class; one for each provisioner in the
      cluster.
    type: str
    default: k8s-sigs.io/nfs-subdir-external-provisioner
  namespace:
    description: Namespace of the provisioner. A namespace of others is used as it is and stays.
    type: str
    default: nfs-provisioner
  registry:
    description: Private registry that replaces the host of the image; its path stays.
    type: str
    default: ''
  image_digests:
    description: Digests by C(repository:tag), as in M(autopilot.gpu.queue_component); an empty
      digest uses the image by its tag.
    type: dict
    default: {}
  timeout:
    description: Seconds to wait until the provisioner runs, or has gone. With V(0) an installation
      does not wait.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: The API server tries each change (dry run).
  diff_mode:
    support: full
    description: Returns what would change in diff mode.
  platform:
    support: full
    description: The systems it runs on.
    platforms: posix
requirements:
  - PyYAML on the host that the module runs on
seealso:
  - module: autopilot.gpu.volume_claim
"""

EXAMPLES = r"""
- name: Install the storage class of MLBatch
  autopilot.gpu.nfs_provisioner:
    server: nfs.example
    path: /exports/pokprod
    storage_class: nfs-client-pokprod
    provisioner: k8s-sigs.io/pokprod-nfs-subdir-external-provisioner

- name: Try the storage class
  autopilot.gpu.volume_claim:
    storage_class: nfs-client-pokprod
"""

RETURN = r"""
created:
  description: Objects that were created, or would be.
  type: list
  elements: str
  returned: when state is present
  sample: [StorageClass nfs-client]
updated:
  description: Objects that were changed, or would be.
  type: list
  elements: str
  returned: when state is present
removed:
  description: Objects that were removed, or would be.
  type: list
  elements: str
  returned: always
kept:
  description: What belongs to others and stays as it is.
  type: list
  elements: str
  returned: always
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    apply,
    nfs,
    remove,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    Cluster,
    connected,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._queue import component as _component
from ansible_collections.autopilot.gpu.plugins.module_utils._queue.install import (
    HAS_YAML,
    image_problems,
)

OPTIONS: dict[str, dict[str, t.Any]] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "server": {"type": "str"},
    "path": {"type": "str"},
    "storage_class": {"type": "str", "default": "nfs-client"},
    "provisioner": {"type": "str", "default": "k8s-sigs.io/nfs-subdir-external-provisioner"},
    "namespace": {"type": "str", "default": "nfs-provisioner"},
    "registry": {"type": "str", "default": ""},
    "image_digests": {"type": "dict", "default": {}},
    "timeout": {"type": "int", "default": 300},
}


def install(module: AnsibleModule, cluster: Cluster) -> dict[str, t.Any]:
    """Install the provisioner and wait for it; the module's result."""
    params = module.params
    settings = nfs.NfsSettings(
        namespace=params["namespace"],
        server=params["server"] or "",
        path=params["path"] or "",
        storage_class=params["storage_class"],
        provisioner=params["provisioner"],
        registry=params["registry"],
        digests=params["image_digests"],
    )
    problems = [*nfs.problems_of(settings), *image_problems(params)]
    if problems:
        raise ValueError("; ".join(problems))
    objects = nfs.objects_of(settings, cluster.run(nfs.has_constraints()))
    cluster.run(nfs.check_unused(settings.storage_class))
    # The provisioner of a class cannot change: tried first, so that nothing is half applied.
    cluster.run(apply.apply_objects(objects, is_dry_run=True, timeout=0))
    return _component.install(module, cluster, nfs.NFS_COMPONENT, objects)


def uninstall(module: AnsibleModule, cluster: Cluster) -> dict[str, t.Any]:
    """Remove the provisioner; the module's result."""
    cluster.run(nfs.check_unused())
    return _component.uninstall(
        module,
        cluster,
        lambda timeout: remove.remove_component(nfs.NFS_COMPONENT, module.check_mode, timeout),
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CONNECTION_OPTIONS, **OPTIONS}, supports_check_mode=True
    )
    if not HAS_YAML:
        module.fail_json(msg=missing_required_lib("PyYAML"))
    if module.params["timeout"] < 0:
        module.fail_json(
            msg=f"timeout: {module.params['timeout']} is invalid; expected seconds, 0 or more"
        )
    cluster = connected(module)
    try:
        result = (install if module.params["state"] == "present" else uninstall)(module, cluster)
    except (ApiError, apply.QueueError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
