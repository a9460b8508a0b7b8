"""`plansmith lower`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.compile.outcomes import accuracy_lines
from plansmith.cli.compile.specs import source_options, specs_from_arguments
from plansmith.cli.options import complete_file, complete_folder

if TYPE_CHECKING:
    from plansmith.records.release import LoweredGraph

_EPILOG = """\
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


@click.command("lower", short_help="Write a lowered ONNX graph, judged on a CPU.", epilog=_EPILOG)
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
    """Export a model, lower its precision, and write the ONNX graph with what is known of it; nothing is published.

    The graph is judged by ONNX Runtime on this CPU, also where TensorRT will run it: what is wrong here needs no GPU to
    show. Precision is a property of the graph: TensorRT builds what is written there and nothing else.
    """
    from plansmith.cli.compile.progress import TerminalProgress
    from plansmith.errors import UsageError
    from plansmith.steps.lower_only import lower_model

    file, base = specs_from_arguments(source, options, models)
    if len(file.models) != 1:
        raise UsageError(f"{source} holds {len(file.models)} models", remedy="pick one with --model, and one --target")
    spec = file.models[0].spec
    with TerminalProgress(quiet=quiet) as listener:
        made = lower_model(spec, output, relative_to=base, listener=listener)
    click.echo(made.model_dump_json()) if as_json else _show(made)


def _show(made: LoweredGraph) -> None:
    from plansmith.cli.text import echo_lines, program, short
    from plansmith.records.release import LOWERED_FILE
    from plansmith.report.text.plan import check_lines

    recipe, folder = made.lowered.recipe, Path(made.folder)
    engine = f" for {recipe.engine}" if recipe is not None else ""
    click.echo(f"{made.name}: {made.lowered.precision} graph{engine}, gate {made.validation.verdict}")
    echo_lines(f"  {line}" for line in accuracy_lines(made.lowered, made.validation))
    if made.build_check is not None:
        echo_lines(f"  {line}" for line in check_lines(made.build_check))
    graph = folder / made.lowered.components["model"].file
    click.echo(f"  graph       {short(graph.absolute())}")
    if made.build_check is not None and made.build_check.layers_file:
        click.echo(f"  layers      {short((folder / made.build_check.layers_file).absolute())}")
    click.echo(f"  record      {short((folder / LOWERED_FILE).absolute())}")
    click.echo(f"Next: {program()} inspect {short(folder.absolute())}")
