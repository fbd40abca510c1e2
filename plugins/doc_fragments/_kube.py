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
      - Path of the kubeconfig for the cluster, on the host that the module runs on.
      - When not given, the environment variable E(K8S_AUTH_KUBECONFIG), then E(KUBECONFIG), then
        C(~/.kube/config), then the service account of the pod.
      - Ignored when E(K8S_AUTH_HOST) and E(K8S_AUTH_API_KEY) name the cluster and the token, as AWX
        sets them for a credential and as C(kubernetes.core) reads them. E(K8S_AUTH_SSL_CA_CERT) and
        E(K8S_AUTH_VERIFY_SSL) then control the verification of the API server.
    type: path
  context:
    description:
      - Context of the kubeconfig; the current one when not given.
      - The default is the environment variable E(K8S_AUTH_CONTEXT).
    type: str
requirements:
  - kubernetes (Python package) on the host that the module runs on
"""
