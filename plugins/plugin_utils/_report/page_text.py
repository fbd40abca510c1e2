# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Names, figures and evidence as text, for all parts of the report page. Pure."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    mapping,
    mappings_in,
    number,
    whole_number,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node_names import fold
from markupsafe import Markup

#: Characters of a text on the page; longer texts are cut. The run document has all of it.
MOST_TEXT = 2000
_MOST_NAME = 200

#: Invisible characters: controls, and marks that reverse the direction of the text around them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)

_SOURCES = {
    "table": "built-in table",
    "override": "set by the operator",
    "fleet": "the other nodes",
}


# ---- reading ----


def text_of(value: t.Any) -> str:
    return value if isinstance(value, str) else "" if value is None else as_json(value)


def name_of(value: t.Any) -> str:
    """The name of a host as text, cut to a length that can be shown."""
    return text_of(value)[:_MOST_NAME]


def short_names(names: t.Iterable[str]) -> dict[str, str]:
    """Host names without the domain that all of them share, for narrow places. Names that differ
    only in the domain are not shortened.
    """
    whole = list(dict.fromkeys(names))
    dotted = [name.split(".") for name in whole if "." in name]
    if not dotted or any(labels[0].isdecimal() for labels in dotted):
        return {}
    shared = 0
    while all(
        len(labels) > shared + 1 and labels[-1 - shared] == dotted[0][-1 - shared]
        for labels in dotted
    ):
        shared += 1
    short = {
        name: ".".join(name.split(".")[:-shared]) if shared and "." in name else name
        for name in whole
    }
    return short if all(short.values()) and len(set(short.values())) == len(whole) else {}


def as_json(value: t.Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "(cannot be shown)"


# ---- words ----


def seen(value: t.Any) -> t.Any:
    """A text with invisible characters and marks of direction spelt out, such as ``\\u202e``; a
    value of another type is returned as given.

    The template applies it to every value before it escapes it.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) > MOST_TEXT:
        value = f"{value[:MOST_TEXT]} ... ({len(value)} characters in all)"
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", value)


def folded(names: t.Iterable[str], most: int = 30) -> str:
    """The names with consecutive numbers folded, at most ``most`` parts, and the number of parts
    left out.
    """
    parts = fold(names)
    rest = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + rest


def time_of(stamp: str) -> str:
    """A time stamp of a document as ``2026-11-21 03:13:49 UTC``."""
    return (
        f"{stamp[:10]} {stamp[11:19]} UTC"
        if len(stamp) == 20 and stamp.endswith("Z")
        else stamp or "unknown"
    )


def plural(number_of: int, what: str) -> str:
    return f"{number_of:,} {what}{'' if number_of == 1 else 's'}"


def quantity(value: t.Any, unit: t.Any) -> str:
    """A figure with its unit, scaled as usual for the unit (GB/s, Gbit/s, ms)."""
    read = number(value)
    if read is None:
        return "no figure"
    if unit == "bytes/s":
        return f"{read / 1e9:.3g} GB/s"
    if unit == "bits/s":
        return f"{read / 1e9:.3g} Gbit/s" if abs(read) >= 1e9 else f"{read / 1e6:.3g} Mbit/s"
    if unit == "seconds" and abs(read) < 1:
        return f"{read * 1000:.3g} ms"
    if unit == "ratio":
        return f"{read * 100:.3g} %"
    return f"{read:.6g} {unit}".strip() if isinstance(unit, str) else f"{read:.6g}"


def bare(value: float, unit: str, largest: float) -> str:
    """The figure of a cell without its unit, scaled as the largest figure of the map (see
    `unit_of`).
    """
    scaled = value * _scale(unit, largest)
    return (
        f"{scaled:.0f}"
        if scaled >= 99.5 or scaled == 0
        else f"{scaled:.2g}"
        if scaled < 1
        else f"{scaled:.3g}"
    )


def unit_of(unit: str, largest: float) -> str:
    return {
        "bits/s": "Gbit/s" if largest >= 1e9 else "Mbit/s",
        "ratio": "percent",
        "seconds": "ms" if largest >= 1e-3 else "\u00b5s",
    }.get(unit, unit)


def _scale(unit: str, largest: float) -> float:
    return {
        "bits/s": 1e-9 if largest >= 1e9 else 1e-6,
        "ratio": 100.0,
        "seconds": 1e3 if largest >= 1e-3 else 1e6,
    }.get(unit, 1.0)


def duration(seconds: t.Any) -> str:
    read = number(seconds)
    if read is None:
        return "unknown"
    whole = round(read)
    if whole < 120:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return (f"{hours} h " if hours else "") + f"{rest // 60} min {rest % 60} s"


def source_words(source: t.Any, detail: t.Any) -> str:
    """The source of an expectation as text."""
    known = _SOURCES.get(source if isinstance(source, str) else "", text_of(source))
    return ": ".join(part for part in (known, text_of(detail)) if part) or "source not recorded"


def expectations_of(evidence: t.Any) -> list[str]:
    """The expectations in a finding's evidence as sentences with their source, each once."""
    evidence = mapping(evidence)
    found = []
    expected = mapping(evidence.get("expected"))
    if number(expected.get("minimum")) is not None:
        found.append(
            f"at least {quantity(expected['minimum'], expected.get('unit'))} "
            f"({source_words(expected.get('source'), expected.get('detail'))})"
        )
    if whole_number(evidence.get("expected_gpus")) is not None:
        found.append(f"{plural(evidence['expected_gpus'], 'GPU')} (the inventory: expected_gpus)")
    for pair in mappings_in(evidence.get("pairs")):
        if number(pair.get("expected_at_least")) is not None:
            found.append(
                f"at least {quantity(pair['expected_at_least'], 'bits/s')} "
                f"({source_words(pair.get('source'), pair.get('detail'))})"
            )
    for one in mappings_in(evidence.get("outliers")):
        if number(one.get("median")) is not None:
            peers = (
                f"the median of {text_of(one.get('peers'))} peers, MAD "
                f"{quantity(one.get('mad'), one.get('unit'))}"
            )
            found.append(
                f"about {quantity(one['median'], one.get('unit'))} ({source_words('fleet', peers)})"
            )
    return list(dict.fromkeys(found))[:4]


#: Units of figures in evidence, by key, for values without a unit of their own.
_EVIDENCE_UNITS = {
    "bits_per_second": "bits/s",
    "expected_at_least": "bits/s",
    "usual": "bits/s",
    "link_speed": "bits/s",
    "best": "bits/s",
}
_WITH_OWN_UNIT = ("value", "median", "mad", "measured")
_MOST_ROWS, _MOST_COLUMNS, _MOST_KEYS, _MOST_VALUE = 12, 10, 24, 600


class Evidence(t.NamedTuple):
    """One member of a finding's evidence, as text or as rows of a table."""

    key: str
    text: str = ""
    columns: list[str] = []
    rows: list[list[str]] = []
    #: Rows that are not shown.
    more: int = 0


def evidence_of(evidence: t.Any) -> list[Evidence]:
    """The members of a finding's evidence; `expectations_of` shows the expectations."""
    evidence = mapping(evidence)
    shown = []
    for key, value in list(evidence.items())[:_MOST_KEYS]:
        rows = mappings_in(value)
        if key == "expected" and isinstance(value, dict):
            continue
        if rows and len(rows) == len(value):
            columns = list(
                dict.fromkeys(name_of(column) for row in rows[:_MOST_ROWS] for column in row)
            )[:_MOST_COLUMNS]
            cells = [
                [_figure(column, row.get(column), row) for column in columns]
                for row in rows[:_MOST_ROWS]
            ]
            shown.append(
                Evidence(name_of(key), columns=columns, rows=cells, more=len(rows) - len(cells))
            )
        else:
            shown.append(
                Evidence(
                    name_of(key), _figure(name_of(key), value, mapping(evidence.get("expected")))
                )
            )
    if len(evidence) > _MOST_KEYS:
        shown.append(Evidence("more", f"{len(evidence) - _MOST_KEYS} more members are in run.json"))
    return shown


def _figure(key: str, value: t.Any, beside: dict[t.Any, t.Any]) -> str:
    unit = _EVIDENCE_UNITS.get(key) or (beside.get("unit") if key in _WITH_OWN_UNIT else None)
    if unit and number(value) is not None:
        return quantity(value, unit)
    if value is None:
        return "\u2013"
    if isinstance(value, float):
        return f"{value:.6g}"
    return shortened(value)


def shortened(value: t.Any) -> str:
    """A value as text, cut to `_MOST_VALUE` characters."""
    words = text_of(value)
    return (
        words
        if len(words) <= _MOST_VALUE
        else f"{words[:_MOST_VALUE]} ... ({len(words)} characters in all)"
    )
