# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Compile each imported module once where a task runs from the zip archive that Ansible sends.

zipimport compiles a module twice: to tell its file name, and to run it. That is a third of a
task's time on a node.
"""

from __future__ import annotations

import functools
import zipimport

if hasattr(zipimport, "_compile_source"):
    zipimport._compile_source = functools.lru_cache(maxsize=1)(zipimport._compile_source)
