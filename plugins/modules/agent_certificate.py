#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: agent_certificate
short_description: Make and renew the certificate of the agents in a cluster
version_added: 0.1.0
description:
  - Keeps a CA and a serving certificate in two Secrets of the type C(kubernetes.io/tls). The
    Secret of the serving certificate has the CA certificates too, as C(ca.crt).
  - Writes nothing while the serving certificate, which is valid for two years, has eight months
    left. The CA is valid for ten years. After the CA was renewed, agents trust the earlier CA until
    it ends.
  - The private keys are made in memory and written to the Secrets only. They are neither options
    nor results.
  - The role P(autopilot.gpu.agent#role) calls this module for
    O(autopilot.gpu.agent#role:main:agent_tls=create).
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._kube
options:
  namespace:
    description: Namespace of the Secrets. It must exist.
    type: str
    default: autopilot
  name:
    description: Name of the Secret with the serving certificate.
    type: str
    default: autopilot-tls
  ca_name:
    description: Name of the Secret with the certificate and the private key of the CA.
    type: str
    default: autopilot-ca
  dns_names:
    description: DNS names of the serving certificate. Other names lead to a new certificate.
    type: list
    elements: str
    required: true
  labels:
    description: Labels of the Secrets. A Secret without them is not written, and the module fails.
    type: dict
    default: {}
requirements:
  - cryptography, which ansible-core needs too
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
  diff_mode:
    support: none
    description: Returns what would change in diff mode.
    details: The change is secret.
"""

EXAMPLES = r"""
- name: Make the certificate of the agents
  autopilot.gpu.agent_certificate:
    namespace: autopilot
    dns_names: [autopilot-healthchecks.autopilot.svc]
"""

RETURN = r"""
ca:
  description: The CA certificates in PEM; empty in check mode before the Secrets exist.
  type: str
  returned: always
expires:
  description: When the serving certificate ends; empty in check mode before it is made.
  type: str
  returned: always
  sample: '2028-11-23T00:00:00+00:00'
"""

import datetime

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.autopilot.gpu.plugins.module_utils import _agent_certificate
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)


def main() -> None:
    options = {
        "namespace": {"type": "str", "default": "autopilot"},
        "name": {"type": "str", "default": "autopilot-tls"},
        "ca_name": {"type": "str", "default": "autopilot-ca"},
        "dns_names": {"type": "list", "elements": "str", "required": True},
        "labels": {"type": "dict", "default": {}},
    }
    module = AnsibleModule(
        argument_spec={**options, **CONNECTION_OPTIONS}, supports_check_mode=True
    )
    if _agent_certificate.MISSING:
        module.fail_json(
            msg=missing_required_lib("cryptography"), exception=_agent_certificate.MISSING
        )
    if not module.params["dns_names"]:
        module.fail_json(msg="dns_names: [] is invalid; expected at least one DNS name")
    wanted = _agent_certificate.Wanted(**{option: module.params[option] for option in options})
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    try:
        outcome = connected(module).run(
            _agent_certificate.ensure(wanted, now, write=not module.check_mode)
        )
    except (ApiError, _agent_certificate.ForeignSecret) as error:
        module.fail_json(msg=f"The certificate of the agents was not made: {error}")
    module.exit_json(**outcome._asdict())


if __name__ == "__main__":
    main()
