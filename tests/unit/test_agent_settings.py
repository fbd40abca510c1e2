# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's environment: what is accepted, what is not, and that an error names variable, value
and what is accepted.
"""

from __future__ import annotations

import os
import subprocess
import sys

import agent_world
import pytest
from _health.node import registry
from _health.agent.settings import AgentSettings, problems_of

PYTHONPATH = f"{agent_world.ROOT}/plugins/module_utils:{agent_world.ROOT}/src/agent"
LEAST = {"NODE_NAME": "gpu07", "NAMESPACE": "autopilot", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def read(**given):
    return AgentSettings.from_environment({**LEAST, **given})


@pytest.fixture
def path(tmp_path):
    """A PATH with dcgmi."""
    program = tmp_path / "dcgmi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(tmp_path)


def test_defaults_are_those_of_the_documentation(path):
    settings = read(PATH=path)
    assert (settings.port, settings.metrics_port, settings.readiness_port) == (3333, 8081, 8080)
    assert settings.periodic_checks == (
        "gpu_count",
        "remapped_rows",
        "gpu_power",
        "pcie_bandwidth",
        "dcgm_diag",
        "ping_mesh",
    )
    assert (settings.repeat_seconds, settings.invasive_seconds, settings.deep_level) == (
        3600,
        14400,
        3,
    )
    assert (settings.has_dcgmi, settings.left_out) == (True, ())
    assert settings.fatal_errors == ("PCIe", "NVLink", "ECC", "GPU Memory")
    assert (
        settings.mark_nodes,
        settings.cordon,
        settings.condition,
        settings.taint,
        settings.taint_unfit,
        settings.max_bad_share,
    ) == (True, False, True, "", False, 0.1)
    assert (settings.auth_required, settings.open_metrics, settings.fanout) == (True, True, 32)
    assert settings.api_server == "https://10.0.0.1:443" and settings.api_token_file.endswith(
        "/serviceaccount/token"
    )


BOTH = ("dcgm_diag", "deep_diagnostic")


@pytest.mark.parametrize(
    "variables, has_diagnostic, seconds, left_out",
    [
        ({}, False, 0, BOTH),
        ({"PERIODIC_CHECKS": "", "AUTOPILOT_INVASIVE_SECONDS": ""}, False, 0, BOTH),
        ({"PERIODIC_CHECKS": "all"}, False, 0, BOTH),
        ({"PERIODIC_CHECKS": "all,dcgm"}, True, 0, ("deep_diagnostic",)),
        ({"PERIODIC_CHECKS": "gpu_count"}, False, 0, ("deep_diagnostic",)),
        ({"PERIODIC_CHECKS": "gpu_count,dcgm"}, True, 0, ("deep_diagnostic",)),
        ({"AUTOPILOT_INVASIVE_SECONDS": "600"}, False, 600, ("dcgm_diag",)),
        ({"AUTOPILOT_INVASIVE_SECONDS": "0"}, False, 0, ("dcgm_diag",)),
        (
            {"PERIODIC_CHECKS": "gpu_count,dcgm_diag", "AUTOPILOT_INVASIVE_SECONDS": "600"},
            True,
            600,
            (),
        ),
    ],
)
def test_without_dcgmi_the_defaults_leave_out_the_diagnostic_and_explicit_settings_stay(
    variables, has_diagnostic, seconds, left_out
):
    settings = read(PATH="/nowhere", **variables)
    assert settings.has_dcgmi is False
    assert (
        "dcgm_diag" in settings.periodic_checks,
        settings.invasive_seconds,
        settings.left_out,
    ) == (has_diagnostic, seconds, left_out)
    assert "gpu_count" in settings.periodic_checks


def test_n4_names_of_periodic_checks_are_words_and_not_sets_of_characters():
    assert read(PERIODIC_CHECKS="pciebw, ping").periodic_checks == ("pcie_bandwidth", "ping_mesh")
    assert read(PERIODIC_CHECKS="remapped,ping").periodic_checks == ("remapped_rows", "ping_mesh")
    assert read(PERIODIC_CHECKS="gpupower,pciebw,dcgm,remapped").periodic_checks == (
        "remapped_rows",
        "gpu_power",
        "pcie_bandwidth",
        "dcgm_diag",
    )


def test_n11_all_is_a_value_of_periodic_checks(path):
    every = read(PERIODIC_CHECKS="all", PATH=path).periodic_checks
    assert set(registry.names_of_pass()) - {"volume_claim"} <= set(every)
    assert "iperf3_pairs" not in every and "volume_claim" not in every


def test_n9_all_has_a_claim_only_where_a_storage_class_is_named():
    every = read(PERIODIC_CHECKS="all", PVC_TEST_STORAGE_CLASS="fast").periodic_checks
    assert ("volume_claim" in every) == ("volume_claim" in registry.NAMES)
    assert read(PVC_TEST_STORAGE_CLASS="").storage_class == ""


def test_a_check_or_a_timer_whose_prerequisite_is_off_is_refused():
    """Otherwise every healthy node would be unknown, or no diagnostic would ever run."""
    with pytest.raises(ValueError, match="volume_claim needs a storage class; expected PVC_TEST_"):
        read(PERIODIC_CHECKS="gpu_count,pvc")
    with pytest.raises(
        ValueError, match="'60' is invalid; expected 0 while AUTOPILOT_RESERVE_GPUS"
    ):
        read(AUTOPILOT_INVASIVE_SECONDS="60", AUTOPILOT_RESERVE_GPUS="false")
    assert (
        read(AUTOPILOT_INVASIVE_SECONDS="0", AUTOPILOT_RESERVE_GPUS="false").reserve_gpus is False
    )
    valid = {"PERIODIC_CHECKS": "gpu_count,pvc", "PVC_TEST_STORAGE_CLASS": "fast"}
    assert problems_of(valid) == {} and "volume_claim" in read(**valid).periodic_checks
    assert list(problems_of({"PERIODIC_CHECKS": "pvc"})) == ["PERIODIC_CHECKS"]
    assert list(problems_of({**valid, "PVC_TEST_STORAGE_CLASS": "-"})) == ["PVC_TEST_STORAGE_CLASS"]


def test_n3_a_deep_diagnostic_every_0_seconds_is_none():
    assert read(AUTOPILOT_INVASIVE_SECONDS="0").invasive_seconds == 0


def test_fatal_errors_are_words_and_not_characters():
    assert read(DCGM_FATAL_ERRORS="PCIe, GPU Memory,").fatal_errors == ("PCIe", "GPU Memory")


@pytest.mark.parametrize(
    "variable, value, accepted",
    [
        ("NODE_NAME", "", "spec.nodeName"),
        ("NODE_NAME", "Gpu_07", "spec.nodeName"),
        ("NAMESPACE", "a/b", "metadata.namespace"),
        ("AUTOPILOT_PORT", "0", "1 to 65535"),
        ("AUTOPILOT_PORT", "http", "1 to 65535"),
        ("PERIODIC_CHECKS", "pciebw,iperf", "loads the network"),
        ("PERIODIC_CHECKS", "ciebw", "did you mean 'pciebw'?"),
        ("PERIODIC_CHECKS", ",", "names no check"),
        ("AUTOPILOT_REPEAT_SECONDS", "0", "1 or more"),
        ("AUTOPILOT_REPEAT_SECONDS", "1h", "seconds"),
        ("AUTOPILOT_REPEAT_SECONDS", "nan", "seconds"),
        ("AUTOPILOT_INVASIVE_SECONDS", "-1", "0 for never"),
        ("AUTOPILOT_DEEP_LEVEL", "5", "1 to 4"),
        ("AUTOPILOT_PCIE_MINIMUM", "0", "more than 0"),
        ("AUTOPILOT_EXPECTED_GPUS", "8.0", "1 or more"),
        ("AUTOPILOT_MARK_NODES", "yes", "true, false"),
        ("AUTOPILOT_LABEL_KEY", "gpu health", "key of a label"),
        ("AUTOPILOT_LABEL_KEY", "example.com/" + "x" * 57, "with at most 56 characters"),
        ("AUTOPILOT_TAINT", "Evict", "NoSchedule"),
        ("AUTOPILOT_MAX_BAD_SHARE", "10", "0 to 1"),
        ("AUTOPILOT_AUTH", "none", "required, off"),
        ("AUTOPILOT_FANOUT", "0", "1 to 1024"),
        ("AUTOPILOT_SERVICE", "x_y", "Service"),
        ("AUTOPILOT_LOG_LEVEL", "2", "debug, info"),
        ("AUTOPILOT_API_SERVER", "10.0.0.1", "URL"),
        ("AUTOPILOT_HOST_ROOT", "host", "mounted"),
        ("AUTOPILOT_AUDIENCE", "a\nb", "printable"),
    ],
)
def test_an_error_names_the_variable_the_value_and_what_is_accepted(variable, value, accepted):
    with pytest.raises(ValueError) as refused:
        read(**{variable: value})
    words = str(refused.value)
    assert words.startswith(f"{variable}: ") and accepted in words
    assert repr(value) in words or value in words


def test_the_agent_ends_with_2_and_the_words_on_standard_error():
    environment = {**os.environ, **LEAST, "AUTOPILOT_TAINT": "Evict", "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-m", "autopilot_agent"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.strip() == (
        "autopilot_agent: AUTOPILOT_TAINT: 'Evict' is invalid; expected nothing, NoSchedule, "
        "PreferNoSchedule, NoExecute"
    )
