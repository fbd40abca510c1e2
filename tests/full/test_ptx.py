# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device code in the core is what its source compiles to, and valid for every GPU and driver it
is meant for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices import (
    ptx_generated,
)

CUDA = Path(__file__).resolve().parents[2] / "src" / "cuda"
sys.path.insert(0, str(CUDA))
import build  # noqa: E402


@pytest.fixture(scope="module")
def toolchain():
    build.BUILD.mkdir(parents=True, exist_ok=True)
    try:
        with open(build.BUILD / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # test processes that run side by side install it once
            return build.toolchain()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the packages {' '.join(build.PACKAGES)} from a package index: {error}")


#: Text -> the kernels in it.
TEXTS = {
    "COPY": ["autopilot_copy"],
    "TRIAD": ["autopilot_fill", "autopilot_triad", "autopilot_count"],
    "FP64": ["autopilot_fp64"],
    "TENSOR": ["autopilot_tensor"],
}


def test_the_sources_are_the_ones_that_were_compiled():
    assert json.loads((CUDA / "compiled.json").read_text())["sources"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in CUDA.glob("*.cu")
    }


@pytest.mark.parametrize("name", TEXTS)
def test_the_header_asks_for_no_more_than_driver_410_and_a_v100(name):
    text = getattr(ptx_generated, name)
    assert re.findall(r"^\.(version|target) (\S+)$", text, re.MULTILINE) == [
        ("version", "6.3"),
        ("target", "sm_70"),
    ]
    assert re.findall(r"^\.visible \.entry (\w+)\($", text, re.MULTILINE) == TEXTS[name]


def test_a_rebuild_gives_the_same_bytes(toolchain):
    done = subprocess.run(
        ["make", "-C", str(CUDA), "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_literal_that_is_not_what_the_source_compiles_to_is_found(toolchain):
    texts = {
        source: build.lowered(build.compiled(toolchain[0], source)) for source in build.SOURCES
    }
    assert build.literal(texts) == build.LITERAL.read_text()
    assert (
        build.literal({**texts, "copy.cu": texts["copy.cu"].replace("add.s64", "sub.s64")})
        != build.LITERAL.read_text()
    )


@pytest.mark.parametrize(
    "gpu", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
)
def test_it_assembles_for(toolchain, gpu):
    _nvcc, ptxas, old = toolchain
    for name in TEXTS:
        build.prove(getattr(ptx_generated, name), old if gpu == "sm_70" else ptxas, (gpu,))


def test_the_assembler_refuses_what_the_header_does_not_allow(toolchain):
    newer = ptx_generated.COPY.replace("    ret;", "    cp.async.wait_all;\n    ret;")
    assert newer != ptx_generated.COPY
    with pytest.raises(subprocess.CalledProcessError):
        build.prove(newer, toolchain[1], ("sm_90",))
