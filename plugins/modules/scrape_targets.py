#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: scrape_targets
short_description: Wait until Prometheus scrapes the targets of ServiceMonitors, and report why it does not
version_added: 0.1.0
description:
  - Asks Prometheus for its targets until those of every expected ServiceMonitor are up.
  - Fails on timeout, with the reason for each ServiceMonitor. A target that is down has the error of
    Prometheus itself. Without a target, the reason is the first of these that holds. Prometheus does
    not select the labels of the ServiceMonitor, such as C(release); it does not select its namespace;
    no Service has the labels that the ServiceMonitor selects; the Service has no port of this name;
    the Service has no endpoint.
  - Asks through the API server, so that Prometheus needs no address of its own, or at O(url).
  - Needs the rights to list ServiceMonitors, Prometheus objects, Services and EndpointSlices, to get
    namespaces, and without O(url) to get C(services/proxy) of C(prometheus-operated).
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._kube
options:
  monitors:
    description: The expected ServiceMonitors, each a name in any namespace, or C(namespace/name).
    type: list
    elements: str
    default: [autopilot-metrics-monitor, nvidia-dcgm-exporter, gpu-operator, nvidia-node-status-exporter]
  prometheus:
    description: The Prometheus object as C(namespace/name), where the cluster has several.
    type: str
    default: ''
  url:
    description: Address of Prometheus, such as V(http://prometheus.example:9090). When empty,
      Prometheus is asked through the API server.
    type: str
    default: ''
  timeout:
    description: Seconds until the timeout. The operator and Prometheus need up to two minutes for a
      new ServiceMonitor.
    type: int
    default: 180
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Only looks once, and does not fail for a target.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Nothing is changed.
  platform:
    support: full
    description: The systems it runs on.
    platforms: posix
"""

EXAMPLES = r"""
- name: Wait until Prometheus scrapes the agents and the GPU metrics
  autopilot.gpu.scrape_targets:
    monitors: [autopilot-metrics-monitor, nvidia-dcgm-exporter]
"""

RETURN = r"""
targets:
  description: The expected ServiceMonitors.
  type: list
  elements: dict
  returned: when Prometheus and the ServiceMonitors could be looked for
  contains:
    monitor: {description: Name of the ServiceMonitor., type: str, returned: always}
    namespace: {description: Its namespace; empty if there is none., type: str, returned: always}
    state:
      description: V(up), V(down), V(missing) for no target, or V(unknown) when Prometheus does not
        answer or has not scraped yet.
      type: str
      returned: always
    up: {description: Number of targets that are up., type: int, returned: always}
    total: {description: Number of targets., type: int, returned: always}
    reason: {description: Why it is not up., type: str, returned: always}
  sample:
    - monitor: nvidia-dcgm-exporter
      namespace: gpu-operator
      state: missing
      up: 0
      total: 0
      reason: label release is missing, expected 'kube-prometheus-stack' (serviceMonitorSelector of
        Prometheus monitoring/kube-prometheus-stack-prometheus)
"""

import re
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.scrape_targets import UP
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._scrape_targets import choose, follow

OPTIONS: dict[str, dict[str, t.Any]] = {
    "monitors": {
        "type": "list",
        "elements": "str",
        "default": [
            "autopilot-metrics-monitor",
            "nvidia-dcgm-exporter",
            "gpu-operator",
            "nvidia-node-status-exporter",
        ],
    },
    "prometheus": {"type": "str", "default": ""},
    "url": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 180},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CONNECTION_OPTIONS, **OPTIONS}, supports_check_mode=True
    )
    params = module.params
    timeout = params["timeout"]
    if timeout < 0:
        module.fail_json(msg=f"timeout: {timeout} is invalid; expected seconds, 0 or more")
    if params["url"] and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", params["url"]):
        module.fail_json(
            msg=f"url: {params['url']!r} is invalid; expected an address without a password, such "
            "as http://prometheus.example:9090"
        )
    if not params["monitors"]:
        module.fail_json(msg="monitors: [] is invalid; expected names of ServiceMonitors")
    cluster = connected(module)
    try:
        choice = choose(cluster, params["url"], params["prometheus"])
        wait = 0 if module.check_mode else timeout
        states = follow(cluster, choice, params["monitors"], wait)
    except (ApiError, ValueError) as error:
        module.fail_json(msg=str(error))
    targets = [one._asdict() for one in states]
    failed = [one for one in states if one.state != UP]
    if failed and not module.check_mode:
        lines = "\n".join(
            f"  ServiceMonitor {one.namespace or '*'}/{one.monitor}: {one.state}: {one.reason}"
            for one in failed
        )
        module.fail_json(
            msg=f"{len(failed)} of {len(states)} ServiceMonitors are not up in {choice} after "
            f"{timeout} s:\n{lines}",
            targets=targets,
        )
    module.exit_json(changed=False, targets=targets)


if __name__ == "__main__":
    main()
