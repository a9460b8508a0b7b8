"""The documentation: README.md, and the pages of docs/."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
WRITTEN_PAGES = sorted({*PAGES.rglob("*.md")} - {*(PAGES / "reference").rglob("*.md")})
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN_PAGES]

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"[\w-]*\$ ")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


def read_page(name: str) -> str:
    """A page of docs/, by its name without suffix."""
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def read_readme() -> str:
    """README.md."""
    return (ROOT / "README.md").read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """A text without its blocks of code."""
    return _FENCED.sub("", text)


def section(text: str, heading: str) -> str:
    """What stands below a heading of the second level, up to the next one."""
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(body).strip()


def table(text: str, first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with a cell."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.split("|")[1:-1]])
    return rows


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        place: page and line of the fence, such as docs/stores.md:51.
        language: empty for a block that names none.
        code: without the indentation of a list item that it belongs to.
    """

    place: str
    language: str
    code: str


def all_blocks() -> list[Block]:
    """The fenced blocks of every document."""
    return [
        Block(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found[2], _code(found))
        for path in DOCUMENTS
        for text in [path.read_text(encoding="utf-8")]
        for found in _FENCED.finditer(text)
    ]


def code_blocks(text: str, language: str) -> list[str]:
    """The blocks of code in a language; without one for those that name none."""
    return [_code(found) for found in _FENCED.finditer(text) if found[2] == language]


def _code(fenced: re.Match[str]) -> str:
    """The code between two fences, without their indentation."""
    return re.sub(rf"^{fenced[1]}", "", fenced[3], flags=re.MULTILINE)


def commands_in(code: str) -> list[list[str]]:
    """The simple commands of a shell block: in a session those behind a prompt, else every line.

    Lines that end in a backslash are joined; comments, variables set before a command and redirections are left out.
    """
    lines = code.replace("\\\n", " ").splitlines()
    prompted = [line[found.end() :] for line in lines if (found := _PROMPT.match(line))]
    return [command for line in prompted or lines for command in _simple_commands(line)]


def _simple_commands(line: str) -> list[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;>"):
            parts.append([">"] if word.startswith(">") else [])
        elif parts[-1] or not _ASSIGNMENT.match(word):
            parts[-1].append(word)
    return [part for part in parts if part and part[0] != ">"]
