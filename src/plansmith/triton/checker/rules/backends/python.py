"""Python backend rules: the program, its class, and the execution environment that it needs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from plansmith.triton.checker.archive import READ_ARCHIVES, look_into
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import Source, find_class, methods, read_source, takes, top_level
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder

BACKEND = "python"

_REPOSITORY = "github.com/triton-inference-server/python_backend"
_STUB = f"src/pb_stub.cc of {_REPOSITORY}"
_LAUNCHER = f"src/stub_launcher.cc of {_REPOSITORY}"
_README = f"README.md of {_REPOSITORY}"

SYNTAX = Rule("python.syntax", "error", "the program can be parsed", f"{_STUB} (Initialize imports it)")
NEWER = Rule(
    "python.newer-syntax",
    "note",
    "the program can be parsed by the Python that plansmith runs on, which is older than the target's",
    "https://docs.python.org/3/library/ast.html (ast.parse)",
)
UNSURE = Rule(
    "python.unsure-syntax",
    "warning",
    "the program can be parsed by the Python that plansmith runs on, where no target says which one will run it",
    "https://docs.python.org/3/library/ast.html (ast.parse)",
)
CLASS = Rule("python.class", "error", "the program has a class TritonPythonModel", f"{_STUB} (Initialize)")
EXECUTE = Rule(
    "python.execute",
    "error",
    "TritonPythonModel has a method execute; without it the model loads, and every request fails",
    f"{_STUB} (ProcessRequests); {_README}",
)
SIGNATURE = Rule(
    "python.signature",
    "error",
    "initialize, execute and auto_complete_config take one argument; the last is a static method",
    f"{_STUB}; {_README}",
)
ENVIRONMENT = Rule(
    "python.environment",
    "error",
    "the environment that EXECUTION_ENV_PATH names in the model's folder is there, and can be activated",
    f"{_LAUNCHER}; src/pb_env.cc of {_REPOSITORY}",
)
OUTSIDE = Rule(
    "python.environment-outside",
    "warning",
    "EXECUTION_ENV_PATH begins with $$TRITON_MODEL_DIRECTORY, so that the environment travels with the model",
    _README,
)
ENVIRONMENT_VERSION = Rule(
    "python.environment-version",
    "error",
    "the environment has the target's Python, or the model brings a triton_python_backend_stub of its own",
    f"{_README} (Building Custom Python Backend Stub)",
)

RULES: tuple[Rule, ...] = (
    *(SYNTAX, NEWER, UNSURE, CLASS, EXECUTE, SIGNATURE),
    *(ENVIRONMENT, OUTSIDE, ENVIRONMENT_VERSION),
)

_CLASS = "TritonPythonModel"
_VARIABLE = "$$TRITON_MODEL_DIRECTORY"
_PARAMETER = "EXECUTION_ENV_PATH"
_STUB_FILE = "triton_python_backend_stub"
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip", ".tar.bz2")

_COMPLETING = "auto_complete_config"
_WRITTEN = {
    "initialize": "def initialize(self, args)",
    "execute": "def execute(self, requests)",
    _COMPLETING: "@staticmethod def auto_complete_config(auto_complete_model_config)",
}


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of a model of this backend; nothing for others."""
    if model.backend != BACKEND:
        return
    python = surroundings.target.python if surroundings.target is not None else None
    for number in model.loaded:
        path = model.versions[number] / (model.model_file or "model.py")
        if path.is_file():
            yield from _program(read_source(path, python), model, model.place(f"{number}/{path.name}"))
    yield from _environment(model, python)


def _program(source: Source, model: ModelFolder, place: str) -> Iterator[Finding]:
    if source.tree is None:
        yield unparsed(source, model, place, SYNTAX)
        return
    definition = find_class(source.tree, _CLASS)
    if definition == "nowhere":
        message = f"there is no class {_CLASS}"
        yield CLASS.broken(message, model=model.name, place=place, remedy=f"define class {_CLASS} with execute")
    elif isinstance(definition, ast.ClassDef):
        yield from _methods(definition, source.tree, model, place)


def unparsed(source: Source, model: ModelFolder, place: str, rule: Rule) -> Finding:
    """Return the finding for a program that cannot be parsed.

    Args:
        source: the program.
        model: that it is of.
        place: where it lies.
        rule: that it breaks where the Python that will run it cannot parse it either.
    """
    message, remedy = f"it cannot be parsed: {source.problem}", "correct the program"
    if source.unsure:
        rule, running = UNSURE, f"{sys.version_info.major}.{sys.version_info.minor}"
        message = f"it cannot be parsed by Python {running}, and may need a newer one: {source.problem}"
        remedy = "name the --target that will serve it, or correct the program"
    elif source.newer:
        rule = NEWER
    return rule.broken(message, model=model.name, place=place, line=source.line, remedy=remedy)


def _methods(definition: ast.ClassDef, tree: ast.Module, model: ModelFolder, place: str) -> Iterator[Finding]:
    own = methods(definition)
    elsewhere = {*_assigned(tree)}
    if "execute" not in own and "execute" not in elsewhere and not definition.bases and not definition.decorator_list:
        yield EXECUTE.broken(
            f"{_CLASS} has no execute",
            model=model.name,
            place=place,
            line=definition.lineno,
            remedy="write def execute(self, requests), which returns a response for each request",
        )
    for name, written in _WRITTEN.items():
        function = own.get(name)
        if function is not None and name not in elsewhere and not takes(function, 1, on_class=name == _COMPLETING):
            yield SIGNATURE.broken(
                f"{name} cannot be called with one argument, as Triton does",
                model=model.name,
                place=place,
                line=function.lineno,
                remedy=f"write {written}",
            )


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Yield the attributes that the module sets on the class after its definition."""
    for statement in top_level(tree.body):
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == _CLASS:
                    yield target.attr


def _environment(model: ModelFolder, python: str | None) -> Iterator[Finding]:
    """Check the execution environment that the configuration names."""
    if model.config is None or _PARAMETER not in model.config.parameters:
        return
    written = model.config.parameters[_PARAMETER].string_value
    if _VARIABLE not in written:
        message = (
            f"{_PARAMETER} is {written or 'empty'}, which has to be at the same place wherever the model is served"
        )
        yield _broken(OUTSIDE, model, message, f"put it into the model's folder, and write {_VARIABLE}/…")
        return
    path = Path(written.replace(_VARIABLE, str(model.path)))
    name = written.replace(f"{_VARIABLE}/", "")
    if not path.exists():
        yield _broken(ENVIRONMENT, model, f"{name} is not there", "pack it with conda-pack, and put it there")
    elif path.is_dir() and not (path / "bin" / "activate").is_file():
        message = f"{name} has no bin/activate, which Triton runs first"
        yield _broken(ENVIRONMENT, model, message, "make it with conda-pack, which writes one")
    elif path.is_file() and not path.name.endswith(_ARCHIVES):
        message = f"{name} is neither a folder nor an archive"
        yield _broken(ENVIRONMENT, model, message, "name a folder, or an archive (.tar.gz)")
    else:
        yield from _contents(model, path, name, python)


def _contents(model: ModelFolder, path: Path, name: str, python: str | None) -> Iterator[Finding]:
    """Check the content of an environment: a folder that can be activated, or an archive."""
    if path.is_dir():
        has = sorted(folder.name.removeprefix("python") for folder in path.glob("lib/python3.*") if folder.is_dir())
    elif path.name.endswith(READ_ARCHIVES):
        packed = look_into(path)
        if packed.problem:
            yield _broken(ENVIRONMENT, model, f"{name} {packed.problem}", "make it with conda-pack, or with plansmith")
            return
        has = sorted(packed.pythons)
    else:
        return
    if python is not None and not (model.path / _STUB_FILE).is_file():
        yield from _version(model, has, name, python)


def _version(model: ModelFolder, has: list[str], name: str, python: str) -> Iterator[Finding]:
    expected = ".".join(python.split(".")[:2])
    if has and expected not in has:
        message = f"{name} is of Python {', '.join(has)}, and the target's Python backend is of {expected}"
        remedy = f"make it with Python {expected}, or put a {_STUB_FILE} for {has[0]} into the model's folder"
        yield _broken(ENVIRONMENT_VERSION, model, message, remedy)


def _broken(rule: Rule, model: ModelFolder, message: str, remedy: str) -> Finding:
    line = model.line_of(_PARAMETER)
    return rule.broken(message, model=model.name, place=model.place(), line=line, remedy=remedy)
