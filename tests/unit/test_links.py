# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a link is expected to carry: the table itself, and properties that any such table must have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.links import (
    GB,
    GENERATIONS,
    WRONG_NODE,
    expected_bandwidth,
    over_pcie,
)

H100 = "NVIDIA H100 80GB HBM3"

#: Raw rate of 16 lanes in GB/s, and the least that healthy links of the class were seen to carry.
RAW_AND_HEALTHY = {3: (15.75, 12.0), 4: (31.5, 24.0), 5: (63.0, 53.0), 6: (121.0, 100.0)}

ROWS = [
    (3, 16, None, 10.0, 11.5, "PCIe 3.0 x16"),
    (4, 16, "NVIDIA A100-SXM4-80GB", 20.0, 23.0, "PCIe 4.0 x16"),
    (5, 16, H100, 46.0, 51.0, "PCIe 5.0 x16"),
    (6, 16, "NVIDIA B300", 85.0, 95.0, "PCIe 6.0 x16"),
    (5, 8, H100, 23.0, 25.5, "PCIe 5.0 x8"),
    (5, 4, H100, 11.5, 12.75, "PCIe 5.0 x4"),
    (5, 1, H100, 2.875, 3.1875, "PCIe 5.0 x1"),
    (3, 16, "Tesla V100-SXM2-32GB", 9.0, 10.0, "PCIe 3.0 x16, V100"),
    (3, 8, "Tesla V100-PCIE-16GB", 4.5, 5.0, "PCIe 3.0 x8, V100"),
    (5, 16, "NVIDIA GH200 480GB", 230.0, 260.0, "NVLink-C2C"),
    (None, None, "NVIDIA GB200", 230.0, 260.0, "NVLink-C2C"),
]


@pytest.mark.parametrize(
    "generation, width, model, fail, warn, detail", ROWS, ids=[f"{row[5]} {row[2]}" for row in ROWS]
)
def test_rows(generation, width, model, fail, warn, detail):
    row = expected_bandwidth(generation, width, model)
    assert (row.fail / GB, row.warn / GB, row.detail) == (
        pytest.approx(fail),
        pytest.approx(warn),
        detail,
    )
    assert row.source


@pytest.mark.parametrize(
    "generation, width, model",
    [
        (2, 16, None),
        (7, 16, None),
        (5, 0, None),
        (5, 3, None),
        (None, 16, H100),
        (5, None, H100),
        (5, 1, "NVIDIA GB10"),
        ("5", "16", H100),
        (True, 16, None),
    ],
)
def test_links_nothing_is_known_about_have_no_row(generation, width, model):
    assert expected_bandwidth(generation, width, model) is None


@pytest.mark.parametrize("generation", RAW_AND_HEALTHY)
def test_a_floor_finds_a_lost_generation_or_half_the_lanes_and_nothing_healthy(generation):
    raw, healthy = RAW_AND_HEALTHY[generation]
    row = expected_bandwidth(generation, 16)
    assert row.warn <= healthy * GB < raw * GB
    # The most that half the lanes can carry, with the headers of 256-byte packets taken off.
    assert raw / 2 * 0.92 * GB < row.fail


@pytest.mark.parametrize("generation, half", [(3, 6.6), (4, 13.4), (5, 28.5), (6, 57.5)])
def test_the_wrong_socket_hides_no_lost_generation_nor_half_the_lanes(generation, half):
    """``half``: the most that copies over half the link were seen or are expected to reach, in
    GB/s.
    """
    assert half * GB < WRONG_NODE * expected_bandwidth(generation, 16).fail


def test_every_generation_of_sysfs_is_known_by_its_speed():
    assert sorted(GENERATIONS.values()) == [1, 2, 3, 4, 5, 6]
    assert [speed for speed, _generation in sorted(GENERATIONS.items())] == [
        2.5,
        5.0,
        8.0,
        16.0,
        32.0,
        64.0,
    ]


def test_copies_of_coherent_superchips_do_not_go_over_pcie():
    assert not over_pcie("NVIDIA GH200 480GB")
    assert not over_pcie("NVIDIA GB10")
    assert over_pcie(H100)
    assert over_pcie(None)


anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.integers(), max_size=2)
)


@given(
    anything | st.integers(1, 7),
    anything | st.sampled_from([1, 2, 4, 8, 12, 16]),
    anything | st.sampled_from([H100, "NVIDIA GB200", "Tesla V100"]),
)
def test_any_link_has_a_sound_row_or_none(generation, width, model):
    row = expected_bandwidth(generation, width, model)
    assert row is None or 0 < row.fail < row.warn
