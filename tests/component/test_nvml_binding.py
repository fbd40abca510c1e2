# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The binding to the driver: NVIDIA's own against the stand-in library, what is found where,
and what every answer means.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.findings.gpu import (
    FINDINGS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.driver_findings import (
    read_gpu,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices.nvml import (
    DriverError,
)

import node as sandbox  # found by conftest.py

#: GPU 3 of every node that is built here.
LOST_BUS_ID = "00000000:5D:00.0"


@pytest.fixture
def ask():
    """``ask(node, expression, gpu=0)``: a value as JSON, read in a fresh process of the node with
    ``nvml``, the binding ``b`` and ``gpu`` at hand.
    """

    def evaluate(node, expression, gpu=0):
        program = f"""
import json
from ctypes import byref
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices.nvml import DriverError, Nvml
nvml = Nvml(Host({node.root!r}), {node.library!r})
b, gpu = nvml.binding, nvml.gpus[{gpu}]

def struct(made, read):
    nvml.read(gpu, read, byref(made))
    return made

def kind(what):
    try:
        return ["value", what()]
    except DriverError as error:
        return [error.kind, error.code]

print(json.dumps({expression}))
"""
        done = subprocess.run(
            [node.python, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return evaluate


def only(result):
    """The one finding of a result."""
    assert len(result.findings) == 1, result
    return result.findings[0]


def no_library_of_its_own():
    """Skips on a machine that has a real libnvidia-ml.so.1 where the loader finds it: the stand-in
    would not be asked.
    """
    found = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"],
        capture_output=True,
        check=False,
    )
    if found.returncode == 0:
        pytest.skip(
            "needs a machine without an NVIDIA driver: the loader finds a real "
            "libnvidia-ml.so.1 here"
        )


# ---- every answer of NVML and what it means ----

#: NVML code, the call that answers it (of GPU 3) -> status, code, action of the one finding.
#: Meanings: NVML API reference, nvmlReturn_t.
ANSWERS = [
    (2, "nvmlDeviceGetHandleByIndex", "fail", "gpu_vanished", "reboot_node"),
    (4, "*", "unknown", "no_permission", "fix_configuration"),
    (6, "*", "fail", "gpu_vanished", "reboot_node"),
    (10, "*", "fail", "gpu_not_answering", "drain_node"),
    (14, "*", "warn", "corrupted_inforom", "replace_part"),
    (15, "*", "fail", "gpu_lost", "reboot_node"),
    (16, "*", "fail", "gpu_reset_required", "reset_gpu"),
    (19, "*", "skip", "gpu_in_use", "none"),
    (27, "*", "unknown", "gpu_not_ready", "watch"),
    (999, "*", "fail", "gpu_not_answering", "drain_node"),
    # What no check should meet on a GPU that is there: it could not be read, and that is all one
    # can say.
    (1, "nvmlDeviceGetUUID", "unknown", "driver_error", "watch"),
    (2, "nvmlDeviceGetUUID", "unknown", "driver_error", "watch"),
    (3, "nvmlDeviceGetUUID", "unknown", "driver_error", "watch"),
    (13, "nvmlDeviceGetUUID", "unknown", "driver_error", "watch"),
    (17, "*", "unknown", "driver_error", "watch"),
    (4711, "*", "unknown", "driver_error", "watch"),
]


@pytest.mark.parametrize(
    "answer, call, status, code, action", ANSWERS, ids=[f"{row[0]}-{row[1]}" for row in ANSWERS]
)
def test_what_one_gpu_answers(answer, call, status, code, action, node, measure):
    outcome = measure(
        node({"rules": [{"gpu": 3, "call": call, "returns": answer}]}), "gpu_count", timeout=20
    )
    finding = only(outcome.result)
    assert (outcome.result.status, finding.status, finding.code, finding.action) == (
        status,
        status,
        code,
        action,
    )
    assert (finding.subject.kind, finding.subject.index, finding.subject.pci) == (
        "gpu",
        3,
        LOST_BUS_ID,
    )
    assert finding.evidence["code"] == answer
    assert [gpu["index"] for gpu in outcome.readings["gpus"] if "error" not in gpu] == [
        0,
        1,
        2,
        4,
        5,
        6,
        7,
    ]


#: What the library answers when it is initialised -> status, code, action of the node.
INITIALISATION = [
    (4, "unknown", "no_permission", "fix_configuration"),
    (9, "fail", "driver_not_loaded", "fix_configuration"),
    (10, "unknown", "driver_error", "watch"),
    (17, "unknown", "driver_error", "watch"),
    (18, "fail", "driver_version_mismatch", "reboot_node"),
    (999, "unknown", "driver_error", "watch"),
]


@pytest.mark.parametrize(
    "answer, status, code, action", INITIALISATION, ids=[str(row[0]) for row in INITIALISATION]
)
def test_what_the_library_answers_when_it_is_initialised(
    answer, status, code, action, node, measure
):
    outcome = measure(
        node({"rules": [{"gpu": "system", "call": "nvmlInit", "returns": answer}]}),
        "gpu_count",
        timeout=20,
    )
    finding = only(outcome.result)
    assert (outcome.result.status, finding.code, finding.action, finding.subject.kind) == (
        status,
        code,
        action,
        "node",
    )


@pytest.mark.parametrize("answer", [10, 27, 999])
def test_what_passes_by_itself_is_asked_once_more(answer, node, measure):
    outcome = measure(
        node({"rules": [{"gpu": 3, "call": "nvmlDeviceGetName", "returns": answer, "times": 1}]}),
        "gpu_count",
        timeout=20,
    )
    assert (outcome.result.status, outcome.result.findings) == ("pass", [])


def test_a_gpu_that_is_lost_is_not_asked_again(node, measure):
    outcome = measure(
        node({"rules": [{"gpu": 3, "call": "nvmlDeviceGetName", "returns": 15, "times": 1}]}),
        "gpu_count",
        timeout=20,
    )
    assert only(outcome.result).code == "gpu_lost"


# ---- who is lost ----


def test_every_lost_gpu_is_named_by_index_and_bus_id(node, measure):
    rules = [{"gpu": 3, "call": "*", "returns": 15}, {"gpu": 6, "call": "*", "returns": 16}]
    outcome = measure(node({"rules": rules}), "gpu_count", expected_gpus=8)
    assert [
        (finding.code, finding.subject.index, finding.subject.pci)
        for finding in outcome.result.findings
    ] == [("gpu_lost", 3, LOST_BUS_ID), ("gpu_reset_required", 6, "00000000:BA:00.0")]


def test_a_lost_gpu_that_left_the_bus_is_named_by_what_the_kernel_driver_adopted(node, measure):
    outcome = measure(
        node({"rules": [{"gpu": 3, "call": "*", "returns": 15}], "pci": {"missing": [3]}}),
        "gpu_count",
    )
    assert (only(outcome.result).code, only(outcome.result).subject.pci) == (
        "gpu_lost",
        LOST_BUS_ID,
    )


def test_a_gpu_that_is_lost_halfway_keeps_what_it_told(node, measure):
    built = node({"rules": [{"gpu": 3, "call": "nvmlDeviceGetName", "returns": 15}]})
    outcome = measure(built, "gpu_count")
    assert only(outcome.result).subject.uuid == built.gpus[3]["uuid"]


def test_the_others_are_known_by_index_uuid_and_bus_id(node, measure):
    built = node("gpu_lost")
    outcome = measure(built, "gpu_count")
    told = [
        {key: gpu[key] for key in ("index", "uuid", "pci", "name")}
        for gpu in outcome.readings["gpus"]
        if "error" not in gpu
    ]
    assert told == [
        {key: gpu[key] for key in ("index", "uuid", "pci", "name")}
        for gpu in built.gpus
        if gpu["index"] != 3
    ]


# ---- where the library is ----


def test_the_library_by_option(node, measure, monkeypatch):
    built = node({"gpus": 2})
    outcome = measure.several(built, ["gpu_count"], settings={"nvml_library": built.library})[0]
    assert outcome.result.summary == "2 x NVIDIA H100 80GB HBM3"


def test_the_library_on_the_path_of_the_loader(node, measure):
    outcome = measure.several(node({"gpus": 2}), ["gpu_count"], settings={"nvml_library": None})[0]
    assert outcome.result.summary == "2 x NVIDIA H100 80GB HBM3"


def test_the_library_of_a_driver_container_below_the_root_of_the_host(node, measure):
    no_library_of_its_own()
    built = node({"gpus": 2, "driver": {"library": "container"}})
    assert built.library is None
    assert measure(built, "gpu_count").result.summary == "2 x NVIDIA H100 80GB HBM3"


def test_an_option_that_names_no_file_says_so(node, measure):
    outcome = measure.several(
        node({}), ["gpu_count"], settings={"nvml_library": "/opt/nvidia/libnvidia-ml.so.1"}
    )[0]
    finding = only(outcome.result)
    assert (finding.status, finding.code, finding.action) == (
        "unknown",
        "bad_library_option",
        "fix_configuration",
    )
    assert "nvml_library: /opt/nvidia/libnvidia-ml.so.1 does not exist" in finding.message


def test_an_option_that_names_no_library_says_so(node, measure, tmp_path):
    (tmp_path / "text").write_text("not a library")
    outcome = measure.several(
        node({}), ["gpu_count"], settings={"nvml_library": str(tmp_path / "text")}
    )[0]
    assert (outcome.result.status, only(outcome.result).code) == ("unknown", "bad_library_option")
    assert str(tmp_path / "text") in only(outcome.result).message


def test_no_driver_at_all_is_a_failure(node, measure):
    no_library_of_its_own()
    finding = only(measure(node("driver_missing"), "gpu_count").result)
    assert (finding.status, finding.code, finding.action) == (
        "fail",
        "driver_missing",
        "fix_configuration",
    )


def test_a_loaded_driver_whose_library_is_not_found_is_not_a_missing_driver(node, measure):
    no_library_of_its_own()
    finding = only(measure(node({"driver": {"library": False}}), "gpu_count").result)
    assert (finding.status, finding.code, finding.action) == (
        "unknown",
        "library_not_found",
        "fix_configuration",
    )
    assert (
        "libnvidia-ml.so.1 was not found" in finding.message
        and "/run/nvidia/driver/usr/lib/x86_64-linux-gnu" in finding.message
    )
    assert "Set `nvml_library`" in FINDINGS[finding.code].next


def test_a_driver_that_is_not_loaded_is_a_failure(node, measure):
    finding = only(measure(node({"driver": {"loaded": False}}), "gpu_count").result)
    assert (finding.status, finding.code, finding.action) == (
        "fail",
        "driver_not_loaded",
        "fix_configuration",
    )


def test_a_library_and_a_kernel_module_of_different_versions_are_a_failure(node, measure):
    finding = only(measure(node("version_mismatch"), "gpu_count").result)
    assert (finding.status, finding.code, finding.action) == (
        "fail",
        "driver_version_mismatch",
        "reboot_node",
    )


# ---- the binding ----


@pytest.mark.parametrize(
    "module",
    ["raise ImportError('No module named pynvml')", "answer = 42", "print 'Python 2'"],
    ids=["missing", "another module of that name", "not for this Python"],
)
def test_without_the_binding_the_answer_is_the_remedy(module, node, measure, tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = only(measure(node({}), "gpu_count").result)
    assert (finding.status, finding.code, finding.action, finding.subject.kind) == (
        "unknown",
        "binding_missing",
        "fix_configuration",
        "node",
    )
    assert (
        f"install the package nvidia-ml-py for {sys.executable}: {sys.executable} -m pip "
        "install --upgrade nvidia-ml-py" in finding.message
    )


def test_a_binding_that_lacks_a_function_says_so_or_is_done_without(
    node, ask, tmp_path, monkeypatch
):
    import pynvml

    (tmp_path / "pynvml.py").write_text(
        f"exec(compile(open({pynvml.__file__!r}).read(), 'pynvml', 'exec'))\ndel "
        "nvmlDeviceGetRepairStatus\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    expression = (
        "[kind(lambda: nvml.read(gpu, 'nvmlDeviceGetRepairStatus')), "
        "nvml.optional(gpu, 'nvmlDeviceGetRepairStatus')]"
    )
    assert ask(node({}), expression) == [["binding_too_old", None], None]


# ---- the stand-in answers the binding as the library does ----

VALUES = [
    ("nvml.driver_version", "580.95.05"),
    ("b.nvmlSystemGetNVMLVersion()", "13.580.95.05"),
    ("b.nvmlSystemGetCudaDriverVersion()", 13000),
    ("b.nvmlSystemGetCudaDriverVersion_v2()", 13000),
    ("nvml.read(gpu, 'nvmlDeviceGetIndex')", 1),
    ("nvml.read(gpu, 'nvmlDeviceGetName')", "NVIDIA H100 80GB HBM3"),
    (
        "[getattr(nvml.read(gpu, 'nvmlDeviceGetPciInfo'), name) for name in ('domain', 'bus', "
        "'device', 'pciDeviceId')]",
        [0, 0x2A, 0, 0x233010DE],
    ),
    ("nvml.read(gpu, 'nvmlDeviceGetEccMode')", [1, 1]),
    ("nvml.read(gpu, 'nvmlDeviceGetMigMode')", [0, 0]),
    ("nvml.read(gpu, 'nvmlDeviceGetRemappedRows')", [1, 2, 1, 0]),
    (
        "[getattr(nvml.read(gpu, 'nvmlDeviceGetRowRemapperHistogram'), name) for name in "
        "('max', 'high', 'partial', 'low', 'none')]",
        [2556, 1, 1, 1, 1],
    ),
    (
        "list(nvml.fields(gpu, [142, 143, 144, 145, 230, 269, 270, 271, 9999]).values())",
        [0, 2, 0, 0, 0, 0, 0, 5, None],
    ),
    ("nvml.read(gpu, 'nvmlDeviceGetCurrentClocksEventReasons')", 0x48),
    ("nvml.read(gpu, 'nvmlDeviceGetCurrentClocksThrottleReasons')", 0x48),
    ("nvml.read(gpu, 'nvmlDeviceGetSupportedClocksEventReasons')", 0x1FF),
    ("nvml.read(gpu, 'nvmlDeviceGetSupportedClocksThrottleReasons')", 0x1FF),
    (
        "[nvml.read(gpu, 'nvmlDeviceGetViolationStatus', policy).violationTime for policy in "
        "(0, 1, 1, 1)]",
        [0, 100, 103, 106],
    ),
    ("nvml.read(gpu, 'nvmlDeviceGetViolationStatus', 1).referenceTime", 7),
    ("nvml.read(gpu, 'nvmlDeviceGetPowerManagementLimit')", 700000),
    ("nvml.read(gpu, 'nvmlDeviceGetPowerManagementDefaultLimit')", 700000),
    ("nvml.read(gpu, 'nvmlDeviceGetPowerManagementLimitConstraints')", [200000, 700000]),
    ("nvml.read(gpu, 'nvmlDeviceGetEnforcedPowerLimit')", 700000),
    ("nvml.read(gpu, 'nvmlDeviceGetPowerUsage')", 70000),
    (
        "[nvml.read(gpu, 'nvmlDeviceGet' + name, which) for name in ('ClockInfo', "
        "'MaxClockInfo', 'ApplicationsClock', 'DefaultApplicationsClock')"
        " for which in (1, 2)]",
        [1980, 2619] * 4,
    ),
    ("nvml.read(gpu, 'nvmlDeviceGetMaxCustomerBoostClock', 1)", 1980),
    ("nvml.read(gpu, 'nvmlDeviceGetPerformanceState')", 0),
    ("nvml.read(gpu, 'nvmlDeviceGetTemperature', 0)", 34),
    (
        "(lambda memory: [memory.total, memory.used, memory.total - memory.free - "
        "memory.used])(nvml.read(gpu, 'nvmlDeviceGetMemoryInfo'))",
        [81559 << 20, (550 << 20) + 12345678, 0],
    ),
    (
        "(lambda memory: [memory.total, memory.reserved, memory.used])(nvml.read(gpu, "
        "'nvmlDeviceGetMemoryInfo', b.nvmlMemory_v2))",
        [81559 << 20, 550 << 20, 12345678],
    ),
    (
        "[getattr(nvml.read(gpu, 'nvmlDeviceGetUtilizationRates'), name) for name in ('gpu', "
        "'memory')]",
        [97, 61],
    ),
    (
        "[[one.pid, one.usedGpuMemory] for one in nvml.read(gpu, "
        "'nvmlDeviceGetComputeRunningProcesses')]",
        [[4242, 12345000], [4243, 0]],
    ),
    (
        "[[one.pid, one.usedGpuMemory] for one in nvml.read(gpu, "
        "'nvmlDeviceGetGraphicsRunningProcesses')]",
        [[4244, 678]],
    ),
    ("[one.pid for one in nvml.read(gpu, 'nvmlDeviceGetMPSComputeRunningProcesses')]", []),
    (
        "[nvml.read(gpu, 'nvmlDeviceGet' + name) for name in ('CurrPcieLinkGeneration', "
        "'MaxPcieLinkGeneration', 'GpuMaxPcieLinkGeneration')]",
        [3, 5, 5],
    ),
    (
        "[nvml.read(gpu, 'nvmlDeviceGet' + name) for name in ('CurrPcieLinkWidth', "
        "'MaxPcieLinkWidth', 'PcieReplayCounter')]",
        [8, 16, 0],
    ),
    (
        "list(nvml.read(gpu, 'nvmlDeviceGetCpuAffinity', 4))",
        [0x00FFFFFFFFFFFFFF, 0xFFFF000000000000, 0x000000FFFFFFFFFF, 0],
    ),
    (
        "[nvml.read(gpu, 'nvmlDeviceGetPersistenceMode'), nvml.read(gpu, "
        "'nvmlDeviceGetComputeMode')]",
        [1, 0],
    ),
    (
        "struct(b.c_nvmlEccSramErrorStatus_v1_t(), "
        "'nvmlDeviceGetSramEccErrorStatus').bThresholdExceeded",
        1,
    ),
    ("nvml.read(gpu, 'nvmlDeviceGetRepairStatus')", [1, 0]),
    (
        "[nvml.read(gpu, 'nvmlDeviceGetTotalEccErrors', type, counter) for type in (0, 1) for "
        "counter in (0, 1)]",
        [0, 0, 4, 9],
    ),
    (
        "(lambda info: [info.state, info.status, "
        "info.healthSummary])(struct(b.c_nvmlGpuFabricInfo_v3_t(), "
        "'nvmlDeviceGetGpuFabricInfoV'))",
        [3, 0, 1],
    ),
    (
        "[nvml.read(gpu, 'nvmlDeviceGetMemoryErrorCounter', *which) for which in ((0, 0, 2), "
        "(1, 0, 2), (1, 0, 7), (1, 1, 7), (1, 1, 2))]",
        [0, 11, 12, 13, 13],
    ),
    (
        "(lambda status: [getattr(status, name) for name in ('volatileUncParity', "
        "'volatileUncSecDed', 'volatileCor', 'aggregateUncParity', 'aggregateUncSecDed',"
        " 'aggregateCor')])(struct(b.c_nvmlEccSramErrorStatus_v1_t(), "
        "'nvmlDeviceGetSramEccErrorStatus'))",
        [1, 2, 3, 4, 5, 6],
    ),
    ("[nvml.read(gpu, 'nvmlDeviceGetNvLinkState', link) for link in (0, 3, 17)]", [1, 0, 1]),
    ("kind(lambda: nvml.read(gpu, 'nvmlDeviceGetNvLinkState', 18))", ["invalid_argument", 2]),
    (
        "[nvml.read(gpu, 'nvmlDeviceGetNvLinkVersion', 0), nvml.read(gpu, "
        "'nvmlDeviceGetNvLinkCapability', 0, 0)]",
        [6, 1],
    ),
    (
        "[nvml.read(gpu, 'nvmlDeviceGetNvLinkRemoteDeviceType', 5), nvml.read(gpu, "
        "'nvmlDeviceGetNvLinkRemotePciInfo', 5).busId]",
        [2, "00000000:05:00.0"],
    ),
    (
        "[nvml.read(gpu, 'nvmlDeviceGetNvLinkErrorCounter', *which) for which in ((0, 0), (7, "
        "0), (7, 2))]",
        [0, 0, 41],
    ),
    ("list(nvml.fields(gpu, [90, 91, 161, 162, 163, 219]).values())", [26562, 18, 0, 0, 0, None]),
    ("nvml.read(gpu, 'nvmlDeviceGetTotalEnergyConsumption')", 86400000),
    (
        "[nvml.read(gpu, 'nvmlDeviceGet' + name) for name in ('VbiosVersion', "
        "'InforomImageVersion', 'BoardPartNumber')]",
        ["96.00.23.30.01", "2330.0200.00.05", "692-2330-0200-000"],
    ),
    # The binding leaves this one text as bytes.
    ("nvml.read(gpu, 'nvmlDeviceGetGspFirmwareVersion').decode()", "580.95.05"),
    ("[nvml.read(gpu, 'nvmlDeviceGetInforomVersion', part) for part in (0, 1)]", ["2.1", "7.16"]),
    (
        "[nvml.read(gpu, 'nvmlDeviceGet' + name) for name in ('GspFirmwareMode', 'Brand', "
        "'NumGpuCores')]",
        [[1, 1], 14, 16896],
    ),
    ("nvml.read(gpu, 'nvmlDeviceGetPcieThroughput', 0)", 0),
    (
        "[b.nvmlDeviceGetTopologyCommonAncestor(*(b.nvmlDeviceGetHandleByIndex(one) for one in "
        "pair)) for pair in ((1, 0), (1, 1), (1, 7), (0, 7))]",
        [40, 0, 50, 10],
    ),
    (
        "[b.nvmlDeviceGetP2PStatus(*(b.nvmlDeviceGetHandleByIndex(one) for one in pair), 2) "
        "for pair in ((1, 0), (1, 2), (1, 3))]",
        [0, 5, 4],
    ),
    ("b.nvmlDeviceGetIndex(b.nvmlDeviceGetHandleByUUID(nvml.gpus[5]['uuid']))", 5),
    ("b.nvmlDeviceGetIndex(b.nvmlDeviceGetHandleByPciBusId('0000:AB:00.0'))", 5),
]
READABLE = {
    "rules": [
        {"gpu": 1, "call": "nvmlDeviceGetRemappedRows", "values": [1, 2, True, False]},
        {"gpu": 1, "call": "nvmlDeviceGetRowRemapperHistogram", "values": [2556, 1, 1, 1, 1]},
        {"gpu": 1, "call": "field.143", "values": [2]},
        {"gpu": "*", "call": "field.271", "values": [5]},
        {"gpu": 1, "call": "nvmlDeviceGetCurrentClocksThrottleReasons", "values": [0x48]},
        {"gpu": 1, "call": "nvmlDeviceGetViolationStatus.1", "values": [7, "100+3"]},
        {"gpu": 1, "call": "nvmlDeviceGetUtilizationRates", "values": [97, 61]},
        {"gpu": 1, "call": "nvmlDeviceGetSramEccErrorStatus", "values": [1, 1, 2, 3, 4, 5, 6]},
        {"gpu": 1, "call": "nvmlDeviceGetMemoryErrorCounter.1.0.2", "values": [11]},
        {"gpu": 1, "call": "nvmlDeviceGetMemoryErrorCounter.1.0.7", "values": [12]},
        {"gpu": 1, "call": "nvmlDeviceGetMemoryErrorCounter.1.1", "values": [13]},
        {"gpu": 1, "call": "nvmlDeviceGetNvLinkState.3", "values": [0]},
        {"gpu": 1, "call": "nvmlDeviceGetNvLinkErrorCounter.7.2", "values": [41]},
        {"gpu": 0, "call": "nvmlDeviceGetTopologyCommonAncestor.7", "values": [10]},
        {"gpu": 1, "call": "nvmlDeviceGetP2PStatus.2.2", "values": [5]},
        {"gpu": 1, "call": "nvmlDeviceGetP2PStatus.3", "values": [4]},
        {"gpu": 1, "call": "nvmlDeviceGetRepairStatus", "values": [1, 0]},
        {"gpu": 1, "call": "nvmlDeviceGetTotalEccErrors.1.0", "values": [4]},
        {"gpu": 1, "call": "nvmlDeviceGetTotalEccErrors.1.1", "values": [9]},
    ],
    "pci": {"link": {1: {"current_link_speed": "8.0 GT/s PCIe", "current_link_width": 8}}},
    "processes": [
        {"gpu": 1, "pid": 4242, "memory": 12345000},
        {"gpu": 1, "pid": 4243},
        {"gpu": 1, "pid": 4244, "kind": "graphics", "memory": 678},
    ],
}


def test_the_stand_in_answers_the_binding(node, ask):
    found = ask(
        node(READABLE), "[" + ",".join(expression for expression, _value in VALUES) + "]", gpu=1
    )
    assert dict(zip([expression for expression, _value in VALUES], found)) == dict(VALUES)


def test_the_rule_for_one_gpu_beats_the_narrower_one_for_all(node, ask):
    built = node(
        {
            "rules": [
                {"gpu": 1, "call": "nvmlDeviceGetClockInfo", "values": [345]},
                {"gpu": 1, "call": "nvmlDeviceGetClockInfo.2", "values": [810]},
            ]
        }
    )
    assert ask(
        built,
        "[[nvml.read(one, 'nvmlDeviceGetClockInfo', which) for which in (1, 2)] for one in "
        "nvml.gpus[:2]]",
    ) == [[1980, 2619], [345, 810]]


def test_retired_pages_of_an_older_gpu(node, ask):
    calls = (
        "nvml.read(gpu, 'nvmlDeviceGetRetiredPages', 0)",
        "nvml.read(gpu, 'nvmlDeviceGetRetiredPages', 1)",
        "nvml.read(gpu, 'nvmlDeviceGetRetiredPages_v2', 0)",
        "nvml.read(gpu, 'nvmlDeviceGetRetiredPagesPendingStatus')",
        "nvml.optional(gpu, 'nvmlDeviceGetRemappedRows')",
    )
    expression = f"[{', '.join(calls)}]"
    built = node("v100_retired_pages")
    assert ask(built, expression, gpu=1) == [
        [0x1F3A000],
        [0x2F3B000, 0x3F3C000],
        [{"address": 0x1F3A000, "timestamp": 1700000000}],
        1,
        None,
    ]
    assert ask(built, expression, gpu=0) == [[], [], [], 0, None]


def test_a_function_that_an_old_driver_lacks_is_unsupported(node, ask):
    calls = (
        "kind(lambda: nvml.read(gpu, 'nvmlDeviceGetCurrentClocksEventReasons'))",
        "nvml.read(gpu, 'nvmlDeviceGetCurrentClocksThrottleReasons')",
        "nvml.optional(gpu, 'nvmlDeviceGetCurrentClocksEventReasons')",
        "nvml.fields(gpu, [230])",
    )
    built = node({"driver": {"version": "525.147.05"}})
    assert ask(built, f"[{', '.join(calls)}]") == [["unsupported", 13], 1, None, {"230": None}]


def test_a_function_that_is_told_to_be_missing_is_a_missing_symbol(node, ask):
    calls = (
        "kind(lambda: nvml.read(gpu, 'nvmlDeviceGetFieldValues', [142]))",
        "nvml.fields(gpu, [142, 143])",
        "kind(lambda: nvml.read(gpu, 'nvmlDeviceGetPowerUsage'))",
    )
    built = node(
        {
            "rules": [
                {"call": "nvmlDeviceGetFieldValues", "missing": True},
                {"call": "nvmlDeviceGetPowerUsage", "returns": 3},
            ]
        }
    )
    assert ask(built, f"[{', '.join(calls)}]") == [
        ["unsupported", 13],
        {"142": None, "143": None},
        ["unsupported", 3],
    ]


def test_a_gpu_without_ecc_answers_zeros(node, ask):
    built = node({"model": "RTX-4090", "gpus": 1})
    assert ask(
        built,
        "[nvml.optional(gpu, 'nvmlDeviceGetEccMode'), nvml.read(gpu, 'nvmlDeviceGetRemappedRows')]",
    ) == [None, [0, 0, 0, 0]]


#: Model -> what NVML tells of link 0 (version, state, type of the other end; None: no such links)
#: and the state of its fabric.
LINKS = {
    "H100-80GB": ([6, 1, 2], 3),
    "H100-PCIe": ([6, 0, None], 0),
    "H100-NVL": ([6, 1, 0], 0),
    "A100-SXM4-80GB": ([4, 1, 2], None),
    "L40S": ([None] * 3, None),
    "V100-32GB": ([2, 1, 0], None),
    "B200": ([7, 1, 2], 3),
    "GH200": ([6, 0, None], 0),
    "RTX-4090": ([None] * 3, None),
}


@pytest.mark.parametrize("model", LINKS)
def test_the_links_are_those_of_the_model(model, node, ask):
    calls = ", ".join(
        f"nvml.optional(gpu, 'nvmlDeviceGetNvLink{name}', 0)"
        for name in ("Version", "State", "RemoteDeviceType")
    )
    fabric = (
        "(lambda told: told if told is None else made.state)(nvml.optional(gpu, "
        "'nvmlDeviceGetGpuFabricInfoV', byref(made)))"
    )
    links, state = LINKS[model]
    assert ask(
        node({"model": model}),
        f"[[{calls}], (lambda made: {fabric})(b.c_nvmlGpuFabricInfo_v3_t())]",
    ) == [links, state]


def test_the_links_of_a_mesh_lead_to_each_other(node, ask):
    built = node({"model": "V100-32GB"})
    pairs = ask(
        built,
        "[[one['pci'], nvml.read(one, 'nvmlDeviceGetNvLinkRemotePciInfo', link).busId] for one "
        "in nvml.gpus for link in range(6)]",
    )
    assert sorted(pairs) == sorted([there, here] for here, there in pairs) and all(
        here != there for here, there in pairs
    )


#: What changes a GPU or its driver by its name; those that make or free an event set change
#: nothing.
SETTER = (
    r"nvml(?!EventSet|SystemEventSet)\w*?"
    r"(Set|Reset|Clear|Freeze|Modify|Create|Destroy|Remove|Discover|Write)[A-Z]\w*"
    r"|nvmlSetVgpuVersion|nvml\w+(Destroy)"
)


def test_whatever_changes_something_is_seen(node, ask):
    """Every function of the binding that by its name is no getter is in the stand-in, and leaves
    its name in a log.
    """
    import pynvml

    with open(pynvml.__file__, encoding="utf-8") as source:
        functions = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source.read())
    names = sorted({name for name in functions if re.fullmatch(SETTER, name) and "Get" not in name})
    assert len(names) > 60
    built = node({"gpus": 1})
    ask(built, f"[getattr(b.nvmlLib, name)() for name in {names!r}]")
    assert (built.directory / "setters.log").read_text().split() == names


def test_every_call_is_logged_where_one_asks_for_it(node, ask, monkeypatch, tmp_path):
    monkeypatch.setenv("SANDBOX_CALLS", str(tmp_path / "calls"))
    ask(
        node({"gpus": 1}),
        "[nvml.read(gpu, 'nvmlDeviceGetPowerUsage'), nvml.fields(gpu, [230]) and None, "
        "b.nvmlDeviceSetPersistenceMode(nvml._handles[0], 1)]",
    )
    calls = (tmp_path / "calls").read_text().split()
    assert {
        "nvmlInit",
        "nvmlDeviceGetPowerUsage",
        "field.230",
        "nvmlDeviceSetPersistenceMode",
    } <= set(calls)


@pytest.mark.parametrize("model", sandbox.PROFILES)
def test_every_model_is_identified(model, node, measure):
    built = node({"model": model, "gpus": 1})
    assert (
        measure(built, "gpu_count", expected_gpus=1).result.summary
        == f"1 x {built.gpus[0]['name']}"
    )


def test_a_reader_that_meets_an_error_leaves_the_gpu_with_it():
    def reader(_nvml, _gpu):
        raise DriverError("lost", "nvmlDeviceGetTemperature", 15)

    gpu = {"index": 3, "uuid": "GPU-3", "pci": "00000000:5D:00.0", "name": "NVIDIA H100"}
    assert read_gpu(None, gpu, reader) == dict(
        gpu, error={"kind": "lost", "call": "nvmlDeviceGetTemperature", "code": 15, "text": ""}
    )
