"""The documentation: README.md, and the pages of docs/."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"


def read_page(name: str) -> str:
    """A page of docs/, by its name without suffix."""
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def read_readme() -> str:
    """README.md."""
    return (ROOT / "README.md").read_text(encoding="utf-8")


def read_everything() -> str:
    """README.md and all pages, one after the other."""
    return "\n".join([read_readme(), *(path.read_text(encoding="utf-8") for path in sorted(PAGES.rglob("*.md")))])


def without_code(text: str) -> str:
    """A text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """What stands below a heading of the second level, up to the next one."""
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(body).strip()


def code_blocks(text: str, language: str) -> list[str]:
    """The blocks of code in a language; without one for those that name none."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for named, code in blocks if named == language]
