"""Numbers of a report as a person reads them; no line ends between a number and its unit."""

from __future__ import annotations

import math
from typing import Literal

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_DIGITS = 9
_LEAST_DIGITS = 4

# What the gate writes where two answers cannot be compared.
_INCOMPARABLE = 1e300

EXACT_DB = 150.0
"""FP32 cannot tell signals apart that are nearer than this."""


def relative(value: float) -> str:
    """An error in parts of the output's magnitude: 3.1 %, 0.42 %, 2.4 × 10⁻⁶."""
    if not math.isfinite(value) or value >= _INCOMPARABLE:
        return "none"
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}\N{NO-BREAK SPACE}×"
    if value >= 0.001:
        return f"{_significant(100 * value, 2)}\N{NO-BREAK SPACE}%"
    return scientific(value)


def limit(value: float) -> str:
    """A limit of such an error, as short as it can be: 80 %, 0.3 %, 10⁻⁴."""
    return f"{100 * value:.3g}\N{NO-BREAK SPACE}%" if 0.001 <= value < 10 else relative(value)


def scientific(value: float) -> str:
    """A small number in powers of ten: 2.4 × 10⁻⁶, 10⁻⁴."""
    digits, _, power = f"{value:.1e}".partition("e")
    raised = f"10{str(int(power)).translate(_SUPERSCRIPT)}"
    return raised if digits == "1.0" else f"{digits.removesuffix('.0')}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{raised}"


def cosine(value: float) -> str:
    """A cosine with as many digits as tell it from 1, cut off rather than rounded up."""
    if not math.isfinite(value):
        return "none"
    missing = 1 - value
    if missing <= 0:
        return "1"
    digits = min(max(_LEAST_DIGITS, math.ceil(-math.log10(missing) - 1e-6) + 1), _MOST_DIGITS)
    scale = 10**digits
    text = f"{math.floor(value * scale + 1e-6) / scale:.{digits}f}"
    return text.replace("-", "−")


def limit_of_cosine(value: float) -> str:
    """A limit as it was written: 0.98, 0.99999."""
    return f"{value:.{_MOST_DIGITS}f}".rstrip("0").rstrip(".").replace("-", "−")


def decibels(value: float) -> str:
    """Signal to noise: 23.4 dB; "exact" where nothing differs."""
    if math.isnan(value):
        return "none"
    return "exact" if value >= EXACT_DB else f"{value:.1f}\N{NO-BREAK SPACE}dB".replace("-", "−")


def percent(share: float, digits: int = 1) -> str:
    """A share: 98.4 %."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def measure(value: float) -> str:
    """A task's measure: 0.9121."""
    return "none" if math.isnan(value) else f"{value:.4f}".replace("-", "−")


def signed(value: float) -> str:
    """A change of a task's measure: +0.0040, −0.0121, 0.0000."""
    shown = measure(abs(value))
    sign = "" if float(f"{value:.4f}") == 0 else "−" if value < 0 else "+"
    return f"{sign}{shown}"


def times(value: float) -> str:
    """A ratio: 2.31×, 140×."""
    if not math.isfinite(value):
        return "any number of times"
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}×"


def milliseconds(value: float) -> str:
    """A latency with three digits that count: 0.0421 ms, 1.23 ms, 1,180 ms."""
    return f"{value:,.0f}\N{NO-BREAK SPACE}ms" if value >= 1000 else f"{value:.3g}\N{NO-BREAK SPACE}ms"


def amount(value: float, unit: Literal["ms", "percent", "count"]) -> str:
    """A value with its unit: 1,234, 41 %, 12.3 ms, 14.2 s."""
    if unit == "count":
        return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
    if unit == "percent":
        return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def width(part: float | None, whole: float | None) -> str:
    """The length of a bar, as CSS has it."""
    return f"{100 * min((part or 0.0) / whole, 1):.1f}%" if whole else "0%"


def shape(sizes: tuple[int, ...]) -> str:
    """8 × 128 × 384; "scalar" for none."""
    return "\N{NO-BREAK SPACE}× ".join(map(str, sizes)) or "scalar"


def count(number: int, noun: str, plural: str = "") -> str:
    """1 node, 12 nodes, 3,200 nodes."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _significant(value: float, digits: int) -> str:
    """A positive number, rounded to some digits but never in powers of ten."""
    if value == 0:
        return "0"
    after = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(after, 0)}f}"


def relative_entropy(nats: float) -> str:
    """A Kullback-Leibler divergence: 0.012 nats, 3.1 × 10⁻⁵ nats."""
    if not math.isfinite(nats):
        return "none"
    if nats <= 0:
        return "0\N{NO-BREAK SPACE}nats"
    return f"{_significant(nats, 2) if nats >= 0.001 else scientific(nats)}\N{NO-BREAK SPACE}nats"
