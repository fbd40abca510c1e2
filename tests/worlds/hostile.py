# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A compromised node: a Python that adds what it likes to each answer of a module."""

from __future__ import annotations

import json
import sys

_PROGRAM = """#!{python}
import json, subprocess, sys
done = subprocess.run([{node!r}, *sys.argv[1:]], stdin=sys.stdin, stdout=subprocess.PIPE)
lines = done.stdout.decode().splitlines(keepends=True)
added = json.load(open({added!r}))
for number, line in enumerate(lines):
    try:
        answer = json.loads(line)
    except ValueError:
        continue
    if isinstance(answer, dict):
        lines[number] = json.dumps(dict(answer, **added)) + chr(10)
        open({answers!r}, "a").write("x")
sys.stdout.write("".join(lines) + {junk!r})
sys.exit(done.returncode)
"""


def hostile_python(base, python, added, junk=""):
    """The path of an interpreter that does what ``python`` does, adds the keys of ``added`` and
    prints ``junk`` at last; ``base / "answers"`` has a byte for each time.
    """
    (base / "added.json").write_text(json.dumps(added), encoding="utf-8")
    path = base / "hostile-python"
    text = _PROGRAM.format(
        python=sys.executable,
        node=str(python),
        added=str(base / "added.json"),
        answers=str(base / "answers"),
        junk=junk,
    )
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)
