# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The module queue_sources: download and verify the archive of a release, and list images."""

from __future__ import annotations

import os
import tempfile
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    components,
    edits,
    sources,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.queue_releases import (
    Release,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import within


def download(release: Release, target: str, timeout: int) -> None:
    """Download an archive to the file. Raises OSError."""
    directory = os.path.dirname(target)
    os.makedirs(directory, mode=0o700, exist_ok=True)

    def copy(handle: t.Any) -> None:
        size = 0
        with open_url(release.archive, timeout=timeout, http_agent="autopilot.gpu") as answer:
            while True:
                chunk = answer.read(1 << 20)
                if not chunk:
                    return
                size += len(chunk)
                if size > sources.MOST_ARCHIVE:
                    raise OSError(f"more than {sources.MOST_ARCHIVE} bytes")
                handle.write(chunk)

    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as handle:
        try:
            # The timeout of the request begins anew with each byte that a server sends.
            within(timeout, lambda: copy(handle))
            handle.flush()
            os.replace(handle.name, target)
        except BaseException:
            os.unlink(handle.name)
            raise


def fetch(module: AnsibleModule, release: Release, directory: str) -> bool:
    """Fetch and verify the release; True if it was downloaded."""
    target = os.path.join(directory, sources.archive_name(release))
    is_there = os.path.exists(target) or os.path.isdir(target[: -len(".tar.gz")])
    is_fetched = not is_there and not module.params["sources"]
    if is_fetched:
        try:
            download(release, target, module.params["timeout"])
        except Exception as error:  # urllib and ssl raise many kinds
            words = " ".join(str(error).split())
            module.fail_json(
                msg=f"{release.archive}: {words}; expected the archive of {release.component} "
                f"{release.version}. Mirror it as {sources.archive_name(release)} into a folder and "
                "set queue_sources to this folder."
            )
    try:
        sources.read_release(release, directory)
    except sources.SourceError as error:
        if is_fetched:
            # Not taken for the release by the next run.
            os.unlink(target)
        module.fail_json(msg=str(error))
    return is_fetched


def images_of(component: str, settings: components.QueueSettings) -> list[dict[str, str]]:
    """The images of a component as the module lists them."""
    found = []
    for image in components.images_of(component, settings):
        name = f"{image.repository}:{image.tag}"
        found.append(
            {
                "component": component,
                "image": name,
                "digest": settings.digests.get(name, image.digest),
                "used": edits.image_reference(image, settings.registry, settings.digests),
            }
        )
    return found
