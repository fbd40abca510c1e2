# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""OpenShift AI installs some of the same components: the two must not manage one of them."""

from __future__ import annotations

from ....lenient import mapping
from ...client import NotFound, Procedure, items, metadata_of
from .apply import QueueError

_PATH = "/apis/datasciencecluster.opendatahub.io/v1/datascienceclusters"
#: The name of our component in ``spec.components`` of a DataScienceCluster.
_NAMES = {
    "kueue": "kueue",
    "appwrapper": "codeflare",
    "kuberay": "ray",
    "training_operator": "trainingoperator",
}


def check_openshift_ai(component: str) -> Procedure[None]:
    """Raise `QueueError` if OpenShift AI manages the component."""
    if component not in _NAMES:
        return
    try:
        clusters = yield from items(_PATH)
    except NotFound:
        return
    name = _NAMES[component]
    for one in clusters:
        chosen = mapping(mapping(mapping(one.get("spec")).get("components")).get(name))
        if chosen.get("managementState") == "Managed":
            raise QueueError(
                f"DataScienceCluster {metadata_of(one)['name']}: managementState of {name} is "
                "Managed, expected Removed: OpenShift AI would undo what this role installs. Set it "
                f"to Removed, or leave {component} out of queue_components. Nothing was changed."
            )
