"""The page on the Python interface, from its signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import plansmith

from .markdown import fenced, page, prose

_LONGEST_LINE = 100
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")


def python_pages() -> dict[str, str]:
    """The page by its path in docs/."""
    blocks = []
    for name in sorted(set(plansmith.__all__) - {"__version__"}):
        item = getattr(plansmith, name)
        blocks += [f"## plansmith.{name}", *_described(item)]
        if inspect.isclass(item):
            for member, function in inspect.getmembers(item, inspect.isfunction):
                if not member.startswith("_") and function.__doc__:
                    blocks += [f"### {name}.{member}", *_described(function)]
    return {
        "reference/python-api.md": page(
            "Python interface",
            "All that is public in Python; what the functions raise is in `plansmith.errors`. Everything else may"
            " change from one version to the next.",
            *blocks,
        )
    }


def _in_lines(signature: str) -> str:
    """A signature with a parameter in each line; commas within brackets separate none."""
    head, rest = signature.split("(", 1)
    parameters, tail = rest.rsplit(")", 1)
    listed = re.sub(r", (?![^\[]*\])", ",\n    ", parameters)
    return f"{head}(\n    {listed},\n){tail}"


def _described(item: object) -> Iterator[str]:
    """A signature, and the docstring with its sections as lists."""
    signature = inspect.signature(item)  # type: ignore[arg-type]
    if inspect.isclass(item):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{getattr(item, '__name__', '')}{signature}")
    yield fenced(text if len(text) < _LONGEST_LINE else _in_lines(text), "python")
    for paragraph in (inspect.getdoc(item) or "").split("\n\n"):
        head, *lines = paragraph.splitlines()
        if _SECTION.match(head):
            entries = re.sub(r"\n +(?=\S)", " ", inspect.cleandoc("\n" + "\n".join(lines))).splitlines()
            listed = "\n".join(re.sub(r"^- ([\w*]+):", r"- `\1`:", f"- {prose(entry)}") for entry in entries)
            yield f"{head}\n\n{listed}"
        else:
            yield prose(paragraph)
