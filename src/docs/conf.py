# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation site; ``site.py`` lays out its sources."""

from __future__ import annotations

project = "autopilot.gpu"
author = "Contributors to the autopilot.gpu collection"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "description": "Is every GPU node fit to run?"}
html_show_sphinx = False
# A link such as verdict.md#the-policy works here as it does on a forge.
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []
# Options and modules of other collections are not part of this site, and no inventory of
# another site is fetched while it is built.
suppress_warnings = ["ref.ref"]
