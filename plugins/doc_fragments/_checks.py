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
      - Number of GPUs that this host must have.
      - Without it a host without a GPU is skipped. With it such a host fails.
    type: int
  nvml_library:
    description:
      - Path of C(libnvidia-ml.so.1) on the host.
      - When not given, the library path and the usual directories of driver containers are
        searched.
    type: path
  host_root:
    description: Where the root file system of the host is mounted; other than V(/) only in a
      container.
    type: path
    default: /
  timeout:
    description:
      - Seconds until a check is stopped, instead of the check's own timeout.
      - A check that exceeds it is stopped, or abandoned when the kernel does not release it, and is
        V(unknown).
    type: float
  fail_on:
    description:
      - Lowest status that makes the task fail.
      - With V(never) an unhealthy node does not fail the task; RV(health) has the results.
    type: str
    default: never
    choices: [never, fail, unknown, warn]
  readings:
    description: Whether to also return the raw readings, so that they can be judged again later.
    type: bool
    default: false
requirements:
  - nvidia-ml-py on hosts with GPUs, in the driver's branch or newer (Python package; C(pynvml) is a
    different package)
"""

    # What the action of node_checks acts on.
    ACTION = r"""
options:
  virtualenv:
    description:
      - Path of a virtualenv on the host that runs the checks. It is created when it is missing,
        with O(nvml_package) in it.
      - When not given, Ansible's Python interpreter on the host runs the checks.
    type: path
  nvml_package:
    description: Package to install into O(virtualenv), as M(ansible.builtin.pip) accepts it.
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
      - Whether to pass the raw readings to M(autopilot.gpu.verdict) of the same run instead of
        returning them, which keeps the result small. The run document has them.
      - When the callback P(autopilot.gpu.summary#callback) is not enabled, which keeps the readings
        until the verdict, the result has them.
    type: bool
    default: false
"""
