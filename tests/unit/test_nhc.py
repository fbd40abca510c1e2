# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader of NHC's configuration files: hostmasks, sizes, and what each line becomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible.errors import AnsibleFilterError

from ansible_collections.autopilot.gpu.plugins.filter.nhc_conf import nhc_conf
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry, nhc
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import options as _options

#: A file as Azure has it for eight GPUs of a kind, some lines of LBNL's NHC, and lines for some
#: hosts only.
FILE = """
# NHC Configuration File
 * || check_hw_cpuinfo 2 96 96
 * || check_hw_physmem 1915071MB 1915071MB 5%
 * || check_hw_swap 0kB 0kB 3%
 * || check_hw_ib 400 mlx5_0:1
 * || check_hw_ib 400 mlx5_1:1     # the second
 * || check_hw_eth lo
 * || check_hw_eth eth0
 * || check_hw_topology /opt/microsoft/ndv5-topo.xml
 * || check_gpu_count 8
 * || check_gpu_xid
#* || check_gpu_count 16
 * || check_gpu_bw 52 350
 * || check_gpu_ecc 20000000 10000
 * || check_gpu_clock_throttling
 * || check_nccl_allreduce 460.0 1 /opt/microsoft/ndv5-topo.xml 16G
 * || check_nvlink_status
 * || check_ib_link_flapping 6
 * || check_nvme_count 8
 * || check_fs_mount_rw -t nfs4 -s "nas:/export/data" -f /data
 * || check_fs_mount_rw /
 * || check_ps_service -u root -S sshd
{gpu0[1-3]} || check_gpu_bw 48
not a line of NHC's
"""


def test_a_file_of_azure():
    taken = nhc.read(FILE, "gpu07.example.com").to_dict()
    assert taken["checks_options"] == {
        "infiniband": {"ports": {"mlx5_0:1": 400.0, "mlx5_1:1": 400.0}},
        "ethernet": {"present_interfaces": ["lo", "eth0"]},
        "xid_errors": {"since": 7200.0},
        "pcie_bandwidth": {"minimum": 52.0},
        "ecc_errors": {"dram_corrected_limit": 20000000, "sram_corrected_limit": 10000},
        "storage": {"expected_nvme_disks": 8, "paths": ["/"]},
        "gpu_link": {"minimum": 350.0},
        # 1915071 MiB of which 5 % of what is there may be missing.
        "memory_and_cpu": {
            "sockets": 2,
            "cores": 96,
            "threads": 96,
            "minimum_memory_gib": 1781.13,
            "maximum_swap_gib": 0.0,
        },
        "nfs_mounts": {
            "mounts": [{"server": "nas", "path": "/export/data", "mount_point": "/data"}]
        },
    }
    assert taken["expected_gpus"] == 8 and taken["lines"] == 20
    assert {"gpu_count", "remapped_rows", "gpu_power", "nvlink"} <= set(taken["checks_list"])
    assert {"check_hw_topology", "check_nccl_allreduce", "check_ps_service"} <= {
        one["text"].split()[2] for one in taken["not_taken"]
    }
    assert {one["text"].split()[2] for one in taken["differences"]} >= {
        "check_gpu_bw",
        "check_hw_ib",
        "check_gpu_ecc",
        "check_ib_link_flapping",
    }
    assert all(
        FILE.splitlines()[one["line"] - 1].split("||")[1].strip()
        == one["text"].split("||")[1].strip()
        for one in taken["not_taken"]
    )


def test_lines_for_some_hosts_come_later_and_count():
    assert nhc.read(FILE, "gpu02").options["pcie_bandwidth"] == {"minimum": 48.0}
    assert nhc.read(FILE, "gpu04").options["pcie_bandwidth"] == {"minimum": 52.0}


def test_every_option_is_one_of_its_check_and_is_accepted():
    """Whatever the file says, the checks take it."""
    for host in (None, "gpu01"):
        taken = nhc.read(FILE, host)
        assert [registry.name_of(name) for name in taken.checks] == taken.checks
        for name, options in taken.options.items():
            _options.of_check(name, options)


@pytest.mark.parametrize(
    "mask, hits, misses",
    [
        ("*", ["a", "b.c"], []),
        ("gpu0*", ["gpu01", "gpu01.example.com"], ["gpu11"]),
        ("gpu0?.example.com", ["gpu01.example.com"], ["gpu01", "gpu011.example.com"]),
        ("gpu0[1-3]", ["gpu01"], ["gpu04"]),
        ("gpu0[!1-3]", ["gpu04"], ["gpu01"]),
        ("gpu0[^1-3]", ["gpu04"], ["gpu01"]),
        ("gpu01", ["gpu01", "gpu01.example.com"], ["gpu011", "GPU01"]),
        ("!io*", ["gpu01"], ["io1", "io1.example.com"]),
        ("/^gpu[0-9]+$/", ["gpu01", "gpu01.example.com"], ["xgpu01"]),
        ("/pu[[:digit:]]/", ["gpu1"], ["gpux"]),
        ("!/\\.(gpu|htc)/", ["a.b"], ["n1.gpu"]),
        (
            "{n00[00-99].phys,n000[0-4].bio}",
            ["n0030.phys", "n0099.phys", "n0001.bio"],
            ["n0100.phys", "n0005.bio", "n0030"],
        ),
        ("!{n03,n05,n0[7-9]}", ["n04", "n10"], ["n03", "n07", "n09"]),
        ("{n[8-11]}", ["n08", "n11"], ["n8", "n12"]),
        ("{n[3-1]}", ["n2"], ["n4"]),
    ],
)
def test_hostmasks(mask, hits, misses):
    assert [host for host in hits + misses if nhc.matches(mask, host)] == hits


@pytest.mark.parametrize(
    "mask, words",
    [
        ("/(/", "is not a valid expression"),
        ("{n00[10-21,23]}", "which is not a range"),
        ("%gpu%", "one of NHC's programs"),
    ],
)
def test_hostmasks_that_cannot_be_read_are_said(mask, words):
    taken = nhc.read(f"{mask} || check_gpu_count 8", "gpu01")
    assert (
        [one["reason"] for one in taken.not_taken if words in one["reason"]]
        and taken.expected_gpus is None
        and taken.lines == 0
    )


@pytest.mark.parametrize(
    "text, kilobytes",
    [
        ("1024", 1024),
        ("1k", 1),
        ("1kB", 1),
        ("1915071MB", 1915071 * 1024),
        ("2G", 2 << 20),
        ("1t", 1 << 30),
        ("7b", 7),
    ],
)
def test_sizes_are_in_kilobytes_of_1024(text, kilobytes):
    assert nhc.kilobytes(text) == kilobytes


@pytest.mark.parametrize("text", ["", "MB", "1.5G", "-1", "1X", "1 MB"])
def test_what_is_no_size(text):
    with pytest.raises(nhc.NotTaken, match="is not a size"):
        nhc.kilobytes(text)


@given(st.integers(1 << 20, 1 << 32), st.integers(1 << 20, 1 << 32), st.integers(0, 60))
def test_a_fudge_lets_pass_what_nhc_lets_pass(actual, limit, percent):
    """NHC's own arithmetic, in whole kB, against ours; they may differ by its rounding."""
    fudge = percent * actual // 100
    if abs(actual + fudge - limit) > 2:
        assert (actual + fudge >= limit) == (
            actual * 1024 >= nhc.at_least(f"{limit}", f"{percent}%")
        )
    if abs(actual - fudge - limit) > 2:
        assert (actual - fudge <= limit) == (
            actual * 1024 <= nhc.at_most(f"{limit}", f"{percent}%")
        )


#: A line -> options taken, and words of the reason where it is not, or not quite.
LINES = {
    "check_cuda_bw 21": ({"pcie_bandwidth": {"minimum": 21.0}}, "1.05"),
    "check_gpu_bw": ({}, "is missing or not a number"),
    "check_gpu_bw fast": ({}, "is missing or not a number"),
    "check_gpu_bw -1": ({}, "expected a number from 0"),
    "check_gpu_bw 52 350": (
        {"pcie_bandwidth": {"minimum": 52.0}, "gpu_link": {"minimum": 350.0}},
        "1.05",
    ),
    "check_gpu_bw 52 many": ({}, "is missing or not a number"),
    "check_hw_physmem 100GB 200GB": (
        {"memory_and_cpu": {"minimum_memory_gib": 100.0}},
        "more memory than the maximum",
    ),
    "check_hw_physmem": ({}, "the size is missing"),
    "check_hw_physmem 100GB 100GB five%": ({}, "is not a share"),
    "check_hw_physmem 100GB 100GB 10GB": (
        {"memory_and_cpu": {"minimum_memory_gib": 90.0}},
        "more memory than the maximum",
    ),
    "check_hw_swap 1GB 2GB 10%": (
        {"memory_and_cpu": {"maximum_swap_gib": 2.22}},
        "less swap space than the minimum",
    ),
    "check_hw_swap 1GB": ({}, "no check has a minimum of swap space"),
    "check_hw_swap 0 0 100%": ({}, "accepts every value"),
    "check_hw_cpuinfo two": ({}, "is missing or not a number"),
    "check_nvsmi_healthmon": ({}, "exit status"),
    "check_gpu_ecc": ({}, "flags"),
    "check_gpu_ecc 5": ({"ecc_errors": {"dram_corrected_limit": 5}}, "flags"),
    "check_hw_ib 200": (
        {"infiniband": {"minimum_rate_gbps": 200.0, "expected_ports": 1}},
        "exactly",
    ),
    "check_hw_eth": ({}, "missing"),
    "check_fs_mount /data nas:/export nfs": (
        {"nfs_mounts": {"mounts": [{"server": "nas", "path": "/export", "mount_point": "/data"}]}},
        "options",
    ),
    "check_fs_mount_rw -s '/^nas[12]:/' -f /data": (
        {"storage": {"paths": ["/data"]}},
        "source, type and mount options",
    ),
    "check_fs_mount_rw -t ext4 -f /a /b": (
        {"storage": {"paths": ["/a", "/b"]}},
        "source, type and mount options",
    ),
    "check_fs_mount_rw -s 'nas:/e*' -f /data": (
        {"storage": {"paths": ["/data"]}},
        "source, type and mount options",
    ),
    "check_fs_mount_rw -f '/data*'": ({}, "pattern"),
    "check_fs_mount_ro -f /data": ({}, "no equivalent"),
    "check_ib_bw_gdr 380": ({}, "RDMA"),
    "check_anything 5": ({}, "check_anything has no equivalent"),
    "check_gpu_count 8 || true": ({}, "a shell command"),
    "check_gpu_count 8; reboot": ({}, "a shell command"),
    "check_gpu_count `nvidia-smi -L | wc -l`": ({}, "a shell command"),
    "check_gpu_count $(hostname)": ({}, "a shell command"),
    "check_gpu_bw $LIMIT": ({}, "variable LIMIT is not set by an earlier line"),
    "check_gpu_count 'eight": ({}, "cannot be parsed"),
    "MARK_OFFLINE=0": ({}, "an NHC variable"),
    "export TIMEOUT=10": ({}, "an NHC variable"),
}


@pytest.mark.parametrize("line", LINES)
def test_each_line_is_taken_or_said(line):
    options, words = LINES[line]
    taken = nhc.read(f"* || {line}\n", "gpu01")
    assert taken.options == options and taken.lines == 1
    said = taken.not_taken + taken.differences
    assert len(said) == 1 and words in said[0]["reason"], said
    assert said[0]["line"] == 1 and taken.expected_gpus is None


def test_variables_are_put_in_where_they_are_used():
    taken = nhc.read(
        '* || LIMIT="48"\n{gpu0[1-2]} || export LIMIT=40\n* || check_gpu_bw ${LIMIT}\n', "gpu03"
    )
    assert taken.options == {"pcie_bandwidth": {"minimum": 48.0}}
    assert nhc.read(
        "* || LIMIT=48\ngpu01 || LIMIT=40\n* || check_gpu_bw $LIMIT\n", "gpu01"
    ).options == {"pcie_bandwidth": {"minimum": 40.0}}


def test_without_a_host_every_line_counts():
    assert {"check_a", "check_b"} == {
        one["text"].split()[2]
        for one in nhc.read("gpu01 || check_a\n{x[1-2]} || check_b\n").not_taken
    }


@given(st.text(max_size=60), st.text(max_size=10))
def test_any_text_is_read_and_no_line_is_lost(text, host):
    conf = f"* || {text}\n"
    try:
        taken = nhc.read(conf, host)
    except ValueError:
        return
    assert taken.lines <= len(conf.splitlines())
    assert len(taken.not_taken) + len(taken.differences) + len(taken.checks) >= taken.lines


def test_the_filter():
    assert nhc_conf(FILE, "gpu01")["expected_gpus"] == 8
    assert nhc_conf("# nothing\n\n", "gpu01")["checks_options"] == {}
    for wrong, words in ((5, "5 is invalid"), ("gpus: 8\n", "no line has the form")):
        with pytest.raises(AnsibleFilterError, match=words):
            nhc_conf(wrong, "gpu01")
    with pytest.raises(AnsibleFilterError, match="host: 5 is invalid"):
        nhc_conf(FILE, 5)


def test_a_file_for_amd_gpus_expects_no_gpu_of_nvidia():
    taken = nhc.read(
        " * || check_hw_cpuinfo 2 96 96\n * || check_gpu_bw 48 44\n"
        " * || check_gpu_count 16 rocm\n * || check_rccl_allreduce 314 1 16G\n",
        "gpu01",
    )
    assert (taken.expected_gpus, set(taken.options)) == (None, {"memory_and_cpu"})
    assert [one["reason"] for one in taken.not_taken] == [
        "the file has AMD GPUs for this host, which no check reads"
    ] * 3


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        ("128 128 128", {"threads": 128}),
        ("2 96 96", {"sockets": 2, "cores": 96, "threads": 96}),
        ("1 1", {"sockets": 1, "cores": 1}),
    ],
)
def test_processors_that_nhc_counts_as_sockets_are_threads(counts, options):
    """AzNHC's file for GB200; /proc/cpuinfo of Arm has no physical id."""
    taken = nhc.read(f" * || check_hw_cpuinfo {counts}\n")
    assert taken.options == {"memory_and_cpu": options}
    assert len(taken.differences) == (1 if list(options) == ["threads"] else 0)


def test_amd_gpus_of_other_hosts_cost_a_host_with_nvidia_gpus_none_of_its_lines():
    text = (
        " mi* || check_gpu_count 8 rocm\n h100* || check_gpu_count 8\n h100* || check_gpu_bw 48 335\n"
        " /[/ || check_gpu_xgmi\n"
    )
    taken = nhc.read(text, "h100-07")
    assert (taken.expected_gpus, set(taken.options)) == (8, {"pcie_bandwidth", "gpu_link"})
    assert nhc.read(text, "mi300-07").expected_gpus is None
