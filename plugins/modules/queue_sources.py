#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: queue_sources
short_description: Fetch and verify the releases of the queue, and list their images
version_added: 0.1.0
description:
  - Downloads the archive of each component's release into a cache, unless it is there, and verifies
    the manifests in it by a checksum that this collection has.
  - With O(sources), only verifies what the operator mirrored.
  - Lists the images with their digests, and how they are named with O(registry), for mirroring.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._queue
options:
  components:
    description: Components whose releases are needed.
    type: list
    elements: str
    choices: [appwrapper, kuberay, kueue, scheduler, training_operator]
    default: [scheduler, training_operator, kuberay, kueue, appwrapper]
  fetch:
    description: Whether to fetch and verify the archives; otherwise only the lists are returned.
    type: bool
    default: true
  timeout:
    description: Seconds for the download of one archive.
    type: int
    default: 120
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Fetches and verifies in check mode too, since the plan of the changes needs the
      manifests. Nothing but the cache on this host changes.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Changes no text.
  platform:
    support: full
    description: The systems it runs on.
    platforms: posix
requirements:
  - PyYAML on the host that the module runs on
"""

EXAMPLES = r"""
- name: Verify the mirrored releases
  autopilot.gpu.queue_sources:
    sources: /srv/mirror/queue
    registry: registry.example/mirror
  register: queue_sources_found

- name: List the images to mirror
  ansible.builtin.debug:
    msg: "{{ queue_sources_found.images | map(attribute='image') }}"
"""

RETURN = r"""
images:
  description: The images of the components.
  type: list
  elements: dict
  returned: always
  contains:
    component:
      description: Component that runs the image.
      type: str
      returned: always
    image:
      description: C(repository:tag), the key in O(image_digests).
      type: str
      returned: always
    digest:
      description: Digest of the image; empty if it is unknown.
      type: str
      returned: always
    used:
      description: The image as the manifests name it.
      type: str
      returned: always
releases:
  description: The releases, with the address and the checksum of each.
  type: list
  elements: dict
  returned: always
  contains:
    component:
      description: Component of the release.
      type: str
      returned: always
    version:
      description: Version of the release.
      type: str
      returned: always
    archive:
      description: Address of the archive.
      type: str
      returned: always
    file:
      description: File name of the archive in O(sources).
      type: str
      returned: always
    checksum:
      description: SHA-256 over the paths and contents of the manifests.
      type: str
      returned: always
unknown_digests:
  description: Images whose digest is unknown.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    components,
    sources,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._queue.archives import fetch, images_of
from ansible_collections.autopilot.gpu.plugins.module_utils._queue.install import (
    HAS_YAML,
    RELEASE_OPTIONS,
    directory_of,
    settings_of,
)


def main() -> None:
    choices = sorted(components.RELEASED)
    module = AnsibleModule(
        argument_spec={
            **RELEASE_OPTIONS,
            "components": {
                "type": "list",
                "elements": "str",
                "choices": choices,
                "default": list(components.RELEASED),
            },
            "fetch": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    if not HAS_YAML:
        module.fail_json(msg=missing_required_lib("PyYAML"))
    try:
        settings = settings_of(module.params)
    except ValueError as error:
        module.fail_json(msg=str(error))
    wanted = [
        name for name in module.params["components"] if name != "scheduler" or settings.choice.name
    ]
    directory = directory_of(module.params)
    changed = False
    releases = []
    for name in wanted:
        release = settings.release(name)
        if module.params["fetch"]:
            changed = fetch(module, release, directory) or changed
        releases.append(
            {
                "component": name,
                "version": release.version,
                "archive": release.archive,
                "file": sources.archive_name(release),
                "checksum": release.checksum,
            }
        )
    images = [image for name in wanted for image in images_of(name, settings)]
    module.exit_json(
        changed=changed,
        images=images,
        releases=releases,
        unknown_digests=[image["image"] for image in images if not image["digest"]],
    )


if __name__ == "__main__":
    main()
