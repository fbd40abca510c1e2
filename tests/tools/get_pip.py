# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs pip from the wheel beside this file.

ansible-test sets pip up in its virtualenvs with a script that it downloads from a server of its
own, unless the script is in its cache. This one is put there, so that sanity tests need only the
package index that pip is configured for.
"""

from __future__ import annotations

import glob
import os
import runpy
import sys

#: What ansible-test passes to its own script and pip does not know.
FOREIGN = ("--no-setuptools", "--no-wheel")

if __name__ == "__main__":
    sys.path.insert(
        0, glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pip-*.whl"))[0]
    )
    sys.argv = ["pip", "install"] + [
        argument for argument in sys.argv[1:] if argument not in FOREIGN
    ]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
