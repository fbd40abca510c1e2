# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's tools as programs of a stand-in node, which say what they are told."""

from __future__ import annotations

import json

NAMES = ("nvidia-smi", "nvbandwidth", "all_reduce_perf")

_GPU = """<gpu id="{pci}"><product_name>{name}</product_name><uuid>{uuid}</uuid>
<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
<ecc_errors>{ecc}</ecc_errors>
<remapped_rows><remapped_row_corr>0</remapped_row_corr>
<remapped_row_unc>{remapped}</remapped_row_unc>
<remapped_row_pending>No</remapped_row_pending>
<remapped_row_failure>{failed}</remapped_row_failure></remapped_rows>
<gpu_power_readings><current_power_limit>700.00 W</current_power_limit></gpu_power_readings>
<applications_clocks><graphics_clock>1980 MHz</graphics_clock></applications_clocks>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width></link_widths></pci_gpu_link_info>
<replay_counter>0</replay_counter></pci></gpu>"""
_ECC = "".join(
    f"<{counter}><sram_correctable>0</sram_correctable>"
    "<sram_uncorrectable_parity>0</sram_uncorrectable_parity>"
    "<sram_uncorrectable_secded>0</sram_uncorrectable_secded>"
    "<dram_correctable>0</dram_correctable><dram_uncorrectable>0</dram_uncorrectable>"
    f"</{counter}>"
    for counter in ("volatile", "aggregate")
)


def install(node, remapped=0, failed="No", host_to_device=55.0, wrong=0):
    """Write the tools of a node of H100: nvidia-smi says ``remapped`` rows and ``failed`` of each GPU, nvbandwidth
    ``host_to_device`` in GB/s, the all-reduce ``wrong`` values.
    """
    gpus = [_GPU.format(**gpu, ecc=_ECC, remapped=remapped, failed=failed) for gpu in node.gpus]
    log = (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log><driver_version>580.95.05</driver_version>"
        f"<cuda_version>13.0</cuda_version>{''.join(gpus)}</nvidia_smi_log>"
    )
    links = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    state = "".join(
        f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n{links}" for gpu in node.gpus
    )
    write(node, "nvidia-smi", f'if [ "$1" = nvlink ]; then {_said(state)}\nelse {_said(log)}\nfi')
    write(node, "nvbandwidth", 'case "$3" in\n' + _nvbandwidth(node, host_to_device) + "esac")
    result = f"# Out of bounds values : {wrong} OK\n# Avg bus bandwidth    : 412.3\n"
    write(node, "all_reduce_perf", _said(result))


def write(node, name, script):
    """A program of the node, in place of another of that name."""
    program = node.directory / "bin" / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


def _nvbandwidth(node, host_to_device):
    count = len(node.gpus)
    pairs = [["N/A" if row == column else "392" for column in range(count)] for row in range(count)]
    matrices = {
        "host_to_device_memcpy_ce": [[str(host_to_device)] * count],
        "device_to_host_memcpy_ce": [["54.9"] * count],
        "device_local_copy": [["1250.5"] * count],
        "device_to_device_memcpy_write_ce": pairs,
    }
    cases = {
        name: dict(name=name, status="Passed", bandwidth_matrix=matrix)
        for name, matrix in matrices.items()
    }
    documents = {
        name: json.dumps({"nvbandwidth": {"testcases": [case]}}) for name, case in cases.items()
    }
    return "".join(f"{name}) {_said(text)}\n;;\n" for name, text in documents.items())


def _said(text):
    return f"cat <<'END'\n{text}\nEND"
