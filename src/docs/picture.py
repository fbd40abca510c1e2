# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Write docs/images/report.png, a screenshot of the report page of the run that the README shows.

``picture.py [PATH]`` needs Chromium and the virtual environment of ``make setup``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/worlds"))

import run_world  # noqa: E402

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (  # noqa: E402
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import page  # noqa: E402

PICTURE = ROOT / "docs/images/report.png"
WIDTH, HEIGHT = 1200, 1000
SECONDS = 60
#: Names of the program in distributions.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main(path: Path = PICTURE) -> int:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"picture: Chromium is missing; searched for: {', '.join(BROWSERS)}", file=sys.stderr)
        return 1
    command = {
        "cluster": "dgx-east",
        "user": "ada",
        "command": "ansible-playbook -i hosts.yml autopilot.gpu.preflight",
    }
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        html = Path(directory) / "report.html"
        html.write_text(
            page.html_of(RunReport.from_dict({**run_world.readme(), **command})), encoding="utf-8"
        )
        done = subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",  # root in a container cannot use the sandbox; the page is our own
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={directory}/profile",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={path}",
                html.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if done.returncode or not path.exists():
        print(f"picture: {browser} failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
