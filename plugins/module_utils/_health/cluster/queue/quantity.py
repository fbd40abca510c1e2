# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities (``500m``, ``1100Gi``, ``2e3``) as exact numbers, and back as the API server
prints them. Source: apimachinery's ``pkg/api/resource/quantity.go``.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Optional

from ...lenient import number

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()}
_BINARY_SUFFIX = {power: suffix for suffix, power in _BINARY.items()}
_FORM = re.compile(
    r"([+-]?)([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
    r"(?:([KMGTPE]i)|[eE]([+-]?[0-9]{1,2})|([numkMGTPE]?))"
)
#: The API server caps quantities at this value, and rounds them up to a multiple of 1n.
_LARGEST = (1 << 63) - 1
_SMALLEST = Fraction(1, 10**9)
#: A longer text is no quantity.
_MOST_CHARACTERS = 100
#: Decimal powers of 1000 from n to E.
_POWERS = range(6, -4, -1)


def parse_quantity(value: Any) -> Optional[Fraction]:
    """The amount of a quantity, as text or as a JSON number; None for anything else."""
    if isinstance(value, str):
        return _parse(value) if len(value) <= _MOST_CHARACTERS else None
    plain = number(value)
    return None if plain is None else _limited(Fraction(value))


# Thousands of nodes and pods share a few quantities.
@lru_cache(maxsize=4096)
def _parse(text: str) -> Optional[Fraction]:
    found = _FORM.fullmatch(text.strip())
    if not found:
        return None
    sign, digits, binary, exponent, decimal = found.groups()
    whole, _point, part = digits.partition(".")
    amount = Fraction(int(whole + part or "0"), 10 ** len(part))
    if binary:
        amount *= 1024 ** _BINARY[binary]
    elif exponent:
        amount *= Fraction(10) ** int(exponent)
    else:
        amount *= Fraction(1000) ** _DECIMAL[decimal]
    return _limited(-amount if sign == "-" else amount)


def _limited(amount: Fraction) -> Fraction:
    units = abs(amount) / _SMALLEST
    rounded = -(-units.numerator // units.denominator) * _SMALLEST
    limited = min(rounded, Fraction(_LARGEST))
    return -limited if amount < 0 else limited


def format_quantity(amount: Fraction, like: Any = "") -> str:
    """The quantity as the API server prints it: exactly, in the style (``Gi``, ``G``, ``e9``) of the
    quantity ``like``. The amount is a multiple of 1n, as `parse_quantity` returns.
    """
    found = _FORM.fullmatch(like.strip()) if isinstance(like, str) else None
    if not amount:
        return "0"
    if found and found.group(3) and abs(amount) >= 1024 and amount.denominator == 1:
        mantissa, power = amount.numerator, 0
        while mantissa % 1024 == 0 and power < 6:
            mantissa, power = mantissa // 1024, power + 1
        return f"{mantissa}{_BINARY_SUFFIX.get(power, '')}"
    for power in _POWERS:
        scaled = amount / Fraction(1000) ** power
        if scaled.denominator == 1:
            break
    if found and found.group(4):
        return f"{scaled.numerator}e{3 * power}" if power else str(scaled.numerator)
    return f"{scaled.numerator}{_DECIMAL_SUFFIX[power]}"
