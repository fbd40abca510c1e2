# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is PRIVATE to the collection. It can have breaking changes at any
# time. Do not use it from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  expected_gpus:
    description:
      - How many GPUs this host is expected to have.
      - Without it a host that has no GPU is skipped; with it that host has failed.
    type: int
  nvml_library:
    description:
      - Path of C(libnvidia-ml.so.1) on the host.
      - When not given, the loader's path and the usual places of driver containers are searched.
    type: path
  host_root:
    description: Where the root file system of the host to check is mounted; other than V(/) only in
      a container.
    type: path
    default: /
  timeout:
    description:
      - Seconds a check may take, in place of the check's own limit.
      - A check that is not done by then is ended, or abandoned when the kernel does not let it go,
        and its status is V(unknown).
    type: float
  fail_on:
    description:
      - The mildest status that makes the task fail.
      - With V(never) an unhealthy node is not a failed task; RV(health) has the results.
    type: str
    default: never
    choices: [never, fail, unknown, warn]
  readings:
    description: Whether to return the raw readings too, so that they can be judged again later.
    type: bool
    default: false
requirements:
  - nvidia-ml-py on hosts whose GPUs are looked at, of the driver's branch or newer (Python package;
    not C(pynvml), which is a different one)
"""

    # What the action of node_checks acts on.
    ACTION = r"""
options:
  virtualenv:
    description:
      - Path of a virtualenv on the host to run the checks with. It is made where it is missing, and
        O(nvml_package) is installed into it first.
      - The Python that Ansible uses on the host runs the checks when not given.
    type: path
  nvml_package:
    description: What to install into O(virtualenv), as M(ansible.builtin.pip) takes it.
    type: str
    default: nvidia-ml-py
  nhc_conf:
    description:
      - Path on the controller of a configuration file of Node Health Check (NHC, AzNHC) whose
        limits for the host are taken; O(options) and O(expected_gpus) override them.
      - Lines without an equivalent are ignored, P(autopilot.gpu.nhc_conf#filter) lists them.
    type: path
  readings_for_verdict:
    description:
      - Whether to hand the raw readings to M(autopilot.gpu.verdict) of the same run, and to leave
        them out of the result, most of which they would be. The run document has them.
      - Where the callback P(autopilot.gpu.summary#callback) is not enabled, which keeps them until
        the verdict, the result has them.
    type: bool
    default: false
"""
