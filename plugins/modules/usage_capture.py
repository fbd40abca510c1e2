#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_capture
short_description: Record how a job uses its nodes
version_added: 0.1.0
description:
  - Starts a process on the host that samples GPUs, CPUs, memory, pressure, disks and network during
    a job, stops the process, and collects its recording.
  - The process samples only data that disturbs no job, runs without a connection, and ends by
    itself at O(duration) or O(max_bytes). If the driver hangs, only the GPU samples are missing.
  - The process keeps the GPU device files open, so that the GPUs cannot be reset and other checks
    see them as in use.
  - Run it as root when logind ends the processes of users at logout (C(KillUserProcesses)).
  - The recording is judged as the check C(gpu_usage), on the controller.
    M(autopilot.gpu.usage_compare) compares two recordings.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  name:
    description: Name of the recording on the host. Recordings with other names run independently.
    type: str
    required: true
  state:
    description:
      - V(started) starts the recording and writes the run record. A running recording with other
        settings, or one that was never collected, is not overwritten.
      - V(stopped) stops the recording and keeps it on the host. V(absent) also deletes it.
      - V(collected) stops the recording, copies it to O(dest), and deletes it on the host after the
        copy.
    type: str
    default: started
    choices: [started, stopped, collected, absent]
  interval:
    description: Seconds between two samples, V(1) to V(60).
    type: float
    default: 5
  duration:
    description: Maximum duration in seconds, at most 30 days.
    type: int
    default: 86400
  max_bytes:
    description:
      - Maximum size in bytes. A sample of eight GPUs has 4 kB.
      - With O(state=collected), a larger capture is not fetched, so give the value with which the
        capture was started.
    type: int
    default: 268435456
  job:
    description: The job whose control group (version 2 or 1) is sampled in addition to the node, by
      one of these keys. Without it only the node is sampled.
    type: dict
    suboptions:
      pod_uid:
        description: The UID of a pod.
        type: str
      unit:
        description: Name of a systemd unit, such as V(train.service).
        type: str
      pid:
        description: Process id of a process of the job.
        type: int
  declared:
    description:
      - "Your description of the job, such as C({batch: 128, workers: 16, precision: bf16, dataset:
        imagenet, world_size: 8, gpus: 8}). Runs with different descriptions are different jobs.
        C(gpus) is the number of GPUs that the job requested."
      - Parameters that are not declared are unknown; no difference is then attributed to the
        platform.
    type: dict
    default: {}
  throughput_log:
    description: Path on the host of a log in which the job reports its own throughput; read on
      collection.
    type: path
  throughput_regex:
    description: Regular expression (Python) whose first group is the throughput in the log.
    type: str
  dest:
    description: Directory on the controller for C(<host>.jsonl.gz) and C(<host>.record.json),
      relative to where Ansible was started; for O(state=collected).
    type: path
  rules:
    description: Thresholds of the findings, instead of the defaults. C(warm_up) (300 s),
      C(underused_percent) (50) for C(underused_seconds) (600), C(held_idle_seconds) (900),
      C(stalled_percent) (10) in C(stalled_episodes) (20), C(memory_low_percent) (25),
      C(imbalance_points) (20), C(throttled_percent) (1), C(cpu_pressure_percent) (20),
      C(memory_limit_percent) (90).
    type: dict
    default: {}
  expected_gpus:
    description: Number of GPUs that the host must have; fewer are a finding.
    type: int
  directory:
    description: Directory of the recordings on the host; C(/var/lib/autopilot-gpu/usage) for root,
      C(~/.local/state/autopilot-gpu/usage) for others.
    type: path
  nvml_library:
    description: Path of C(libnvidia-ml.so.1) when it is not in the usual directories.
    type: path
  host_root:
    description: Where the root file system of the host is mounted, for a container that samples its
      host.
    type: path
    default: /
extends_documentation_fragment: [autopilot.gpu._attributes.capture]
seealso:
  - module: autopilot.gpu.usage_compare
"""

EXAMPLES = r"""
- name: Record how a training job uses the node
  autopilot.gpu.usage_capture:
    name: run42
    job: {unit: train.service}
    declared: {batch: 128, workers: 16, precision: bf16, dataset: imagenet}

- name: Collect the recording
  autopilot.gpu.usage_capture:
    name: run42
    state: collected
    dest: runs/baremetal
"""

RETURN = r"""
state:
  description: State of the sampler on the host, V(running), V(ended) or V(none).
  type: str
  returned: success
pid:
  description: Process id of the sampler.
  type: int
  returned: when it runs
record:
  description: The run record with platform, node, GPUs, driver, limits of the job, declared
    parameters and throughput.
  type: dict
  returned: when there is a capture
samples:
  description: Path of the samples on the controller.
  type: str
  returned: O(state=collected)
status:
  description: Status of the check C(gpu_usage), one of V(pass), V(skip), V(warn), V(unknown),
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
