"""The pages on errors: what the messages of each kind say, and their remedies."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from typing import Any

from plansmith import errors
from plansmith.errors import PlansmithError

from ..source import source_files
from .markdown import page, prose, table
from .texts import assigned, text_of

_FEWEST_LETTERS = 5


def error_pages() -> dict[str, str]:
    """The pages by their path in docs/, one for each exit code."""
    meanings = dict(re.findall(r"^[├└]── (\w+) +\d+  (\S.*)$", errors.__doc__ or "", re.MULTILINE))
    messages = _messages()
    return {
        f"reference/errors/{kind.exit_code}.md": page(
            f"Exit code {kind.exit_code}: {meanings[kind.__name__]}",
            *map(prose, (inspect.getdoc(kind) or "").split("\n\n")),
            f"In Python it is `plansmith.errors.{kind.__name__}`. The messages, and what each says to do next; what"
            " depends on your input is an ellipsis:",
            table(("message", "next"), [(prose(text), prose(remedy)) for text, remedy in sorted(messages[kind])]),
        )
        for kind in PlansmithError.__subclasses__()
        if messages[kind]
    }


def _messages() -> dict[type[PlansmithError], set[tuple[str, str]]]:
    """Messages and remedies by kind, of all places that raise one and say it there."""
    kinds = {kind.__name__: kind for kind in PlansmithError.__subclasses__()}
    found: dict[type[PlansmithError], set[tuple[str, str]]] = defaultdict(set)
    for _, path in source_files():
        source = path.read_text(encoding="utf-8")
        module = ast.parse(source if any(f"{name}(" in source for name in kinds) else "")
        constants: dict[str, Any] = {}
        for statement in module.body:
            constants |= assigned(statement, before=10**9) if isinstance(statement, ast.Assign) else {}
        for function in module.body:
            for call in ast.walk(function):
                if not isinstance(call, ast.Call) or getattr(call.func, "id", "") not in kinds or not call.args:
                    continue
                values = constants | assigned(function, before=call.lineno)
                remedy = next((keyword.value for keyword in call.keywords if keyword.arg == "remedy"), None)
                message = " ".join(text_of(call.args[0], values).split())
                if len(re.findall(r"[a-z]", message)) >= _FEWEST_LETTERS:
                    found[kinds[call.func.id]].add((message, text_of(remedy, values) or "…"))  # type: ignore[attr-defined]
    return found
