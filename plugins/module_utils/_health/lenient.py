# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Parts of readings and documents that may be anything: what is not of its kind is empty."""

from __future__ import annotations

from typing import Any, Dict, List


def mapping(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []


def mappings_in(value: Any) -> List[Dict[str, Any]]:
    """Those of a list that are mappings."""
    return [one for one in list_of(value) if isinstance(one, dict)]
