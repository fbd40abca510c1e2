# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Switches between two states for ever: ``flapper.py START PERIOD COMMANDS``. Commands of the
first state run at START (Unix seconds) and at every second multiple of PERIOD after it, commands of
the second state in between. COMMANDS is a Python literal: for each state a list of commands.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time


def main() -> None:
    start, period = float(sys.argv[1]), float(sys.argv[2])
    states = ast.literal_eval(sys.argv[3])
    turn = 0
    while True:
        time.sleep(max(0.0, start + turn * period - time.time()))
        for command in states[turn % 2]:
            subprocess.run(command, check=False)
        turn += 1


if __name__ == "__main__":
    main()
