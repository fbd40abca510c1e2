# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What DCGM reports."""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, RESET, IF_FAIL, Entry

FINDINGS: Dict[str, Entry] = {
    "dcgm_isolate": Entry(
        "DCGM found an error for which it wants the GPU isolated.",
        f"{IF_FAIL}; the finding names the test and DCGM's advice.",
    ),
    "dcgm_triage": Entry(
        "A test of DCGM failed.",
        f"{IF_FAIL}, since it failed twice, and take DCGM's result to your vendor; if not, run "
        "it again while the node is idle.",
    ),
    "dcgm_reset": Entry("DCGM found an error that a reset clears.", RESET),
    "dcgm_failure": Entry(
        "A test of DCGM failed, and this version does not say how grave it is.",
        f"{IF_FAIL}; run `dcgmi diag -r 3` on it while it is idle; a newer DCGM says more.",
    ),
    "dcgm_config": Entry(
        "DCGM found a configuration that is wrong.",
        "Correct what the finding names, then run it again.",
    ),
    "dcgm_monitor": Entry(
        "DCGM found something to be watched.", "Nothing yet; look whether it comes again."
    ),
    "dcgm_unrecognised": Entry(
        "DCGM reports an error that it does not know itself.", f"{AGAIN}; a newer DCGM may know it."
    ),
    "dcgm_unexplained": Entry(
        "DCGM printed a test as failed without an error that counts.",
        f"{AGAIN}; a newer DCGM may say more.",
    ),
    "pcie_width": Entry(
        "DCGM found the PCIe link narrower than it can be.",
        f"{IF_FAIL}; reseat the card, then try another riser or slot.",
    ),
    "graphics_processes": Entry(
        "Graphics processes run on the GPU.", "End them; on a server, disable the display manager."
    ),
    "dcgmi_missing": Entry(
        "DCGM is not installed, so that its diagnostic did not run.",
        "Install datacenter-gpu-manager-4-core and datacenter-gpu-manager-4-cuda12 or -cuda13, "
        "as the driver has it; in a cluster, rebuild the agent's image "
        "with the build arguments `DCGM_REPOSITORY` and `DCGM_KEY`; or leave `dcgm_diag` out "
        "with `checks_list`.",
    ),
    "dcgmi_not_started": Entry(
        "dcgmi could not be started.",
        "Start `dcgmi --version` on the node and repair what it says.",
    ),
    "dcgmi_timed_out": Entry(
        "dcgmi did not answer in time and was ended.",
        f"{AGAIN}; then look at `systemctl status nvidia-dcgm`, and for Xids in `dmesg`.",
    ),
    "dcgmi_died": Entry(
        "dcgmi did not end by itself.", f"{AGAIN}; look at `journalctl -u nvidia-dcgm`."
    ),
    "dcgm_could_not_run": Entry(
        "DCGM could not run its diagnostic.",
        "The finding has its words; look at `systemctl status nvidia-dcgm`.",
    ),
    "diagnostic_already_running": Entry(
        "Another diagnostic of DCGM kept running.", "Wait for it or end it, then run again."
    ),
    "diagnostic_not_run": Entry("DCGM's diagnostic was not run.", f"{AGAIN}."),
    "no_result": Entry("DCGM gave no result.", f"{AGAIN}; then try `dcgmi diag -r 1` on the node."),
    "result_incomplete": Entry(
        "DCGM's result broke off before its end.",
        f"{AGAIN}; a GPU that dies during a test can cause it, so look for Xids with `dmesg | "
        "grep -i xid`.",
    ),
    "exit_status_unexplained": Entry(
        "dcgmi ended with an error, and its result does not say why.",
        f"{AGAIN}; then try `dcgmi diag -r 1` on the node.",
    ),
    "status_unknown": Entry(
        "DCGM gave a test a status that this collection does not know.",
        "Report it with the run document.",
    ),
    "gpu_without_result": Entry(
        "DCGM has no result of a GPU.", "Look whether `dcgmi discovery -l` lists it; run again."
    ),
    "test_not_run": Entry(
        "DCGM did not run a test that belongs to the level.",
        "Look whether the whole of DCGM is installed (its cuda package too); run again.",
    ),
    "test_skipped": Entry("DCGM skipped a test.", "Nothing is wrong; the GPU may not support it."),
    "left_behind": Entry(
        "A process of the diagnostic could not be ended and may hold a GPU.",
        "Drain the node and reboot it.",
    ),
}
