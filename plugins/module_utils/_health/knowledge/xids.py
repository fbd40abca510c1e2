# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Xid errors: what each means, what NVIDIA says to do at once, and what that makes of a
node. A new Xid is a new row.

Numbers, names, meanings and immediate actions: NVIDIA's Xid catalogue as of 2025-10-29; from 173 on
NVIDIA's open driver 595 and "GPU Operational Events" R620, which name no action. What we make of
them follows the immediate action, but where a row in ``_OWN`` says otherwise.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple

from ..model import FAIL, PASS, WARN


class Verdict(NamedTuple):
    """The consequence of an Xid for its GPU: status, action, and the next step as text."""

    status: str
    action: str
    next: str


class Xid(NamedTuple):
    """A row of the catalogue. ``immediate`` is NVIDIA's word for what to do at once, "" where it
    gives none.
    """

    name: str
    meaning: str
    immediate: str
    verdict: Verdict


APPLICATION = Verdict(
    PASS, "none", "an error of the application; nothing is wrong with the GPU as far as this tells"
)
_INFORMATION = Verdict(PASS, "none", "no action is needed")
_RESET = Verdict(
    FAIL, "reset_gpu", "drain the node and reset the GPU; if the reset is refused, reboot the node"
)
_REBOOT = Verdict(
    FAIL,
    "reboot_node",
    "drain the node and power-cycle it; if it returns, reseat the GPU, then replace it",
)
_SUPPORT = Verdict(WARN, "watch", "watch the GPU; if it returns, report it to NVIDIA")
_WATCH = Verdict(WARN, "watch", "watch the GPU; if it returns, report it")
_REPAIR = Verdict(
    WARN, "reset_gpu", "reset the GPU when its jobs have ended, so that the repair takes effect"
)
_DIAGNOSE = Verdict(
    WARN,
    "replace_part",
    "run the field diagnostic when the node is drained; the GPU may need replacement",
)
_LINK = Verdict(WARN, "watch", "check the error counters of the link and its other end")
FATAL_LINK = Verdict(
    FAIL,
    "reset_gpu",
    "drain the node and reset the GPU; if it returns, check the other end of the link and "
    "the switch",
)

#: Verdicts by NVIDIA's immediate action.
_BY_ACTION: Dict[str, Verdict] = {
    "RESTART_APP": APPLICATION,
    "IGNORE": _INFORMATION,
    "RESET_GPU": _RESET,
    "RESTART_BM": _REBOOT,
    "RESTART_VM": Verdict(
        FAIL, "reboot_node", "drain the node and restart the virtual machine or the node"
    ),
    "CONTACT_SUPPORT": _SUPPORT,
    "CHECK_MECHANICALS": Verdict(
        FAIL, "drain_node", "drain the node and check the board's power cables"
    ),
    "UPDATE_SWFW": Verdict(
        WARN,
        "fix_configuration",
        "install matching versions of guest driver, host driver and firmware",
    ),
    "CHECK_UVM": _WATCH,
    "": _WATCH,
    # The text contains the severity: see `FATAL_IN_TEXT`.
    "WORKFLOW_NVLINK5_ERR": _LINK,
    "WORKFLOW_NVLINK_ERR": FATAL_LINK,
    "WORKFLOW_XID_48": _RESET,
    # Alone it is a sign that the fabric manager cleaned up; with another Xid it is a consequence of
    # that.
    "WORKFLOW_XID_45": _INFORMATION,
    # The text contains the action: see `recovery_of` in the check.
    "XID_154": _WATCH,
}

#: Verdicts that differ from the immediate action; the reasons are in the workflows of NVIDIA's
#: catalogue or, where it has none, are our judgement.
_OWN: Dict[int, Verdict] = {
    # Support is asked only afterwards: the GPU's channel is gone and no job is told why.
    32: _WATCH,
    44: _WATCH,
    80: _WATCH,
    # A row waits for its remapping; until then its page is out of use.
    63: _REPAIR,
    94: _REPAIR,
    160: _REPAIR,
    64: Verdict(
        FAIL,
        "replace_part",
        "drain the node, reset the GPU once, run the field diagnostic, and replace the GPU "
        "if it confirms the fault",
    ),
    43: APPLICATION,
    61: _RESET,
    92: Verdict(WARN, "watch", "check the GPU's temperature and its corrected memory errors"),
    121: _LINK,
    137: _LINK,
    157: _DIAGNOSE,
    161: _DIAGNOSE,
    162: _INFORMATION,
    163: _INFORMATION,
    164: _INFORMATION,
    165: _INFORMATION,
    # NVIDIA names no action; the GPU cannot be trusted before a person has checked it.
    167: _RESET,
    168: Verdict(
        FAIL,
        "drain_node",
        "drain the node and compare the GPU's memory size with its peers; run the field diagnostic",
    ),
    169: Verdict(WARN, "reset_gpu", "reset the GPU when its jobs have ended"),
    171: _RESET,
    172: _RESET,
    # The link between CPU and GPU, over which the driver reaches the GPU.
    173: _REBOOT,
    174: APPLICATION,
    # The driver logs it in place of 119 and takes it as fatal at once (kernel_gsp.c, a timeout of
    # the kind GSP_ERROR_TYPE_MEMORY_SUBSYSTEM_ERROR).
    175: _RESET,
}

#: Xids of NVLink 5 whose text says ``Fatal`` or ``Nonfatal``.
FATAL_IN_TEXT = tuple(range(144, 151))
#: Reasons of a link that went down (Xid 149, bits 20 to 25 of the first number in its text) at which
#: the catalogue's sheet for Xids 144 to 150 says to do nothing to the GPU, although the line says
#: ``Fatal``: the user's software, the host.
LINK_DOWN, LINK_DOWN_ELSEWHERE = 149, (38, 40)

#: Details of a memory error, and the Xids beside which they are no news: those say what became of
#: it (workflow of Xid 48).
EXPLAINED: Dict[int, Tuple[int, ...]] = {code: (63, 64, 94, 95) for code in (48, 171, 172)}
#: Errors that the driver also counts as uncorrected (volatile) until it initialises the GPU anew
#: (NVIDIA, Driver Persistence, Data Persistence: GPU initialisation lifecycle).
COUNTED = (48, 95, 171, 172)
RECOVERY_CHANGED = 154
OFF_THE_BUS = 79
#: Xids of rows (Ampere and later) or pages (before); the text says which.
RETIREMENT = (63, 64)

#: Messages of the kernel without an Xid, and of switches: "NVIDIA Fabric Manager User Guide",
#: chapter on fatal and non-fatal SXid errors.
SWITCH_FATAL = Verdict(
    FAIL,
    "reboot_node",
    "drain the node, then reset all GPUs and switches together or reboot the node",
)
SWITCH_NOT_FATAL = Verdict(
    WARN, "watch", "the job on that link may have failed; watch whether it returns"
)

#: An error that a reset mends, of a GPU that was initialised anew since. A reset does that, but so
#: does the last process that ends without persistence mode.
INITIALISED = Verdict(
    WARN,
    "watch",
    "the GPU was initialised anew since, probably by a reset; run `dcgmi diag -r 2` before the next "
    "job",
)

NOT_KNOWN = Verdict(WARN, "watch", "unknown to this version; look it up in NVIDIA's catalogue")

#: Xid -> name, meaning ("": not used by current drivers), NVIDIA's immediate action.
_CATALOGUE: Dict[int, Tuple[str, str, str]] = {
    1: ("FIFO_ERROR_FIFO_METHOD", "", "CONTACT_SUPPORT"),
    2: ("FIFO_ERROR_SW_METHOD", "", "CONTACT_SUPPORT"),
    3: ("FIFO_ERROR_UNK_METHOD", "", "CONTACT_SUPPORT"),
    4: ("FIFO_ERROR_CHANNEL_BUSY", "", "CONTACT_SUPPORT"),
    5: ("FIFO_ERROR_RUNOUT_OVERFLOW", "", "CONTACT_SUPPORT"),
    6: ("FIFO_ERROR_PARSE_ERR", "", "CONTACT_SUPPORT"),
    7: ("FIFO_ERROR_PTE_ERR", "", "CONTACT_SUPPORT"),
    8: ("FIFO_ERROR_IDLE_TIMEOUT", "GPU stopped processing", "RESTART_APP"),
    9: ("GR_ERROR_INSTANCE", "", "CONTACT_SUPPORT"),
    10: ("GR_ERROR_SINGLE_STEP", "", "CONTACT_SUPPORT"),
    11: ("GR_ERROR_MISSING_HW", "invalid or corrupted push buffer stream", "RESTART_APP"),
    12: ("GR_ERROR_SW_METHOD", "", "CONTACT_SUPPORT"),
    13: ("GR_EXCEPTION", "graphics engine exception", "RESTART_APP"),
    14: ("FAKE_ERROR", "", "IGNORE"),
    15: ("SCANLINE_TIMEOUT", "", "CONTACT_SUPPORT"),
    16: ("VBLANK_CALLBACK_TIMEOUT", "", "CONTACT_SUPPORT"),
    17: ("PARAMETER_ERROR", "", "CONTACT_SUPPORT"),
    18: ("BUS_MASTER_TIMEOUT_ERROR", "", "CONTACT_SUPPORT"),
    19: ("DISP_MISSED_NOTIFIER", "", "CONTACT_SUPPORT"),
    20: ("MPEG_ERROR_SW_METHOD", "", "CONTACT_SUPPORT"),
    21: ("ME_ERROR_SW_METHOD", "", "CONTACT_SUPPORT"),
    22: ("VP_ERROR_SW_METHOD", "", "CONTACT_SUPPORT"),
    23: ("RC_LOGGING_ENABLED", "", "CONTACT_SUPPORT"),
    24: ("GR_SEMAPHORE_TIMEOUT", "", "CONTACT_SUPPORT"),
    25: ("GR_ILLEGAL_NOTIFY", "invalid or illegal push buffer stream", "RESTART_APP"),
    26: ("FIFO_ERROR_FBISTATE_TIMEOUT", "", "CONTACT_SUPPORT"),
    27: ("VP_ERROR", "", "CONTACT_SUPPORT"),
    28: ("VP2_ERROR", "", "CONTACT_SUPPORT"),
    29: ("BSP_ERROR", "", "CONTACT_SUPPORT"),
    30: ("BAD_ADDR_ACCESS", "", "CONTACT_SUPPORT"),
    31: ("FIFO_ERROR_MMU_ERR_FLT", "GPU memory page fault", "RESTART_APP"),
    32: ("PBDMA_ERROR", "invalid or corrupted push buffer stream", "RESTART_APP"),
    33: ("SEC_ERROR", "", "CONTACT_SUPPORT"),
    34: ("MSVLD_ERROR", "", "CONTACT_SUPPORT"),
    35: ("MSPDEC_ERROR", "", "CONTACT_SUPPORT"),
    36: ("MSPPP_ERROR", "", "CONTACT_SUPPORT"),
    37: ("FECS_ERR_UNIMP_FIRMWARE_METHOD", "driver firmware error", "IGNORE"),
    38: ("FECS_ERR_WATCHDOG_TIMEOUT", "driver firmware error", "IGNORE"),
    39: ("CE0_ERROR", "copy engine exception", "RESTART_APP"),
    40: ("CE1_ERROR", "copy engine exception", "RESTART_APP"),
    41: ("CE2_ERROR", "copy engine exception", "RESTART_APP"),
    42: ("VIC_ERROR", "", "CONTACT_SUPPORT"),
    43: ("RESETCHANNEL_VERIF_ERROR", "GPU stopped processing", "IGNORE"),
    44: ("GR_FAULT_DURING_CTXSW", "graphics engine fault during context switch", "IGNORE"),
    45: ("PREEMPTIVE_REMOVAL", "channels removed after an earlier error", "WORKFLOW_XID_45"),
    46: ("GPU_TIMEOUT_ERROR", "GPU stopped processing", "RESET_GPU"),
    47: ("NVENC0_ERROR", "", "CONTACT_SUPPORT"),
    48: ("GPU_ECC_DBE", "double-bit ECC error", "WORKFLOW_XID_48"),
    49: ("SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY", "", "CONTACT_SUPPORT"),
    50: ("SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR", "", "CONTACT_SUPPORT"),
    51: ("SILENT_RUNNING_STRESS_TEST_FAILURE", "", "CONTACT_SUPPORT"),
    52: ("SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE", "", "CONTACT_SUPPORT"),
    53: ("SILENT_RUNNING_TEMP_REDUCED_CLOCKING", "", "CONTACT_SUPPORT"),
    54: (
        "SILENT_RUNNING_PWR_REDUCED_CLOCKING",
        "auxiliary power is not connected to the board",
        "CHECK_MECHANICALS",
    ),
    55: ("SILENT_RUNNING_TEMPERATURE_READ_ERROR", "", "CONTACT_SUPPORT"),
    56: ("DISPLAY_CHANNEL_EXCEPTION", "", "CONTACT_SUPPORT"),
    57: ("FB_LINK_TRAINING_FAILURE_ERROR", "", "CONTACT_SUPPORT"),
    58: ("FB_MEMORY_ERROR", "", "CONTACT_SUPPORT"),
    59: ("PMU_ERROR", "", "CONTACT_SUPPORT"),
    60: ("SEC2_ERROR", "video processor exception", "RESTART_APP"),
    61: ("PMU_BREAKPOINT", "internal micro-controller breakpoint", "CONTACT_SUPPORT"),
    62: ("PMU_HALT_ERROR", "internal micro-controller halted", "RESET_GPU"),
    63: ("INFOROM_DRAM_RETIREMENT_EVENT", "memory row or page retired", "IGNORE"),
    64: ("INFOROM_DRAM_RETIREMENT_FAILURE", "memory row or page could not be retired", "RESET_GPU"),
    65: ("NVENC1_ERROR", "", "CONTACT_SUPPORT"),
    66: ("FECS_ERR_REG_ACCESS_VIOLATION", "illegal access by driver", "IGNORE"),
    67: ("FECS_ERR_VERIF_VIOLATION", "illegal access by driver", "IGNORE"),
    68: ("NVDEC0_ERROR", "NVDEC0 exception", "RESTART_APP"),
    69: ("GR_CLASS_ERROR", "graphics engine class error", "RESTART_APP"),
    70: ("CE3_ERROR", "CE3 error", "RESTART_APP"),
    71: ("CE4_ERROR", "CE4 error", "RESTART_APP"),
    72: ("CE5_ERROR", "CE5 error", "RESTART_APP"),
    73: ("NVENC2_ERROR", "", "CONTACT_SUPPORT"),
    74: ("NVLINK_ERROR", "NVLink error", "WORKFLOW_NVLINK_ERR"),
    75: ("CE6_ERROR", "CE6 error", "RESTART_APP"),
    76: ("CE7_ERROR", "CE7 error", "RESTART_APP"),
    77: ("CE8_ERROR", "CE8 error", "RESTART_APP"),
    78: ("VGPU_START_ERROR", "vGPU start error", "UPDATE_SWFW"),
    79: ("GPU_HAS_FALLEN_OFF_THE_BUS", "GPU has fallen off the bus", "RESTART_BM"),
    80: ("PBDMA_PUSHBUFFER_CRC_MISMATCH", "corrupted data sent to GPU", "RESTART_APP"),
    81: ("VGA_SUBSYSTEM_ERROR", "", "CONTACT_SUPPORT"),
    82: ("NVJPG0_ERROR", "NVJPG0 error", "RESTART_APP"),
    83: ("NVDEC1_ERROR", "NVDEC1 error", "RESTART_APP"),
    84: ("NVDEC2_ERROR", "NVDEC2 error", "RESTART_APP"),
    85: ("CE9_ERROR", "CE9 error", "RESTART_APP"),
    86: ("OFA0_ERROR", "OFA exception", "RESTART_APP"),
    87: ("NVTELEMETRY_DRIVER_REPORT", "", "CONTACT_SUPPORT"),
    88: ("NVDEC3_ERROR", "NVDEC3 error", "RESTART_APP"),
    89: ("NVDEC4_ERROR", "NVDEC4 error", "RESTART_APP"),
    90: ("LTC_ERROR", "", "CONTACT_SUPPORT"),
    91: ("RESERVED_XID", "", "CONTACT_SUPPORT"),
    92: ("EXCESSIVE_SBE_INTERRUPTS", "high single-bit ECC error rate", "IGNORE"),
    93: ("INFOROM_ERASE_LIMIT_EXCEEDED", "InfoROM written too often", "IGNORE"),
    94: ("CONTAINED_ERROR", "contained memory error", "RESTART_APP"),
    95: ("UNCONTAINED_ERROR", "uncontained memory error", "RESET_GPU"),
    96: ("NVDEC5_ERROR", "NVDEC5 error", "RESTART_APP"),
    97: ("NVDEC6_ERROR", "NVDEC6 error", "RESTART_APP"),
    98: ("NVDEC7_ERROR", "NVDEC7 error", "RESTART_APP"),
    99: ("NVJPG1_ERROR", "NVJPG1 error", "RESTART_APP"),
    100: ("NVJPG2_ERROR", "NVJPG2 error", "RESTART_APP"),
    101: ("NVJPG3_ERROR", "NVJPG3 error", "RESTART_APP"),
    102: ("NVJPG4_ERROR", "NVJPG4 error", "RESTART_APP"),
    103: ("NVJPG5_ERROR", "NVJPG5 error", "RESTART_APP"),
    104: ("NVJPG6_ERROR", "NVJPG6 error", "RESTART_APP"),
    105: ("NVJPG7_ERROR", "NVJPG7 error", "RESTART_APP"),
    106: ("SMBPBI_TEST_MESSAGE", "SMBPBI test message", "IGNORE"),
    107: ("SMBPBI_TEST_MESSAGE_SILENT", "SMBPBI test message, silent", "IGNORE"),
    108: ("NVLINK_REMOTE_TRANSLATION_ERROR", "", "IGNORE"),
    109: ("CTXSW_TIMEOUT_ERROR", "context switch timeout error", "RESET_GPU"),
    110: ("SEC_FAULT_ERROR", "security fault error", "RESET_GPU"),
    111: ("BUNDLE_ERROR_EVENT", "", "CONTACT_SUPPORT"),
    112: ("DISP_SUPERVISOR_ERROR", "", "CONTACT_SUPPORT"),
    113: ("DP_LT_FAILURE", "", "CONTACT_SUPPORT"),
    114: ("HEAD_RG_UNDERFLOW", "", "CONTACT_SUPPORT"),
    115: ("CORE_CHANNEL_REGS", "", "CONTACT_SUPPORT"),
    116: ("WINDOW_CHANNEL_REGS", "", "CONTACT_SUPPORT"),
    117: ("CURSOR_CHANNEL_REGS", "", "CONTACT_SUPPORT"),
    118: ("HEAD_REGS", "", "CONTACT_SUPPORT"),
    119: ("GSP_RPC_TIMEOUT", "GSP RPC timeout", "RESET_GPU"),
    120: ("GSP_ERROR", "GSP error", "RESET_GPU"),
    121: ("C2C_ERROR", "C2C error", "IGNORE"),
    122: ("SPI_PMU_RPC_READ_FAIL", "", "CONTACT_SUPPORT"),
    123: ("SPI_PMU_RPC_WRITE_FAIL", "", "CONTACT_SUPPORT"),
    124: ("SPI_PMU_RPC_ERASE_FAIL", "", "CONTACT_SUPPORT"),
    125: ("INFOROM_FS_ERROR", "", "CONTACT_SUPPORT"),
    126: ("CE10_ERROR", "CE10 error", "RESTART_APP"),
    127: ("CE11_ERROR", "CE11 error", "RESTART_APP"),
    128: ("CE12_ERROR", "CE12 error", "RESTART_APP"),
    129: ("CE13_ERROR", "CE13 error", "RESTART_APP"),
    130: ("CE14_ERROR", "CE14 error", "RESTART_APP"),
    131: ("CE15_ERROR", "CE15 error", "RESTART_APP"),
    132: ("CE16_ERROR", "CE16 error", "RESTART_APP"),
    133: ("CE17_ERROR", "CE17 error", "RESTART_APP"),
    134: ("CE18_ERROR", "CE18 error", "RESTART_APP"),
    135: ("CE19_ERROR", "CE19 error", "RESTART_APP"),
    136: ("ALI_TRAINING_FAIL", "link training failed", "RESET_GPU"),
    137: ("NVLINK_PRIV_ERR", "NVLink privilege error", "IGNORE"),
    138: ("DLA_ERROR", "", "CONTACT_SUPPORT"),
    139: ("OFA1_ERROR", "OFA1 error", "RESTART_APP"),
    140: ("UNRECOVERABLE_ECC_ERROR_ESCAPE", "unrecovered ECC error", "RESET_GPU"),
    141: ("FAST_PATH_ERROR", "CUDA fast path error", "IGNORE"),
    142: ("NVENC3_ERROR", "NVENC3 error", "CONTACT_SUPPORT"),
    143: ("GPU_INIT_ERROR", "GPU initialisation error", "RESET_GPU"),
    144: ("NVLINK_SAW_ERROR", "NVLink SAW error", "WORKFLOW_NVLINK5_ERR"),
    145: ("NVLINK_RLW_ERROR", "NVLink RLW error", "WORKFLOW_NVLINK5_ERR"),
    146: ("NVLINK_TLW_ERROR", "NVLink TLW error", "WORKFLOW_NVLINK5_ERR"),
    147: ("NVLINK_TREX_ERROR", "NVLink TREX error", "WORKFLOW_NVLINK5_ERR"),
    148: ("NVLINK_NVLPW_CTRL_ERROR", "NVLink NVLPW_CTRL error", "WORKFLOW_NVLINK5_ERR"),
    149: ("NVLINK_NETIR_ERROR", "NVLink NETIR error", "WORKFLOW_NVLINK5_ERR"),
    150: ("NVLINK_MSE_ERROR", "NVLink MSE error", "WORKFLOW_NVLINK5_ERR"),
    151: ("KEY_ROTATION_ERROR", "key rotation error", "RESTART_VM"),
    152: ("DLA_SMMU_ERROR", "DLA SMMU error", "IGNORE"),
    153: ("DLA_TIMEOUT", "DLA timeout error", "IGNORE"),
    154: ("GPU_RECOVERY_ACTION_CHANGED", "recovery action changed", "XID_154"),
    155: ("NVLINK_SW_DEFINED_ERROR", "NVLink software-defined error", "RESET_GPU"),
    156: ("RESOURCE_RETIREMENT_EVENT", "resource retirement event", "RESET_GPU"),
    157: ("RESOURCE_RETIREMENT_FAILURE", "resource retirement failure", "IGNORE"),
    158: ("GPU_FATAL_TIMEOUT", "GPU fatal timeout", "RESET_GPU"),
    159: ("CHI_NON_DATA_ERROR", "CHI non-data error", "CHECK_UVM"),
    160: ("CHANNEL_RETIREMENT_EVENT", "channel retirement event", "IGNORE"),
    161: ("CHANNEL_RETIREMENT_FAILURE", "channel retirement failure", "IGNORE"),
    162: ("PSHC_REENGAGED", "power smoothing hardware enabled again", ""),
    163: ("PSHC_DISENGAGED", "power smoothing hardware disabled", ""),
    164: ("PSHC_LOW_LIFETIME", "power smoothing hardware near its end of life", ""),
    165: ("PSHC_ZERO_LIFETIME", "power smoothing hardware at its end of life", ""),
    166: ("NVLINK_SECURE_CRYPTO_ERR", "traffic before the link's encryption was set up", ""),
    167: ("PCIE_FATAL_TIMEOUT", "PCIe fatal timeout", ""),
    168: (
        "REDUCED_GPU_MEMORY_CAPACITY",
        "less memory than installed, after errors in its protected region",
        "",
    ),
    169: ("SEC2_HALT_ERROR", "internal micro-controller halted", ""),
    170: ("NVLINK_SECURE_OTHER", "link interrupt in confidential computing mode", ""),
    171: ("UNCORRECTABLE_DRAM_ERROR", "uncorrectable DRAM error", ""),
    172: ("UNCORRECTABLE_SRAM_ERROR", "uncorrectable SRAM error", ""),
    173: ("C2C_FATAL_LINK_FAILURE", "the link between CPU and GPU failed", ""),
    174: ("RESETCHANNEL_KILL_PROCESS_SILENT", "channels of a process removed", ""),
    175: ("GSP_MEMORY_SUBSYSTEM_ERROR", "GSP timeout, its memory does not answer", ""),
    176: ("PCIE_CORRECTABLE_ERROR_FAULT", "too many corrected PCIe errors", ""),
    185: ("SPARING_EVENT", "a spare part of the memory is in use", ""),
}

XIDS: Dict[int, Xid] = {
    code: Xid(
        name,
        meaning or name.lower().replace("_", " "),
        immediate,
        _OWN.get(code, _BY_ACTION[immediate]),
    )
    for code, (name, meaning, immediate) in _CATALOGUE.items()
}
