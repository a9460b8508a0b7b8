"""All that is generated in docs/: the pages of docs/reference/, and llms.txt."""

from __future__ import annotations

import re
from typing import Any

import yaml

from ..documentation import PAGES, ROOT
from .commands import command_pages
from .errors import error_pages
from .python_api import python_pages
from .rules import rule_pages
from .spec import spec_pages
from .targets import target_pages


def generated_files() -> dict[str, str]:
    """The texts of the files, by their path in docs/."""
    pages = command_pages() | spec_pages() | rule_pages() | error_pages() | target_pages() | python_pages()
    return pages | {"llms.txt": _index(pages)}


def navigation(entry: Any = None) -> list[str]:
    """The pages of a part of the site's navigation, of all of it without one."""
    if entry is None:
        entry = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in navigation(part)]


def _index(pages: dict[str, str]) -> str:
    """The pages for language models, as llmstxt.org describes it."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = []
    for name in navigation():
        text = pages.get(name) or (PAGES / name).read_text(encoding="utf-8")
        title = re.findall(r"^# (.+)$", text, re.MULTILINE)[0]
        lines.append(f"- [{title}]({name})")
    return f"# {site['site_name']}\n\n> {site['site_description']}\n\n## Pages\n\n" + "\n".join(lines) + "\n"
