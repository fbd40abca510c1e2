# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Build the documentation site: the pages of ``docs`` and a reference page for each module,
plugin and role, made by antsibull-docs. Reads no network; a warning of Sphinx is an error.

site.py DIRECTORY    writes DIRECTORY/html
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORGE = "https://github.com/autopilot-gpu/autopilot.gpu/blob/main"
#: A Markdown link to a file outside of ``docs``.
_OUTSIDE = re.compile(r"\]\(\.\./([^)\s]+)\)")
#: Sphinx wants every page in a table of contents; on a forge the list of links is enough.
_CONTENTS = """
```{{toctree}}
:hidden:

{pages}
reference/index
```
"""
_PAGE = re.compile(r"\]\(([a-z_-]+)\.md\)")


def lay_out(source: Path) -> None:
    """Copy the pages of ``docs`` to the directory ``source``, with links that work there."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source, ignore=shutil.ignore_patterns("docsite"))
    shutil.copy(Path(__file__).with_name("conf.py"), source)
    for page in source.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_OUTSIDE.sub(rf"]({FORGE}/\1)", text), encoding="utf-8")
    index = source / "README.md"
    text = index.read_text(encoding="utf-8")
    pages = "\n".join(dict.fromkeys(_PAGE.findall(text)))
    index.unlink()
    (source / "index.md").write_text(text + _CONTENTS.format(pages=pages), encoding="utf-8")


def main() -> int:
    target = Path(sys.argv[1]).resolve()
    source = target / "source"
    lay_out(source)
    (source / "reference").mkdir()
    for command in (
        ["antsibull-docs", "collection", "--use-current", "--squash-hierarchy", "--fail-on-error"]
        + ["--dest-dir", str(source / "reference"), "autopilot.gpu"],
        ["sphinx-build", "-q", "-W", "--keep-going", "-b", "html", str(source)]
        + [str(target / "html")],
    ):
        done = subprocess.run(command, check=False)
        if done.returncode:
            return done.returncode
    print(f"site: {target / 'html' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
