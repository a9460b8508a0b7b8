"""`plansmith compile`."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.compile.options import compile_options
from plansmith.cli.compile.outcomes import Compiled, Failed, Outcome, Planned, print_outcomes
from plansmith.cli.compile.specs import specs_from_arguments
from plansmith.cli.options import complete_file
from plansmith.cli.text import fault_from_os_error

if TYPE_CHECKING:
    from plansmith.config.loader import SpecFile
    from plansmith.config.multi_target import NamedSpec
    from plansmith.config.spec import ModelSpec
    from plansmith.records.engine import BuildCheck

_EPILOG = """\
\b
Examples:
  plansmith compile hf:sentence-transformers/all-MiniLM-L6-v2 --name minilm
  plansmith compile hf:./my-bert --shapes "input_ids=1x1:8x64:32x256"
  plansmith compile timm:resnet18 --random-weights --dry-run
  plansmith compile timm:resnet18 --engine tensorrt --gpu L4 --dry-run --check-build
  plansmith compile mlflow:models:/ranker@champion
  plansmith compile s3://models/team/ranker
  plansmith compile onnx:model.onnx --name detector
  plansmith compile hf:./my-bert --precision int8 --data sentences.txt
  plansmith compile configs/models/resnet18-random.yaml --json
  plansmith compile timm:resnet18 --random-weights --publish s3://models/prod
  plansmith compile configs/models/timm-random.yaml --model resnet18-random
  plansmith compile timm:resnet18 --target triton-26.03 --target sagemaker-26.05 --no-check-served

Exit codes: 2 usage or spec, 3 source, 4 export, 5 gate not passed, 6 engine or target, 7 repository,
8 served check, 9 something missing on this machine, 130 interrupted; of several models that of the first failure.
"""


@click.command("compile", short_help="Compile a model and publish it as a version.", epilog=_EPILOG)
@click.argument("source", metavar="SOURCE|SPEC.yaml", shell_complete=complete_file)
@click.option("--model", "models", metavar="NAME", multiple=True, help="Compile this model of a spec only; repeatable.")
@compile_options
@click.option("--track", is_flag=True, help="Run it as a flow run of the configured Prefect API.")
@click.option(
    "--dry-run", is_flag=True, help="Say what would be done, and do nothing; with --check-build, make the graph for it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--quiet", is_flag=True, help="Print no progress; notices and errors stay.")
def compile_command(
    source: str,
    *,
    models: tuple[str, ...],
    track: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Compile a model into a validated, versioned Triton model repository.

    SOURCE is hf:<id or directory>[@revision], timm:<name or directory>, onnx:<file>,
    mlflow:models:/<name>@<alias> or s3://<bucket>/<prefix or key.tar.gz>; SPEC.yaml holds one or several
    models. All options but --model, --track, --dry-run, --json and --quiet can stand in a spec, with _ for -; the
    command line wins.
    """
    if track and dry_run:
        raise click.UsageError("a dry run does nothing that could be tracked: leave out --track or --dry-run")
    file, base = specs_from_arguments(source, options, models)
    manner = _CompileOptions(base, track=track, dry_run=dry_run, quiet=quiet)
    if file.several:
        _compile_several(file, manner, as_json)
        return
    outcome = _compile(file.models[0].spec, manner)
    if as_json:
        click.echo(json.dumps(outcome.document()))
    else:
        outcome.show()


@dataclass(frozen=True)
class _CompileOptions:
    """How models are compiled.

    Args:
        base: where source directories start from.
        track: as flow runs of Prefect.
        dry_run: only planned.
        quiet: without progress.
    """

    base: Path
    track: bool
    dry_run: bool
    quiet: bool


def _compile(spec: ModelSpec, manner: _CompileOptions) -> Planned | Compiled:
    """One model, for real or dry."""
    from plansmith.cli.compile.progress import TerminalProgress
    from plansmith.steps.compilation import Compilation

    _say_name(spec, manner.base)
    if manner.dry_run:
        with Compilation(spec, relative_to=manner.base, dry=True) as compilation:
            check = _check_build(spec, manner)
            plan = compilation.plan_here(lambda line: click.echo(f"plansmith: {line}", err=True))
            return Planned(compilation.name, plan, compilation.builds(), compilation.publications(), check)
    with TerminalProgress(quiet=manner.quiet) as listener:
        if manner.track:
            from plansmith.flows.local import tracked

            return Compiled(*tracked.track(spec, manner.base, listener), listener.steps)
        with Compilation(spec, relative_to=manner.base, listener=listener) as compilation:
            return Compiled(*compilation.run(), listener.steps)


def _check_build(spec: ModelSpec, manner: _CompileOptions) -> BuildCheck | None:
    """Make the graph of a dry run, and have it built without a GPU, where that is asked for."""
    from plansmith.cli.compile.progress import TerminalProgress
    from plansmith.records.model import EngineKind
    from plansmith.steps.context import start_stages
    from plansmith.steps.model_steps import check_build, model_context

    if not spec.tensorrt.check_build or spec.engine is not EngineKind.TENSORRT:
        return None
    with TerminalProgress(quiet=manner.quiet) as listener:
        context = model_context(spec, manner.base, lambda: start_stages(spec, manner.base, listener=listener))
        with contextlib.closing(context.stages):
            return check_build(context)


def _say_name(spec: ModelSpec, base: Path) -> None:
    """Say what a model in another alphabet is called in Triton, before it becomes a version of another model."""
    from plansmith.config.source_reference import parse_reference
    from plansmith.errors import PlansmithError

    if spec.name or spec.source.isascii():
        return
    with contextlib.suppress(PlansmithError):  # the compile itself says what is wrong with a source
        name = parse_reference(spec.source, relative_to=base).default_name
        if name not in spec.source:
            said = f"in Triton {spec.source} is called {name}, as names there are of A-Z a-z 0-9 . _ - alone"
            click.echo(f"plansmith: {said}; --name gives it another", err=True)


def _compile_several(file: SpecFile, manner: _CompileOptions, as_json: bool) -> None:
    """All models of a file in turn; one that fails does not stop the others, and gives the exit code."""
    outcomes: list[Outcome] = []
    for number, model in enumerate(file.models, 1):
        if not (manner.quiet or manner.dry_run):
            click.echo(f"{model.label} ({number} of {len(file.models)})", err=True)
        outcome = _attempt(model, manner)
        outcomes.append(outcome)
        if not as_json or isinstance(outcome, Failed):
            outcome.show()
    if as_json:
        documents = [
            outcome.document() | ({"target": model.target} if model.target else {})
            for model, outcome in zip(file.models, outcomes, strict=True)
        ]
        click.echo(json.dumps({"models": documents}))
    else:
        print_outcomes(outcomes, [model.target for model in file.models])
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if failed:
        sys.exit(failed[0].error.exit_code)


def _attempt(model: NamedSpec, manner: _CompileOptions) -> Outcome:
    from plansmith.errors import PlansmithError

    try:
        return _compile(model.spec, manner)
    except PlansmithError as error:
        return Failed(model.name, error.located(model=model.label))
    except OSError as error:
        return Failed(model.name, fault_from_os_error(error).located(model=model.label))
