"""DALI backend rules: the pipeline's file, and the inputs declared by a pipeline written in Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import read_source
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, entry_line
from plansmith.triton.checker.rules.backends import python

BACKEND = "dali"

_REPOSITORY = "github.com/triton-inference-server/dali_backend"
_MODEL = f"src/dali_model.h of {_REPOSITORY}"
_README = f"README.md of {_REPOSITORY}"

FILE = Rule(
    "dali.model-file",
    "error",
    "a version has a serialised pipeline (model.dali, or default_model_filename), or one in Python: dali.py",
    f"{_MODEL} (LoadModel)",
)
SERIALISED = Rule(
    "dali.autoserialize",
    "error",
    "a pipeline in Python can be parsed, and has one function that is decorated with autoserialize",
    f"{_README}; nvidia.dali.plugin.triton.autoserialize of https://docs.nvidia.com/deeplearning/dali",
)
INPUT = Rule(
    "dali.input-name",
    "error",
    "configured inputs have the names of the pipeline's external sources",
    f"src/config_tools/config_tools.cc of {_REPOSITORY} (ValidateAgainstTooManyInputs, ValidateInputs)",
)
DECODER = Rule(
    "dali.decoder-device",
    "error",
    "image decoders are of device cpu or mixed, as what they decode lies in host memory",
    f"{_README} (Known limitations); fn.decoders.image of https://docs.nvidia.com/deeplearning/dali",
)
INSTANCES = Rule(
    "dali.instances",
    "warning",
    "a pipeline has one instance: more of them take unduly much memory",
    f"{_README} (Known limitations)",
)

RULES: tuple[Rule, ...] = (FILE, SERIALISED, INPUT, DECODER, INSTANCES)

_DEFAULT, _FALLBACK = "model.dali", "dali.py"
_MARK = "autoserialize"
_DECODERS = ("decoders.image", "image_decoder", "experimental.decoders.image")


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of a model of this backend; nothing for others."""
    if model.backend != BACKEND:
        return
    config = model.config
    named = (config.default_model_filename if config is not None else "") or _DEFAULT
    for number in model.loaded:
        folder = model.versions[number]
        path = next((folder / name for name in (named, _FALLBACK) if (folder / name).is_file()), None)
        if path is None:
            yield FILE.broken(
                f"version {number} has neither {named} nor {_FALLBACK}",
                model=model.name,
                place=model.place(str(number)),
                remedy=f"serialise the pipeline to {named}, or write it into {_FALLBACK} with @autoserialize",
            )
        elif path.suffix == ".py":
            yield from _program(path, number, model, surroundings)
    if config is not None and sum(group.count for group in config.instance_group) > 1:
        yield INSTANCES.broken(
            "there are several instances, which take unduly much memory",
            model=model.name,
            place=model.place(),
            line=model.line_of("count"),
            remedy="leave the instance group out",
        )


def _program(path: Path, number: int, model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    place = model.place(f"{number}/{path.name}")
    source = read_source(path, surroundings.target.python if surroundings.target is not None else None)
    if source.tree is None:
        if not source.newer:
            yield python.unparsed(source, model, place, SERIALISED)
        return
    marked = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and any(_name(mark).endswith(_MARK) for mark in node.decorator_list)
    ]
    if len(marked) != 1:
        message = f"{'no' if not marked else 'more than one'} function is decorated with {_MARK}"
        remedy = f"write @{_MARK} and @pipeline_def above the function that makes the pipeline"
        yield SERIALISED.broken(message, model=model.name, place=place, remedy=remedy)
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    for call in calls:
        if _name(call.func).endswith(_DECODERS) and _constant(call, "device") == "gpu":
            yield DECODER.broken(
                "an image decoder has device gpu",
                model=model.name,
                place=place,
                line=call.lineno,
                remedy='write device="mixed", which decodes on the GPU what lies in host memory',
            )
    yield from _inputs([call for call in calls if _name(call.func).endswith("external_source")], model, path)


def _inputs(sources: list[ast.Call], model: ModelFolder, path: Path) -> Iterator[Finding]:
    """Check the input names, where the program gives all of them as literals."""
    names = [_constant(call, "name") for call in sources]
    if model.config is None or not model.config.input or not names or None in names:
        return
    configured = [entry.name for entry in model.config.input]
    for name in configured:
        if name not in names:
            yield INPUT.broken(
                f"{path.name} has no external source {name}",
                model=model.name,
                place=model.place(),
                line=entry_line(model, name),
                remedy=f"name one of {', '.join(filter(None, names))}",
            )


def _name(node: ast.expr) -> str:
    """The dotted name of a called function or decorator, without its arguments."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _constant(call: ast.Call, keyword: str) -> str | None:
    """A string literal passed as a keyword argument; None where it is absent or not a literal."""
    for argument in call.keywords:
        if (
            argument.arg == keyword
            and isinstance(argument.value, ast.Constant)
            and isinstance(argument.value.value, str)
        ):
            return argument.value.value
    return None
