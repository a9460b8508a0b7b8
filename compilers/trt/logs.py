"""The lines that TensorRT's builders write: how bad each is, what it says, and which node it is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# trtexec writes "[05/01/2026-23:03:56] [E] [TRT] words", the Python logger "[05/01/2026-23:03:56] [TRT] [E] words",
# Polygraphy "[E] words"; `[F]` is an internal error. Words that run over a line go on without any of it.
_PREFIX = re.compile(
    r"^\s*(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]\s*)?(?:\[TRT\]\s*)?\[(?P<severity>[VIWEF])\](?: ?\[TRT\])?[ \t]?"
)
_DATE = re.compile(r"^\s*\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]\s*")

# Who says which node it is: the parser's own summary, the importer, and the dump of the node that follows.
_NAMED = re.compile(r"In node -?\d+ with name: (?P<name>.*?) and operator: (?P<operator>\S*) \(\w+\):")
_IMPORTED = re.compile(r"While parsing node number \d+ \[(?P<operator>\S+)")
_DUMPED_NAME = re.compile(
    r'^\s*(?:(?:ModelImporter\.cpp:\d+: )?name: "(?P<name>[^"]+)"|Node name: (?P<plain>\S.*?)\s*$)'
)
_UNTYPED = re.compile(r"getPluginCreator could not find plugin: (?P<operator>\S+)")
_CHECKED = re.compile(r"No checker registered for op: (?P<operator>\w+)")
_INVALID = re.compile(r"Invalid Node - (?P<name>\S+)")


@dataclass(frozen=True)
class LogLine:
    """One line without its prefix; `severity` is V, I, W, E or F, and that of the line before where it goes on."""

    severity: str
    text: str
    starts: bool

    @property
    def is_error(self) -> bool:
        """The library or the program calls it an error."""
        return self.severity in {"E", "F"}


@dataclass(frozen=True)
class Node:
    """A node of the graph as far as a log names it; empty where it does not."""

    name: str = ""
    operator: str = ""

    def __str__(self) -> str:
        if self.name and self.operator:
            return f"{self.name} ({self.operator})"
        return self.name or (f"an unnamed {self.operator}" if self.operator else "a node")


def read_lines(text: str) -> Iterator[LogLine]:
    """The lines of a log that hold words, without dates and tags."""
    severity = ""
    for line in text.splitlines():
        prefix = _PREFIX.match(line)
        if prefix is not None:
            severity = prefix["severity"]
        elif line.startswith("&&&&"):
            severity = ""
        words = line[prefix.end() :] if prefix is not None else _DATE.sub("", line)
        if words.strip():
            yield LogLine(severity, words.rstrip(), starts=prefix is not None or not severity)


def errors_of(lines: Sequence[LogLine]) -> list[str]:
    """What a log calls an error, a line each, without the dumps of nodes that follow them.

    A log whose lines have no severity is one of errors only.
    """
    if not any(line.severity for line in lines):
        return [line.text.strip() for line in lines]
    return [line.text.strip() for line in lines if line.is_error and line.starts]


def warnings_of(lines: Sequence[LogLine]) -> list[str]:
    """What a log warns of, each once, in its order."""
    return list(dict.fromkeys(line.text.strip() for line in lines if line.severity == "W" and line.starts))


def failed_node(lines: Sequence[LogLine]) -> Node:
    """The first node that the parser stumbled over."""
    for line in lines:
        named = _NAMED.search(line.text)
        if named is not None and (named["name"] or named["operator"]):
            return Node(named["name"], named["operator"])
    for place, line in enumerate(lines):
        imported = _IMPORTED.search(line.text)
        if imported is not None:
            dumped = (_DUMPED_NAME.search(later.text) for later in lines[place + 1 : _end_of_dump(lines, place)])
            return Node(next((found["name"] or found["plain"] for found in dumped if found), ""), imported["operator"])
    for pattern in (_INVALID, _UNTYPED, _CHECKED):
        for line in lines:
            found = pattern.search(line.text)
            if found is not None:
                fields = found.groupdict()
                return Node(fields.get("name", ""), fields.get("operator", ""))
    return Node()


def _end_of_dump(lines: Sequence[LogLine], begin: int) -> int:
    """Where the dump of a node ends: attributes have names too, so only what stands before them counts."""
    for place in range(begin + 1, len(lines)):
        text = lines[place].text
        if "--- End node ---" in text or text.lstrip().startswith("attribute"):
            return place
    return len(lines)
