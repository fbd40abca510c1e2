# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Meanings of error codes, severities, exit codes and test names of NVIDIA's Data Center GPU
Manager (DCGM).

Sources: DCGM 4.6 dcgmlib/dcgm_errors.{h,c} (codes, severities, categories), dcgm_structs.h
(dcgmReturn_t), nvvs/src/NvidiaValidationSuite.cpp (which test belongs to which level),
dcgmi/Diag.cpp (names as printed); "Diagnostic Errors" and "dcgmi diag" in NVIDIA's DCGM
documentation.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple

from ..model import FAIL, UNKNOWN, WARN

NONE, MONITOR, ISOLATE, UNRECOGNISED = "none", "monitor", "isolate", "unrecognised"
TRIAGE, CONFIG, RESET = "triage", "config", "reset"
#: The severity of an error for which neither the document nor this table has one.
UNRATED = "unrated"
#: The severity of a failure without an error that counts: a mere warning prints as Fail too.
UNEXPLAINED = "unexplained"

#: The build argument that adds DCGM to the agent's image (src/agent/Containerfile).
BUILD_ARGUMENT = "--build-arg DCGM_REPOSITORY=URL"
#: Environment variable that the agent's image sets to "true": a missing program is added to the
#: image, not to the host.
AGENT_IMAGE = "AUTOPILOT_AGENT_IMAGE"

#: dcgmErrorSeverity_t by value; DCGM writes it into its documents since 3.3.1.
SEVERITIES = (NONE, MONITOR, ISOLATE, UNRECOGNISED, TRIAGE, CONFIG, RESET)

#: dcgmErrorCategory_t by value.
CATEGORIES = (
    "none",
    "performance threshold",
    "performance violation",
    "software configuration",
    "software library",
    "Xid",
    "CUDA",
    "field diagnostic",
    "software",
    "thermal",
    "memory",
    "NVLink",
    "NVSwitch",
    "PCIe",
    "power",
    "hardware",
    "internal",
)


class Meaning(NamedTuple):
    """The consequence of an error class for the GPU. ``words`` precede DCGM's own text."""

    code: str
    status: str
    action: str
    words: str


MEANINGS: Dict[str, Meaning] = {
    MONITOR: Meaning("dcgm_monitor", WARN, "watch", "monitor the GPU (DCGM_FR_SEVERITY monitor)"),
    ISOLATE: Meaning("dcgm_isolate", FAIL, "drain_node", "cannot work, to be isolated"),
    UNRECOGNISED: Meaning(
        "dcgm_unrecognised", UNKNOWN, "watch", "an error that DCGM itself does not know"
    ),
    TRIAGE: Meaning("dcgm_triage", FAIL, "drain_node", "failed"),
    CONFIG: Meaning("dcgm_config", WARN, "fix_configuration", "a configuration to be fixed"),
    RESET: Meaning("dcgm_reset", FAIL, "reset_gpu", "needs a reset"),
    UNEXPLAINED: Meaning(
        "dcgm_unexplained", UNKNOWN, "watch", "printed as Fail, without an error that counts"
    ),
    # A failure stays a failure without a severity; no class of action can be derived.
    UNRATED: Meaning(
        "dcgm_failure", FAIL, "drain_node", "failed; this DCGM version reports no severity"
    ),
}

#: Error code of a PCIe link with fewer lanes than supported.
PCIE_WIDTH = 46
#: Codes whose severity in DCGM leads to the wrong step.
OVERRIDES: Dict[int, Meaning] = {
    # DCGM says CONFIG; a link that came up narrower is a seating, riser or board fault.
    PCIE_WIDTH: Meaning(
        "pcie_width", FAIL, "drain_node", "the PCIe link is narrower than supported"
    ),
    # DCGM says RESET; a reset does not repair a failed remapping (NVIDIA GPU Memory Error
    # Management: RMA criterion).
    80: Meaning("row_remap_failure", FAIL, "replace_part", "a row could not be remapped"),
    # DCGM says RESET, which is due before the next job. Until then models with containment retire
    # the page (NVML API reference, nvmlDeviceGetRemappedRows). The codes are those of
    # remapped_rows, so both checks report the same.
    84: Meaning("row_remap_pending", WARN, "reset_gpu", "a row remapping waits for a reset"),
    85: Meaning("row_remap_pending", WARN, "reset_gpu", "a row remapping waits for a reset"),
    6: Meaning("page_retirement_pending", WARN, "reset_gpu", "a page retirement waits for a reset"),
    # DCGM says RESET; ending the process is enough.
    25: Meaning(
        "graphics_processes", WARN, "fix_configuration", "graphics processes run on the GPU"
    ),
}

# fmt: off
_CODES: Tuple[Tuple[str, Tuple[int, ...]], ...] = (
    (NONE, (0,)),
    (MONITOR, (
        5, 10, 11, 12, 16, 17, 19, 26, 27, 32, 34, 40, 41, 42, 43, 51, 53, 61, 69, 74, 75, 76,
        108, 123, 131,
    )),
    (ISOLATE, (
        3, 4, 7, 8, 13, 15, 24, 33, 35, 36, 38, 39, 52, 57, 58, 70, 71, 79, 81, 86, 87, 88, 95,
        98, 102, 103, 104, 105, 106, 107, 109, 111, 113, 114, 115, 116, 118, 119, 120, 121, 122,
        126,
    )),
    (UNRECOGNISED, (1, 2, 21)),
    (TRIAGE, (
        9, 14, 22, 30, 31, 37, 44, 45, 49, 50, 54, 56, 59, 62, 63, 64, 65, 66, 67, 73, 77, 89,
        90, 91, 92, 93, 94, 97, 99, 100, 101, 110, 124, 130, 132,
    )),
    (CONFIG, (18, 20, 23, 28, 29, 46, 47, 48, 55, 60, 68, 72, 78, 82, 96, 112, 117)),
    (RESET, (6, 25, 80, 83, 84, 85, 125, 127, 128, 129)),
)
# fmt: on
#: Error code -> severity in DCGM 4.6, for documents without severities; severities change between
#: releases.
SEVERITY_OF: Dict[int, str] = {code: severity for severity, codes in _CODES for code in codes}

#: Deployment tests of DCGM 2 and 3 that can only fail for a configuration, by the name they print;
#: those versions may give no code.
CONFIG_TESTS = (
    "blacklist",
    "denylist",
    "permissions and os blocks",
    "persistence mode",
    "environment variables",
    "graphics processes",
)
#: The other deployment tests of DCGM 2 and 3; DCGM 4 has them all in one test, ``software``.
_DEPLOYMENT_TESTS = (
    "nvml library",
    "cuda main library",
    "cuda toolkit library",
    "page retirement",
    "page retirement/row remap",
    "inforom",
    "fabric manager",
    "software",
) + CONFIG_TESTS
#: Printed names that differ from the name for `dcgmi diag --run` by more than underscores.
_RUN_NAMES = {"gpu_memory": "memory", "eud_test": "eud", "pulse": "pulse_test"}

#: Test -> the first level that includes it (as ``--run`` takes it). All but `sm_stress`,
#: `context_create` are part of a level.
LEVEL_OF: Dict[str, int] = {
    "software": 1,
    "memory": 2,
    "pcie": 2,
    "context_create": 2,
    "diagnostic": 3,
    "nvbandwidth": 3,
    "nccl_tests": 3,
    "eud": 3,
    "cpu_eud": 3,
    "memory_bandwidth": 3,
    "targeted_stress": 3,
    "targeted_power": 3,
    "sm_stress": 3,
    "memtest": 4,
    "pulse_test": 4,
}
#: Tests that every data centre GPU runs at a level and above; other tests depend on versions,
#: packages and products.
REQUIRED: Dict[int, Tuple[str, ...]] = {
    1: (),
    2: ("memory", "pcie"),
    3: ("memory", "pcie", "diagnostic"),
    4: ("memory", "pcie", "diagnostic"),
}

#: Level -> seconds it may take in all, repetition included. Published durations: 1 seconds, 2 about
#: two minutes, 3 about 15 minutes in DCGM 4 (less than 30 in DCGM 3), 4 one to two hours (NVIDIA's
#: DCGM documentation, "dcgmi diag" and "Run Levels and Tests").
DEADLINES: Dict[int, float] = {1: 120.0, 2: 600.0, 3: 2400.0, 4: 9000.0}

ALREADY_RUNNING = 217

#: Exit status of dcgmi (the low byte of a negative dcgmReturn_t) -> its probable meaning. If there
#: is a document, the document decides.
EXIT_CODES: Dict[int, str] = {
    189: "the GPUs are detached from DCGM",
    190: "the diagnostic was stopped",
    198: "a test name was not found",
    202: "DCGM is paused",
    203: "nvvs was killed",
    204: "the program nvvs is missing; the DCGM package is incomplete",
    205: "an error that requires isolation",
    215: "nvvs could not be started",
    216: "DCGM could not read the result of nvvs",
    217: "another diagnostic is running",
    222: "the GPUs are in use",
    226: "an error was found",
    227: "root is needed",
    233: "the GPUs are of different models",
    234: "the GPU is not supported",
    235: "no connection to the host engine",
    237: "a GPU needs a reset",
    238: "a GPU is lost",
    239: "no permission",
    242: "no tests or no results",
    244: "dcgmi and the host engine differ in version",
    245: "the time limit given to DCGM was reached",
    250: "not supported, or not the recommended driver",
    253: "an error without a name",
    254: "an internal error of dcgmi",
    255: "a parameter was rejected",
}
#: Exit status -> next step, for statuses with one clear cause.
REMEDIES: Dict[int, str] = {
    198: "check the names in NVIDIA's documentation of dcgmi diag",
    204: "install datacenter-gpu-manager-4-core and the cuda package of the driver's version",
    227: "run with become",
    235: "start nvidia-dcgm (nv-hostengine), or set host_engine to the address of a running engine",
    239: "run with become",
    244: "install the same version of dcgmi and the host engine, then restart the engine",
    255: "check the options tests, parameters and host_engine",
}


def run_name(title: str) -> str:
    """The name of a test for ``--run`` from its printed name: ``GPU Memory`` is ``memory``,
    ``Denylist`` is ``software``.
    """
    words = " ".join(title.lower().split())
    if words in _DEPLOYMENT_TESTS:
        return "software"
    name = words.replace(" ", "_")
    return _RUN_NAMES.get(name, name)


def exit_hint(returncode: object) -> Optional[str]:
    """An exit status as text, with the next step if it is clear; None for success and for an
    unknown status.
    """
    if not isinstance(returncode, int) or returncode not in EXIT_CODES:
        return None
    remedy = REMEDIES.get(returncode)
    return EXIT_CODES[returncode] + (f"; {remedy}" if remedy else "")
