"""Script step in the driver: checks a user's script against its models."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target
from plansmith.errors import UsageError
from plansmith.records.pipeline import Script
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.pipeline import join_job
from plansmith.steps.runner import StageRunner, StepResult

_FUNCTION = "answer"
_PRESENT = {*sys.stdlib_module_names, "numpy", "plansmith_served"}
"""What a server has for a script, whatever else happens to be installed where it is tried."""


def script_of(spec: ModelSpec, folder: Path) -> Path | None:
    """Return the path of a spec's script; None if it has none.

    Args:
        spec: names it.
        folder: that paths in the spec start from.

    Raises:
        UsageError: it is not there, is no Python file with the function that answers, or imports what a server lacks.
    """
    if spec.pipeline is None or not spec.pipeline.script:
        return None
    file = folder / spec.pipeline.script
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"pipeline.script: {file}: {error.strerror}", remedy="correct its path") from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"pipeline.script: {file} is no Python: {error}", remedy="mend it") from error
    if _FUNCTION not in _names(tree):
        from plansmith.triton.config.script import MAIN

        raise UsageError(
            f"pipeline.script: {file} has no function {_FUNCTION}(inputs, models)",
            remedy=f'write one, such as def {_FUNCTION}(inputs, models): return models["{MAIN}"](**inputs)',
        )
    for line, package in _imports(tree):
        if package not in _PRESENT:
            raise UsageError(
                f"pipeline.script: {file}, line {line}, imports {package or 'from its own folder'}, and a script has"
                " NumPy and the standard library alone",
                remedy="write what it needs into the script itself, or have a model beside it do the work",
            )
    return file


def _imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield a module's unconditional imports, with line and package; optional ones (in try) are excluded."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name.partition(".")[0]) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.lineno, "" if child.level else str(child.module).partition(".")[0]
        elif not isinstance(child, ast.Try):
            yield from _imports(child)


def _names(module: ast.Module) -> set[str]:
    """Return a module's top-level names, as far as its source shows them."""
    named = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    functions = {item.name for item in ast.walk(module) if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    brought = {item.asname or item.name for item in ast.walk(module) if isinstance(item, ast.alias)}
    return named | functions | brought


def run_script_on(
    stages: StageRunner,
    file: Path,
    target: Target,
    models: Mapping[str, tuple[ModelSpec, CompiledModel]],
    *,
    largest: int,
) -> StepResult[Script] | None:
    """Run a script on the release's raw requests, with the models' own libraries.

    Args:
        stages: the compile's steps.
        file: the script.
        target: what it is served by.
        models: with their specs, by the names that the script asks for, the release's own first.
        largest: the largest batch that all of them are served with.

    Raises:
        UsageError: it cannot be used, or fails.
        GateError: it answers the same request in two ways.
    """
    compiled = [model for _, model in models.values()]
    pipelines = [model.pipeline for model in compiled if model.pipeline is not None]
    parameters = {"script": stages.digester.file(file, foreign=True), "models": list(models), "largest": largest}

    def build(out: Path) -> Script:
        from plansmith.pipelines.requests import ScriptRequest
        from plansmith.steps.worker import tasks

        request = ScriptRequest(
            models={name: join_job(spec, target, model) for name, (spec, model) in models.items()},
            folders={name: model.folder for name, model in zip(models, pipelines, strict=True)},
            pipeline=pipelines[0].record,
            largest=largest,
            file=file,
            out=out,
        )
        return stages.run_in_worker(tasks.SCRIPT, request)

    steps = [
        step
        for model in compiled
        for step in (model.source, model.onnx, model.engine, model.validation, model.pipeline)
    ]
    inputs = [step.digest for step in steps if step is not None]
    return stages.stage("script", Script, inputs, parameters, build)
