"""The step that holds a person's script against its models, as the driver sees it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import Target
from plansmith.errors import UsageError
from plansmith.pipelines.agreement import refusals
from plansmith.pipelines.requests import ScriptRequest
from plansmith.records.pipeline import Script
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.pipeline import join_job, require_no
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.steps.worker import tasks
from plansmith.triton.config.script import MAIN

_FUNCTION = "answer"
_PRESENT = {*sys.stdlib_module_names, "numpy", "plansmith_served"}
"""What a server has for a script, whatever else happens to be installed where it is tried."""


def script_of(spec: ModelSpec, folder: Path) -> Path | None:
    """Where the script of a spec lies; None where it has none.

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
        found = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"pipeline.script: {file}: {error.strerror}", remedy="correct its path") from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"pipeline.script: {file} is no Python: {error}", remedy="mend it") from error
    if _FUNCTION not in _names(found):
        raise UsageError(
            f"pipeline.script: {file} has no function {_FUNCTION}(inputs, models)",
            remedy=f'write one, such as def {_FUNCTION}(inputs, models): return models["{MAIN}"](**inputs)',
        )
    for line, package in _imports(found):
        if package not in _PRESENT:
            raise UsageError(
                f"pipeline.script: {file}, line {line}, imports {package or 'from its own folder'}, and a script has"
                " NumPy and the standard library alone",
                remedy="write what it needs into the script itself, or have a model beside it do the work",
            )
    return file


def _imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """What a module imports come what may: at which line, and which package; not what it tries to."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, one.name.partition(".")[0]) for one in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.lineno, "" if child.level else str(child.module).partition(".")[0]
        elif not isinstance(child, ast.Try):
            yield from _imports(child)


def _names(module: ast.Module) -> set[str]:
    """What a module has at its top, as far as its text tells."""
    named = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    made = {one.name for one in ast.walk(module) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    brought = {one.asname or one.name for one in ast.walk(module) if isinstance(one, ast.alias)}
    return named | made | brought


def run_script_on(
    stages: StageRunner,
    file: Path,
    target: Target,
    models: Mapping[str, tuple[ModelSpec, CompiledModel]],
    *,
    largest: int,
) -> StepResult[Script] | None:
    """Have a script answer the release's raw requests, once by the models' own libraries and once by what is served.

    Args:
        stages: the compile's steps.
        file: the script.
        target: what it is served by.
        models: with their specs, by the names that the script asks for, the release's own first.
        largest: the largest batch that all of them are served with.

    Raises:
        UsageError: it cannot be used, or fails.
        GateError: what is served makes it answer something else.
    """
    made = [one for _, one in models.values()]
    pipelines = [one.pipeline for one in made if one.pipeline is not None]
    parameters = {"script": stages.digester.file(file, foreign=True), "models": list(models), "largest": largest}

    def build(out: Path) -> Script:
        request = ScriptRequest(
            models={name: join_job(spec, target, one) for name, (spec, one) in models.items()},
            folders={name: one.folder for name, one in zip(models, pipelines, strict=True)},
            pipeline=pipelines[0].record,
            largest=largest,
            file=file,
            out=out,
        )
        return stages.run_in_worker(tasks.SCRIPT, request)

    steps = [step for one in made for step in (one.source, one.onnx, one.engine, one.validation, one.pipeline)]
    inputs = [step.digest for step in steps if step is not None]
    return stages.stage("script", Script, inputs, parameters, build, require=_require_same)


def _require_same(script: Script) -> None:
    """Let a script through that answers the same, whichever way its models do."""
    require_no(
        refusals(script),
        f"the script does not answer the same as where its models answer as {script.source}",
        remedy="look at what it decides by: a limit that a rounding error crosses, or chance; nothing was published",
    )
