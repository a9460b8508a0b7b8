"""`plansmith compile`, and its parts as commands: `plansmith lower`, `plansmith validate`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.compile.outcomes import Compiled, Failed, Outcome, Planned, accuracy_lines, print_outcomes
from plansmith.cli.compile.specs import source_options, specs_from_arguments
from plansmith.cli.options import complete_file, complete_folder, complete_release, repository_option
from plansmith.cli.output import fault_from_os_error

if TYPE_CHECKING:
    from plansmith.config.loader import SpecFile
    from plansmith.config.spec import ModelSpec, NamedSpec
    from plansmith.records.engine import BuildCheck
    from plansmith.records.release import LoweredGraph
    from plansmith.records.validation import ValidationReport


_NAME = click.option("--name", help="Name of the model in Triton; made from the source when left out.")
_OPTIONS = (
    click.option(
        "--repository",
        metavar="DIR",
        shell_complete=complete_folder,
        help="Triton model repository [<artifacts>/repository].",
    ),
    click.option(
        "--builder",
        type=click.Choice(["auto", "api", "trtexec"]),
        help="Who builds a TensorRT plan; auto: the Python API where it is there [auto].",
    ),
    click.option(
        "--pipeline/--no-pipeline",
        default=None,
        help="Serve raw inputs and outputs around the model, such as text in, embedding out [off].",
    ),
    click.option(
        "--check-served/--no-check-served", default=None, help="Have a running Triton load and answer it first [on]."
    ),
    click.option(
        "--allow-interface-change/--no-allow-interface-change",
        default=None,
        help="Publish even if inputs or outputs changed.",
    ),
    click.option(
        "--tritonserver",
        metavar="PATH",
        callback=lambda _ctx, _param, value: value and str(Path(value).absolute()),  # a release remembers it
        shell_complete=complete_file,
        help="The server for that check; found when left out.",
    ),
    click.option(
        "--load-into",
        metavar="URL",
        multiple=True,
        help="A running Triton that reads the repository and has to load the version, such as grpc://127.0.0.1:8001;"
        " repeatable.",
    ),
    click.option(
        "--load-seconds",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="How long each of those may take to load it [900].",
    ),
    click.option(
        "--publish",
        metavar="PLACE",
        multiple=True,
        shell_complete=complete_folder,
        help="Publish the release to a store besides: a folder or s3://bucket/prefix; repeatable.",
    ),
    click.option("--no-publish", is_flag=True, help="Publish it to none of the stores that the spec names."),
    click.option("--force/--no-force", default=None, help="Do every step again and publish a new version."),
)

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
  plansmith compile torch:ranker.pt2                    # what torch.export.save wrote
  plansmith compile hf:./my-bert --precision int8 --data sentences.txt
  plansmith compile configs/models/resnet18-random.yaml --json
  plansmith compile timm:resnet18 --random-weights --publish s3://models/prod
  plansmith compile configs/models/timm-random.yaml --model resnet18-random
  plansmith compile timm:resnet18 --target triton-26.03 --target sagemaker-26.05 --no-check-served

Exit codes: 2 usage or spec, 3 source, 4 export, 5 gate not passed, 6 engine or target, 7 repository,
8 served check, 9 something missing on this machine, 130 interrupted; of several models that of the first failure.
"""

_LOWER_EPILOG = """\
\b
Examples:
  plansmith lower hf:./my-bert --precision int8 --data sentences.txt
  plansmith lower timm:./my-vit --precision fp16 --data images/ --output my-vit-fp16
  plansmith lower hf:./my-bert --precision int8 --engine tensorrt --data sentences.txt
  plansmith lower timm:./my-vit --precision fp16 --engine tensorrt --target triton-26.05 --check-build
  plansmith lower spec.yaml --json

Exit codes: 2 usage or spec, 3 source or data, 4 export or lowering, 5 not accurate enough, 6 refused by --check-build,
9 something missing on this machine, 130 interrupted.
"""


def compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all compile options for `specs_from_arguments` to a command."""
    return _NAME(source_options(reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)))


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

    SOURCE is hf:<id or directory>[@revision], timm:<name or directory>, onnx:<file>, torch:<file.pt2>,
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
    """Compile options: how models are compiled.

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
    """Compile one model, or plan it in a dry run."""
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
    """Build check: export the graph in a dry run and build it without a GPU, if the spec requests it."""
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
    """Print the Triton name of a model named in another alphabet, before it becomes a version of another model."""
    from plansmith.config.source_reference import parse_reference
    from plansmith.errors import PlansmithError

    if spec.name or spec.source.isascii():
        return
    with contextlib.suppress(PlansmithError):  # the compile itself says what is wrong with a source
        name = parse_reference(spec.source, relative_to=base).default_name
        if name not in spec.source:
            message = f"in Triton {spec.source} is called {name}, as names there are of A-Z a-z 0-9 . _ - alone"
            click.echo(f"plansmith: {message}; --name gives it another", err=True)


def _compile_several(file: SpecFile, manner: _CompileOptions, as_json: bool) -> None:
    """Compile all models of a file in turn; continue after failures, which determine the exit code."""
    from plansmith.steps.runner import shared_imports

    outcomes: list[Outcome] = []
    with shared_imports():
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


@click.command("lower", short_help="Write a lowered ONNX graph, judged on a CPU.", epilog=_LOWER_EPILOG)
@click.argument("source", metavar="SOURCE|SPEC.yaml", shell_complete=complete_file)
@click.option("--model", "models", metavar="NAME", multiple=True, help="This model of a spec with several.")
@click.option("--name", help="Name of the model; made from the source when left out.")
@source_options
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    shell_complete=complete_folder,
    help="Where the graph goes [<name>-<precision>].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--quiet", is_flag=True, help="Print no progress; notices and errors stay.")
def lower_command(
    source: str, *, models: tuple[str, ...], output: Path | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Export a model, lower its precision, and write the ONNX graph with its metadata; publishes nothing.

    The graph is judged by ONNX Runtime on this CPU, also where TensorRT will run it: what is wrong here needs no GPU to
    show. Precision is a property of the graph: TensorRT builds what is written there and nothing else.
    """
    from plansmith.cli.compile.progress import TerminalProgress
    from plansmith.errors import UsageError
    from plansmith.steps.compilation import lower_model

    file, base = specs_from_arguments(source, options, models)
    if len(file.models) != 1:
        raise UsageError(f"{source} holds {len(file.models)} models", remedy="pick one with --model, and one --target")
    spec = file.models[0].spec
    with TerminalProgress(quiet=quiet) as listener:
        graph = lower_model(spec, output, relative_to=base, listener=listener)
    click.echo(graph.model_dump_json()) if as_json else _show(graph)


def _show(lowered_graph: LoweredGraph) -> None:
    from plansmith.cli.output import echo_lines, echo_verdict, program, short
    from plansmith.records.release import LOWERED_FILE
    from plansmith.report.text import check_lines

    recipe, folder = lowered_graph.lowered.recipe, Path(lowered_graph.folder)
    engine = f" for {recipe.engine}" if recipe is not None else ""
    echo_verdict(
        f"{lowered_graph.name}: {lowered_graph.lowered.precision} graph{engine}", lowered_graph.validation.verdict
    )
    echo_lines(f"  {line}" for line in accuracy_lines(lowered_graph.lowered, lowered_graph.validation))
    if lowered_graph.build_check is not None:
        echo_lines(f"  {line}" for line in check_lines(lowered_graph.build_check))
    graph = folder / lowered_graph.lowered.components["model"].file
    click.echo(f"  graph       {short(graph.absolute())}")
    if lowered_graph.build_check is not None and lowered_graph.build_check.layers_file:
        click.echo(f"  layers      {short((folder / lowered_graph.build_check.layers_file).absolute())}")
    click.echo(f"  record      {short((folder / LOWERED_FILE).absolute())}")
    click.echo(f"Next: {program()} inspect {short(folder.absolute())}")


@click.command("validate", short_help="Repeat the accuracy gate on a release.")
@click.argument("release", metavar="RELEASE", shell_complete=complete_release)
@repository_option("Where MODEL[@VERSION] is looked up.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def validate_command(release: str, repository: Path, as_json: bool) -> None:
    """Repeat the accuracy gate on a RELEASE: a folder, or MODEL[@VERSION] in a repository.

    The files are checked by digest first; the reference's answers lie in the release, so PyTorch is not needed.

    \b
    plansmith validate minilm
    plansmith validate minilm@3 --repository /srv/models
    plansmith validate artifacts/repository.plansmith/releases/minilm/3
    """
    from plansmith.cli.output import echo_lines
    from plansmith.errors import GateError
    from plansmith.report.text import format_cosine
    from plansmith.steps.release.revalidate import find_release, revalidate
    from plansmith.triton.repository.release import read_manifest
    from plansmith.validation.verdict import require_passed

    folder = find_release(release, repository)
    report = revalidate(folder)
    if as_json:
        click.echo(json.dumps({"release": str(folder), **report.model_dump(mode="json")}))
    else:
        click.echo(f"{folder}: {report.verdict}")
        click.echo(f"  {report.candidate} against {report.reference}, on {report.data}")
        for row in report.comparisons:
            mark = "!!" if row.failures else "ok"
            click.echo(
                f"  {mark} {row.case:<9} {'x'.join(map(str, row.shape)):<14} {row.output:<20}"
                f" largest error {row.max_relative:.1e}, 99 % below {row.quantile_relative:.1e},"
                f" cosine {format_cosine(row.min_cosine)}"
            )
        echo_lines(f"  {line}" for line in _evaluation_lines(report, read_manifest(folder).validation))
    try:
        require_passed(report)
    except GateError as error:  # the report is the document already
        click.echo(f"plansmith: {error}", err=True)
        sys.exit(error.exit_code)


def _evaluation_lines(report: ValidationReport, compiled: ValidationReport) -> Iterator[str]:
    """Yield the held-out evaluation from compile time (a release holds no such samples), and what is unverified."""
    from plansmith.report.text import describe_held_out, doubts, evaluation_lines

    if compiled.evaluation is not None:
        yield f"when it was compiled, {describe_held_out(compiled.evaluation)}:"
        for line, good in evaluation_lines(compiled.evaluation):
            yield f"{'ok' if good else '!!'} {line}"
    yield from doubts(report.model_copy(update={"evidence": compiled.evidence}))
