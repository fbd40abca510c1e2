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
# Makes links such as verdict.md#the-policy work as they do on a forge.
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []
# References to other collections have no target in this site, and the build reads no network.
suppress_warnings = ["ref.ref"]
