"""The differences of two releases as text, for a terminal and for a page."""

from __future__ import annotations

import re

from plansmith.stores.diff import Difference

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b")


def shorten_digests(text: str | None) -> str:
    """One side of a difference with its digests cut to twelve letters; "none" where a release has no such fact."""
    return _DIGEST.sub(r"\1…", text) if text is not None else "none"


def describe_change(section: str, line: Difference) -> str:
    """The factor between two sizes or latencies; of sizes that hardly differ, the bytes between them; else nothing.

    Args:
        section: the title of the section that the difference stands in.
        line: the difference.
    """
    if section not in {"speed", "size"} or not line.old_value or line.new_value is None:
        return ""
    factor = f"{line.new_value / line.old_value:.2g}"
    if section == "size" and factor == "1":
        more = line.new_value - line.old_value
        return f"{abs(more):,.0f} bytes {'more' if more > 0 else 'less'}"
    return f"{factor} times"
