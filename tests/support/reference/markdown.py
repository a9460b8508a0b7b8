"""Markdown of texts that were written for a terminal or for an editor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NOTICE = "<!-- Generated from the code by `make docs-reference`. -->\n"


def prose(text: str) -> str:
    """A text in one line, with nothing in it that Markdown would take for its own; code stays code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def fenced(text: str, language: str = "") -> str:
    """A block of code; characters that no page shows are escaped."""
    shown = re.sub(r"[\x00-\x09\x0b-\x1f]", lambda found: repr(found[0])[1:-1], text.strip("\n"))
    return f"```{language}\n{shown}\n```"


def page(title: str, *blocks: str) -> str:
    """A generated page."""
    return "\n\n".join([f"{NOTICE}\n# {title}", *filter(None, blocks)]) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([*\[\]])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
