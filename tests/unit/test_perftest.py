# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read from the output of perftest's programs: the formats of its versions, and nothing that
is not understood.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.rdma import perftest
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.bounded import (
    Completed,
)

LINE = "-" * 87
HEADER = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
ROW = " 65536      2242170          0.00               391.85 \t\t   0.747398"
RATE = f"""
{LINE}
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Mtu             : 4096[B]
{LINE}
 local address: LID 0x01 QPN 0x0116 PSN 0xa2c9a3 RKey 0x1fff00 VAddr 0x007f2f2a0f0000
{LINE}
{HEADER}
{ROW}
{LINE}
"""
LATENCY = "\n".join(
    [
        LINE,
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
        "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] ",
        " 2       5000          1.84           476.27       1.90     \t       2.07        \t6.80   "
        "\t\t2.97    \t\t7.76   ",
        LINE,
    ]
)
BARE = """{
test_info: {
test: RDMA_Write_BW_Test,
Device: "mlx5_0",
},
results: {
MsgSize: 65536,
n_iterations: 2242170,
BW_peak: 0.00,
BW_average: 391.85,
MsgRate: 0.747398,
},
}
"""


def document(**changed):
    results = {
        "MsgSize": 65536,
        "n_iterations": 2242170,
        "BW_peak": 0.0,
        "BW_average": 391.85,
        "MsgRate": 0.747398,
        **changed,
    }
    return json.dumps({"test_info": {"Device": "mlx5_0"}, "results": results}, indent=0)


def completed(out="", err="", code=0, timed_out=False, cut=False):
    return Completed(["ib_write_bw"], code, out, err, 5.0, timed_out, [], cut)


def rate(out, size=65536, **how):
    return perftest.parse_rate(completed(out, **how), size)


@pytest.mark.parametrize(
    "out",
    [
        RATE,
        BARE + RATE,
        document() + RATE,
        RATE.replace(ROW, f"{document()}\n{ROW}"),
        document(),
        # In MiB/s, as without --report_gbits.
        RATE.replace("Gb/sec", "MB/sec").replace("391.85", f"{391.85e9 / 8 / 2**20:.2f}"),
    ],
    ids=["table", "old json", "json", "json in the table", "only json", "MiB"],
)
def test_a_rate(out):
    found = rate(out)
    assert found["bits_per_second"] == pytest.approx(391.85e9, rel=1e-4)
    assert found["iterations"] == 2242170


def test_a_small_rate_has_more_places():
    row = " 65536    120           0.000000            0.012583            0.000024"
    assert rate(RATE.replace(ROW, row))["bits_per_second"] == pytest.approx(0.012583e9)


def test_a_latency():
    found = perftest.parse_latency(completed(LATENCY))
    assert (found["latency_us"], found["latency_p99_us"]) == (1.90, 2.97)


@pytest.mark.parametrize(
    "out, said",
    [
        ("", "printed no table and no JSON"),
        (RATE.replace(ROW, ""), "its table has 0 rows"),
        (RATE.replace(ROW, f"{ROW}\n{ROW}"), "its table has 2 rows"),
        (RATE + RATE, "more than one table"),
        (RATE.replace("391.85", "nan"), "'nan' is not a figure"),
        (RATE.replace("391.85", "-391.85"), "'-391.85' is not a figure"),
        (RATE.replace("391.85", "39.18"), "contradict each other"),
        (RATE.replace(" MsgRate[Mpps]", " MsgRate[Mpps]  Jitter[x]"), "unknown columns"),
        (RATE.replace("   0.747398", ""), "expected one of 5 figures"),
        (RATE.replace(" 65536 ", " 65537 "), "no average for messages of 65536 bytes"),
        (RATE.replace("2242170", "0"), "sent no messages"),
        (document(BW_average=200.0) + RATE, "its table and its JSON differ in average"),
        (document(BW_average="fast") + RATE, "its JSON has no figures"),
        (document().replace('n_iterations":', 'n_iterations"') + RATE, "its JSON cannot be read"),
    ],
)
def test_what_is_not_understood_is_no_rate(out, said):
    found = rate(out)
    assert found["error"]["reason"] == "not_understood", found
    assert said in found["error"]["message"]


@pytest.mark.parametrize(
    "err, reason",
    [
        (" Couldn't connect to 10.0.0.2:5300\n Unable to init the socket connection", "refused"),
        (" Couldn't listen to port 5300", "bind"),
        (" Unable to find the Infiniband/RoCE device", "no_device"),
        (" Did not detect devices \n If device exists, check if driver is up", "no_device"),
        (" Completion with error at client\n Failed status 12: wr_id 0", "no_completion"),
        (" Unable to Connect the HCA's through the link", "no_link"),
        ("ib_write_bw: unrecognized option '--report_gbits'", "too_old"),
        (" Couldn't allocate MR", "gpu_memory"),
        (" Failed to exchange data between server and clients", "control"),
        (" Something else", "failed"),
    ],
)
def test_why_a_program_failed(err, reason):
    assert rate("", err=err, code=1)["error"]["reason"] == reason


@pytest.mark.parametrize(
    "how, reason",
    [
        ({"timed_out": True, "code": -15}, "timeout"),
        ({"code": -11}, "crashed"),
        ({"cut": True}, "truncated"),
    ],
)
def test_a_program_that_did_not_end_well_has_no_figure(how, reason):
    assert rate(RATE, **how)["error"]["reason"] == reason


@given(st.data())
def test_a_mutated_table_is_never_another_rate(data):
    place = data.draw(st.integers(0, len(ROW)))
    letters = data.draw(st.text("0123456789.-+eE nan\t", max_size=4))
    found = rate(RATE.replace(ROW, ROW[:place] + letters + ROW[place:]))
    assert "error" in found or found["bits_per_second"] == pytest.approx(391.85e9, rel=0.03)


TARGET = perftest.RdmaTarget("mlx5_0", 1, 5300, "10.0.0.2", "10.0.0.1", gpu=(3, "0000:1B:00.0"))


@pytest.mark.parametrize(
    "features, given, lacking",
    [
        ([], [], ["--use_cuda", "--out_json", "source_ip"]),
        (["use_cuda"], ["--use_cuda=3"], ["bus_id"]),
        (["use_cuda", "use_cuda_bus_id"], ["--use_cuda_bus_id=0000:1B:00.0"], ["--use_cuda=3"]),
        (["source_ip"], ["--source_ip=10.0.0.1"], ["bind"]),
        (["out_json_file"], ["--out_json", "--out_json_file=/dev/stdout"], []),
    ],
)
def test_an_option_is_given_if_the_help_lists_it(features, given, lacking):
    program = {"path": "/usr/bin/ib_write_bw", "version": "6.06", "features": features}
    argv = perftest.rate_argv(program, TARGET)
    assert set(given) <= set(argv)
    assert not [word for word in lacking if word in " ".join(argv)]
    assert argv[-1] == "10.0.0.2" and "--report_gbits" in argv
