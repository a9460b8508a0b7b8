"""Formatting and parsing of sizes, ages and times for users."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from plansmith.errors import UsageError

_MOST_NAMED = 12
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def format_bytes(count: int) -> str:
    """Format a size in binary units: 0 B, 812 B, 4.0 KiB, 1.3 GiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Format a duration: 0.4 s, 12.3 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def seconds_from_age(text: str) -> int:
    """Parse an age into seconds: "0", "90s", "45m", "12h", "30d", "4w".

    Raises:
        UsageError: it is no age.
    """
    match = re.fullmatch(r"(\d{1,6})([smhdw]?)", text.strip())
    if match is None or (not match[2] and int(match[1]) > 0):
        raise UsageError(
            f"{text!r} is no age", remedy="write a number and a unit: 45m, 12h, 30d, 4w; or 0 for everything"
        )
    return int(match[1]) * _SECONDS[match[2]]


def format_age(seconds: float) -> str:
    """Format an age in the largest unit that fits: 40 s, 15 min, 3 h, 2 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def minute(moment: str) -> str:
    """Format an ISO 8601 time to the minute, in UTC: 2026-11-20 13:05."""
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M}"


def seconds_of(moment: str) -> float:
    """Convert an ISO 8601 time to seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()


def utc_text(seconds: float) -> str:
    """Format seconds since 1970 as an ISO 8601 time in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: 1 node, 12 nodes, 3,200 nodes."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def suggest_names(unknown: Iterable[str], known: Iterable[str], *, otherwise: str) -> str:
    """Return the remedy for unknown names: those that they resemble, and the known ones.

    Args:
        unknown: names that do not exist.
        known: names that do.
        otherwise: the remedy where there is no known name.
    """
    names = sorted(known)
    if not names:
        return otherwise
    import difflib

    near = dict.fromkeys(match for name in unknown for match in difflib.get_close_matches(name, names, n=1))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    suggestion = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{suggestion}choose from: {', '.join(names[:_MOST_NAMED])}{more}"


def short_path(path: str | Path) -> str:
    """Shorten an absolute path below the working directory to a relative one; anything else stays as it is."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else str(path)
