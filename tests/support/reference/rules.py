"""The pages on the rules of `plansmith check`: what must hold, who says so, what a finding says, and an example."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plansmith.config.targets import load_target
from plansmith.triton.checker import rules
from plansmith.triton.checker.checker import all_rules
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import ModelFolder

from ..checker.cases import BROKEN_CASES, PROGRAM
from ..checker.written import Written
from .markdown import fenced, page, prose, table
from .texts import assigned, text_of

Texts = dict[str, list[tuple[str, str]]]
"""Messages and remedies of each rule; what depends on the model is an ellipsis."""

_LONGEST_LINE = 240
_SERVER = ("--cache-config=local,size=1048576",)
_METHODS: dict[str, Callable[..., Finding]] = {"faulted": ModelFolder.faulted, "broken": Rule.broken}


def rule_pages() -> dict[str, str]:
    """The pages by their path in docs/, one for each area."""
    texts, examples = _texts(), _examples()
    areas: dict[str, list[Rule]] = defaultdict(list)
    for rule in all_rules():
        areas[rule.id.partition(".")[0]].append(rule)
    return {
        f"reference/rules/{area}.md": page(f"Rules: {area}", *_entries(held, texts, examples))
        for area, held in areas.items()
    }


def _entries(held: list[Rule], texts: Texts, examples: dict[str, str]) -> Iterator[str]:
    for rule in held:
        yield f"## {rule.id}"
        yield f"**{rule.severity.capitalize()}.** {prose(rule.summary[:1].upper() + rule.summary[1:])}."
        if rule.id in texts:
            rows = [(prose(message), prose(remedy)) for message, remedy in dict.fromkeys(texts[rule.id])]
            yield table(("finding", "remedy"), rows)
        if rule.id in examples:
            yield examples[rule.id]
        yield f"Source: {prose(rule.source)}."


def _texts() -> Texts:
    """What the findings of each rule say, as it stands in the code."""
    found: Texts = defaultdict(list)
    for info in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}."):
        module = importlib.import_module(info.name)
        for function in ast.parse(inspect.getsource(module)).body:
            for call in ast.walk(function):
                if not isinstance(call, ast.Call):
                    continue
                arguments = _arguments(call, vars(module))
                rule = vars(module).get(getattr(arguments.get("rule"), "id", ""))
                if not isinstance(rule, Rule):
                    continue
                values = {**vars(module), **assigned(function, before=call.lineno)}
                message, remedy = (text_of(arguments.get(name), values) for name in ("message", "remedy"))
                if message and remedy:
                    found[rule.id].append((message, remedy))
    return found


def _arguments(call: ast.Call, values: dict[str, Any]) -> dict[str, ast.expr]:
    """The arguments of a call that makes a finding, by the names of its parameters; of another call none."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    function = _METHODS[name] if name in _METHODS else values.get(name)
    if not inspect.isfunction(function):
        return {}
    positional = [*call.args]
    if isinstance(call.func, ast.Attribute):
        positional.insert(0, call.func.value)
    try:
        bound = inspect.signature(function).bind_partial(*positional, **{str(k.arg): k.value for k in call.keywords})
    except TypeError:
        return {}
    arguments: dict[str, Any] = dict(bound.arguments)
    if name == "broken":
        arguments["rule"] = arguments.pop("self")
    return arguments


def _examples() -> dict[str, str]:
    """Configurations that break one rule alone, and what a check says of them."""
    examples: dict[str, str] = {}
    target = load_target("local-cpu")
    for name, case in BROKEN_CASES.items():
        if len(case.rules) != 1 or case.rules[0] in examples or not isinstance(case.config, str):
            continue
        with TemporaryDirectory() as folder:
            written = Written(Path(folder))
            written.add(name, case.config, dict(case.files))
            (finding, *_) = written.findings(target=target, arguments=_SERVER)
        said = f"{finding.place}{f':{finding.line}' * bool(finding.line)}: {finding.message}\n→ {finding.remedy}"
        shown = [case.config] if case.files == PROGRAM else []
        if max(map(len, "\n".join([*shown, said]).splitlines())) < _LONGEST_LINE:
            examples[finding.rule] = "\n\n".join(map(fenced, [*shown, said]))
    return examples
