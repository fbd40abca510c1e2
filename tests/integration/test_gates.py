# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `make test` makes of gates that pass, fail, and fail by chance."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controller import ROOT

#: The first time a test asks, and each time after it.
FIRST = """
from pathlib import Path
import pytest

def first(name):
    seen = Path(name)
    return not seen.exists() and not seen.touch()
"""


@pytest.fixture
def gates(tmp_path):
    """``gates(gate="text of its tests", ...) -> (exit status, output)``, run with the Makefile's
    pytest and its settings.
    """
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    how = re.search(r"^PYTEST = .*$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M).group()

    def run(**tests):
        rules = []
        for gate, text in tests.items():
            Path(tmp_path, f"test_{gate}.py").write_text(FIRST + text, encoding="utf-8")
            rules.append(f"{gate}:\n\t$(PYTEST) test_{gate}.py\n")
        Path(tmp_path, "Makefile").write_text(how + "\n" + "".join(rules), encoding="utf-8")
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = [sys.executable, ROOT / "tests/tools/gates.py", *tests]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    return run


def test_what_passes(gates):
    status, out = gates(
        good="def test_good():\n    pass\n", other="def test_other():\n    pytest.skip('no GPU')\n"
    )
    assert status == 0
    assert out.endswith("\n1 passed, 0 failed, 1 skipped\n")
    assert "test_other::test_other: no GPU" in out


def test_what_fails_twice_has_failed(gates):
    status, out = gates(
        bad="def test_bad():\n    assert 1 == 2\n", good="def test_good():\n    pass\n"
    )
    assert status == 1
    assert out.endswith("\n1 passed, 1 failed, 0 skipped\n")
    assert re.search(r"^FAILED +bad ", out, re.M)


def test_what_fails_by_chance_is_named_and_counts_as_passed(gates):
    status, out = gates(
        chance="def test_a():\n    assert not first('a'), 'too\\nlate'\n\ndef test_b():\n    pass\n"
    )
    assert status == 0
    assert out.endswith("\n2 passed, 0 failed, 0 skipped\n")
    assert re.search(
        r"^=== tests that failed at first and passed alone: .*\ntest_chance::test_a: "
        r"AssertionError: too late .*\n\n=== gates",
        out,
        re.M,
    )


def test_a_fixture_that_fails_by_chance_after_its_test(gates):
    fixture = (
        "@pytest.fixture\ndef left():\n    yield\n    assert not first('left')\n\ndef "
        "test_a(left):\n    pass\n"
    )
    status, out = gates(chance=fixture)
    assert (status, out.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 skipped")


@pytest.mark.parametrize(
    "text",
    [
        # One of them fails again.
        "def test_a():\n    assert not first('a')\n\ndef test_b():\n    assert False\n",
        # Could not tell is not passed.
        "def test_a():\n    assert not first('a')\n    pytest.skip('gone')\n",
        # Too many for chance.
        "@pytest.mark.parametrize('n', range(11))\ndef test_a(n):\n    assert not first(f'a{n}')\n",
        # What could not be read kept tests from running.
        "assert not first('a')\n\ndef test_a():\n    pass\n",
        # pytest itself was ended.
        "import os, signal\n\ndef test_a():\n    if first('a'):\n        os.kill(os.getpid(), "
        "signal.SIGKILL)\n",
    ],
)
def test_what_is_no_chance(gates, text):
    status, out = gates(bad=text, good="def test_good():\n    pass\n")
    assert status == 1
    assert re.search(r"^FAILED +bad ", out, re.M)
    assert "passed alone: defects to be mended, of the test or of what it tests\nnone\n" in out
