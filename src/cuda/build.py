# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compile the CUDA kernels of this directory to portable PTX and write it as Python literals into
the core.

    build.py            compile, verify, write
    build.py --check    compile, verify, and fail (exit 1) if the core's file differs

The compiler comes from the package index in versions pinned here, and is kept in .build/cuda. nvcc
13 compiles for sm_75 and newer and marks its output as PTX 9.0, which drivers older than CUDA 13
reject. The kernels need neither, so the header is lowered to PTX ISA 6.3 (drivers since 410) and
sm_70 (GPUs since V100), and the result is assembled to verify it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / ".build" / "cuda"
#: Source -> the name of its PTX in the core, and the comment above it.
SOURCES = {
    "copy.cu": (
        "COPY",
        "``autopilot_copy(to, from, vectors)`` copies ``vectors`` times 16 bytes, one side "
        "being mapped host memory.",
    ),
    "triad.cu": (
        "TRIAD",
        "``autopilot_fill(b, c, count)``, ``autopilot_triad(a, b, c, s, pairs)``: a = b + s * "
        "c, ``autopilot_count(a, s, count, wrong)``; of doubles.",
    ),
    "fp64.cu": (
        "FP64",
        "``autopilot_fp64(ends, starts, k, steps)``: eight chains x = x * x - k a thread, from "
        "eight starts.",
    ),
    "tensor.cu": (
        "TENSOR",
        "``autopilot_tensor(sums, left, right, steps)``: four tiles of 16 x 16 floats a warp, "
        "each ``steps`` times left x right",
    ),
}
#: What was compiled, beside the sources.
RECORD = HERE / "compiled.json"
LITERAL = (
    HERE.parent.parent
    / "plugins"
    / "module_utils"
    / "_health"
    / "node"
    / "devices"
    / "ptx_generated.py"
)

NVCC = "13.0.88"
PACKAGES = (
    f"nvidia-cuda-nvcc=={NVCC}",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
)
#: The last assembler that supports sm_70. It has its own directory, since both packages contain
#: files of the same names.
OLD_PTXAS = "12.9.86"

VERSION, TARGET = "6.3", "sm_70"
#: GPUs for which the PTX is assembled: by the compiler's own assembler, and by the old assembler.
PROOF = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
OLD_PROOF = ("sm_70", "sm_80", "sm_90")


def toolchain() -> tuple[Path, Path, Path]:
    """nvcc, its ptxas, and the old ptxas, installed on first use."""
    home = BUILD / "venv"
    python = home / "bin" / "python"
    old = BUILD / "cu12"
    stamp = BUILD / "installed"
    wanted = " ".join(PACKAGES) + f" {OLD_PTXAS} {sys.version_info[:2]} {BUILD}\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.EnvBuilder(with_pip=True, clear=True).create(home)
        pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        subprocess.run([*pip, *PACKAGES], check=True)
        subprocess.run(
            [*pip, "--upgrade", "--target", str(old), f"nvidia-cuda-nvcc-cu12=={OLD_PTXAS}"],
            check=True,
        )
        stamp.write_text(wanted)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    new = site / "nvidia" / "cu13" / "bin"
    return new / "nvcc", new / "ptxas", old / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"


def compiled(nvcc: Path, source: str) -> str:
    """The PTX that nvcc makes of a source, for the oldest GPUs that nvcc supports."""
    with tempfile.TemporaryDirectory(dir=BUILD) as directory:
        output = Path(directory) / "device.ptx"
        subprocess.run(
            [str(nvcc), "-O2", "-ptx", "-arch=compute_75", "-o", str(output), str(HERE / source)],
            check=True,
        )
        return output.read_text()


def lowered(text: str) -> str:
    """The PTX without comments, with the lowest header that is valid, wrapped to readable lines."""
    lines = [
        line.expandtabs(4).rstrip()
        for line in text.splitlines()
        if not line.lstrip().startswith("//")
    ]
    text = re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip() + "\n"
    for name, value in ((".version", VERSION), (".target", TARGET)):
        text, count = re.subn(rf"^\{name} \S+$", f"{name} {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise SystemExit(f"build: expected one {name} in what nvcc wrote, found {count}")
    # A line of PTX may end between any two operands.
    return re.sub(
        r"^.{120,}$",
        lambda line: line.group().replace("}, {", "},\n        {"),
        text,
        flags=re.MULTILINE,
    )


def prove(text: str, ptxas: Path, gpus: tuple[str, ...]) -> None:
    """Assemble the PTX for each GPU; the assembler rejects an instruction that the header does not
    allow.
    """
    with tempfile.TemporaryDirectory(dir=BUILD) as directory:
        source = Path(directory) / "device.ptx"
        source.write_text(text)
        for gpu in gpus:
            subprocess.run(
                [
                    str(ptxas),
                    f"-arch={gpu}",
                    "-o",
                    str(Path(directory) / "device.cubin"),
                    str(source),
                ],
                check=True,
            )


def literal(texts: dict[str, str]) -> str:
    """The source of the core's module, from the PTX of each source."""
    parts = [
        "# Generated by `make -C src/cuda`; do not edit.\n"
        "# Copyright: Contributors to the autopilot.gpu collection\n"
        "# SPDX-License-Identifier: Apache-2.0\n"
        '"""Device code as PTX, which the driver compiles for its GPU."""\n\n'
        "from __future__ import annotations\n"
    ]
    parts += [
        f'\n#: {SOURCES[source][1]}\n{SOURCES[source][0]} = """\\\n{text}"""\n'
        for source, text in texts.items()
    ]
    return "".join(parts)


def record() -> str:
    """What was compiled: the SHA-256 of each source, and the compiler. No node needs it."""
    digests = {
        source: hashlib.sha256((HERE / source).read_bytes()).hexdigest() for source in SOURCES
    }
    compiler = f"nvcc {NVCC}, header lowered to PTX {VERSION} and {TARGET}"
    return json.dumps({"compiler": compiler, "sources": digests}, indent=1) + "\n"


def main() -> int:
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise SystemExit(
            f"build: there is no pinned nvcc for {platform.system()} on {platform.machine()}"
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    nvcc, ptxas, old_ptxas = toolchain()
    texts = {source: lowered(compiled(nvcc, source)) for source in SOURCES}
    for text in texts.values():
        prove(text, ptxas, PROOF)
        prove(text, old_ptxas, OLD_PROOF)
    fresh = {LITERAL: literal(texts), RECORD: record()}
    if "--check" not in sys.argv[1:]:
        for path, text in fresh.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in fresh.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(
            f"build: {path} is not what the sources compile to; run make -C src/cuda",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
