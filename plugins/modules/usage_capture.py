#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_capture
short_description: Capture what a job makes of a node
version_added: 0.1.0
description:
  - Starts a process on the host that samples GPUs, processors, memory, pressure, disks and network
    while a job runs, ends it, and collects what it wrote.
  - It samples only what disturbs no job, needs nobody, and ends by itself at O(duration) or
    O(max_bytes). A driver that hangs costs it the GPUs' figures only.
  - It holds the GPUs' devices open, so that they cannot be reset and that checks which take the
    GPUs find them in use.
  - Where logind ends what users leave behind (C(KillUserProcesses)), run it as root.
  - What was collected is judged as the check C(gpu_usage), on the controller.
    M(autopilot.gpu.usage_compare) compares two runs.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  name:
    description: Name of the capture on the host; captures of other names go on beside it.
    type: str
    required: true
  state:
    description:
      - V(started) starts it and gathers the run record. One that runs with other settings, or was
        never collected, is not written over.
      - V(stopped) ends it and leaves on the host what it wrote. V(absent) takes that away too.
      - V(collected) ends it, brings it to O(dest), and takes it away from the host once it is
        there.
    type: str
    default: started
    choices: [started, stopped, collected, absent]
  interval:
    description: Seconds between two samples, V(1) to V(60).
    type: float
    default: 5
  duration:
    description: Seconds after which it ends by itself, at most 30 days.
    type: int
    default: 86400
  max_bytes:
    description: Bytes after which it ends by itself; a sample of eight GPUs has 4 kB.
    type: int
    default: 268435456
  job:
    description: The job, whose control group (version 2 or 1) is sampled beside the node, by one of
      these. Without it only the node is.
    type: dict
    suboptions:
      pod_uid:
        description: The UID of a pod.
        type: str
      unit:
        description: Name of a systemd unit, such as V(train.service).
        type: str
      pid:
        description: Number of a process of the job.
        type: int
  declared:
    description:
      - "What the job is, in your words: C({batch: 128, workers: 16, precision: bf16, dataset:
        imagenet, world_size: 8, gpus: 8}). Runs that differ in any of
        it are different jobs. C(gpus) is how many GPUs it asked for."
      - What is not declared is not known; no difference is then attributed to the platform.
    type: dict
    default: {}
  throughput_log:
    description: A log of the job on the host that tells its own speed; read when it is collected.
    type: path
  throughput_regex:
    description: A regular expression (Python) whose first group is the number in it.
    type: str
  dest:
    description: Directory on the controller for C(<host>.jsonl.gz) and C(<host>.record.json),
      relative to where Ansible was started; for O(state=collected).
    type: path
  rules:
    description: >-
      When something is a finding, in place of the defaults. C(warm_up) (300 s),
      C(underused_percent) (50) for C(underused_seconds) (600),
      C(held_idle_seconds) (900), C(stalled_percent) (10) in C(stalled_episodes) (20),
      C(memory_low_percent) (25), C(imbalance_points) (20),
      C(throttled_percent) (1), C(cpu_pressure_percent) (20), C(memory_limit_percent) (90).
    type: dict
    default: {}
  expected_gpus:
    description: How many GPUs the host should have; fewer are a finding.
    type: int
  directory:
    description: Where captures are kept on the host; C(/var/lib/autopilot-gpu/usage) for root,
      C(~/.local/state/autopilot-gpu/usage) for others.
    type: path
  nvml_library:
    description: Path of C(libnvidia-ml.so.1) where it is in none of the usual places.
    type: path
  host_root:
    description: Where the root file system of the host is mounted, for a container that looks at
      its host.
    type: path
    default: /
extends_documentation_fragment: [autopilot.gpu._attributes.capture]
seealso:
  - module: autopilot.gpu.usage_compare
"""

EXAMPLES = r"""
- name: Capture what a training makes of the node
  autopilot.gpu.usage_capture:
    name: run42
    job: {unit: train.service}
    declared: {batch: 128, workers: 16, precision: bf16, dataset: imagenet}

- name: Bring it here
  autopilot.gpu.usage_capture:
    name: run42
    state: collected
    dest: runs/baremetal
"""

RETURN = r"""
state:
  description: V(running), V(ended) or V(none), of the sampler on the host.
  type: str
  returned: success
pid:
  description: The sampler's process.
  type: int
  returned: when it runs
record:
  description: "The run record: platform, node, GPUs, driver, the job's limits, what is declared,
    throughput."
  type: dict
  returned: when there is a capture
samples:
  description: Path of the samples on the controller.
  type: str
  returned: O(state=collected)
status:
  description: What the check C(gpu_usage) says, one of V(pass), V(skip), V(warn), V(unknown),
    V(fail).
  type: str
  returned: O(state=collected)
health:
  description: The result of the check C(gpu_usage), with its findings and measurements.
  type: list
  elements: dict
  returned: O(state=collected)
  contains:
    check: {description: Name of the check., type: str, returned: always}
    status: {description: Worst status of its findings., type: str, returned: always}
    summary: {description: What the check found in one line., type: str, returned: always}
    duration_seconds: {description: Seconds that the check took., type: float, returned: always}
    findings:
      description: What the check judged.
      type: list
      elements: dict
      returned: always
      contains:
        code: {description: The fact by its code., type: str, returned: always}
        status: {description: Status of the finding., type: str, returned: always}
        action: {description: 'Next step, such as V(watch) or V(drain_node).', type: str, returned: always}
        subject: {description: 'The part: kind, index, uuid, pci, name.', type: dict, returned: always}
        message: {description: The fact with its figures., type: str, returned: always}
        evidence: {description: The figures by name., type: dict, returned: always}
    measurements:
      description: Figures worth keeping.
      type: list
      elements: dict
      returned: always
      contains:
        name: {description: Name of the measurement., type: str, returned: always}
        value: {description: The figure., type: float, returned: always}
        unit: {description: Unit of the figure., type: str, returned: always}
        labels: {description: 'The part, such as the GPU.', type: dict, returned: always}
"""

from ansible_collections.autopilot.gpu.plugins.module_utils._usage import main

if __name__ == "__main__":
    main()
