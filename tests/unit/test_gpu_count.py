# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_count's judgement of readings that are incomplete or are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.conclude import (
    conclude,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import gpu_count
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode

GPU = {"index": 0, "uuid": "GPU-1", "pci": "00000000:18:00.0", "name": "NVIDIA H100 80GB HBM3"}
DEVICE = {"pci": "00000000:18:00.0", "driver": "nvidia", "device": "0x2330"}
HEALTHY = {
    "driver_version": "580.95.05",
    "gpus": [GPU],
    "pci": [DEVICE],
    "kernel": ["00000000:18:00.0"],
    "visible_devices": None,
}

KEYS = st.text(max_size=5) | st.sampled_from(["pci", "driver", "index", "uuid", "error", "kind"])
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["00000000:18:00.0", "vfio-pci", "nvidia"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)
partial = st.fixed_dictionaries(
    {}, optional={key: anything for key in ("gpus", "pci", "kernel", "visible_devices")}
)
unmeasured = st.fixed_dictionaries(
    {}, optional={key: anything for key in ("absent", "error", "hung", "crashed", "gpus", "pci")}
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return gpu_count.CHECK.judge(decode(gpu_count.CHECK.readings, readings), options)


def test_healthy_readings_pass():
    assert judge(HEALTHY, {"expected_gpus": 1}).status == "pass"


@given(
    st.sets(st.sampled_from(sorted(HEALTHY))),
    st.sets(st.sampled_from(sorted(GPU))),
    st.sets(st.sampled_from(sorted(DEVICE))),
)
def test_part_of_the_readings_never_passes_without_a_gpu_and_the_bus(readings, gpu, device):
    kept = {key: HEALTHY[key] for key in readings}
    if "gpus" in kept:
        kept["gpus"] = [{key: GPU[key] for key in gpu}]
    if "pci" in kept:
        kept["pci"] = [{key: DEVICE[key] for key in device}]
    result = judge(kept, {})
    assert result.status != "fail"
    assert result.status != "pass" or ("pci" in gpu and {"gpus", "pci"} <= readings)


@given(partial, st.sampled_from([None, 0, 1, 8]))
def test_no_readings_raise_and_none_pass_without_a_gpu(readings, expected):
    result = judge(readings, {"expected_gpus": expected})
    assert result.status != "pass" or all(gpu["pci"] for gpu in readings["gpus"])


@given(anything | unmeasured)
def test_whatever_was_read_is_concluded(readings):
    result = conclude(
        gpu_count.CHECK,
        {"expected_gpus": 1},
        readings if isinstance(readings, dict) else {"gpus": readings},
    )
    assert result.status != "pass"


@pytest.mark.parametrize("mishap", ["hung", "crashed"])
def test_a_mishap_of_unknown_fields_still_counts(mishap):
    readings = dict(HEALTHY, **{mishap: {"cause": "new"}})
    result = conclude(gpu_count.CHECK, {"expected_gpus": 1}, readings)
    assert [(one.code, one.status) for one in result.findings] == [(mishap, "unknown")]
