# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is PRIVATE to the collection. It can have breaking changes at any
# time. Do not use it from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of the kubeconfig that leads to the cluster, on the host that the module runs on.
      - When not given, the environment variable E(K8S_AUTH_KUBECONFIG), then E(KUBECONFIG), then
        C(~/.kube/config), then the service account of the pod.
      - Not looked at where E(K8S_AUTH_HOST) and E(K8S_AUTH_API_KEY) say which cluster and by which
        token, as AWX does for a credential and as
        C(kubernetes.core) takes it. E(K8S_AUTH_SSL_CA_CERT) and E(K8S_AUTH_VERIFY_SSL) then say by
        what the API server is trusted.
    type: path
  context:
    description:
      - Context of the kubeconfig; the current one when not given.
      - The environment variable E(K8S_AUTH_CONTEXT) stands in for it.
    type: str
requirements:
  - kubernetes (Python package) on the host that the module runs on
"""
