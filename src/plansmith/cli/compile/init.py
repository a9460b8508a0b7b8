"""`plansmith init`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plansmith.cli.options import complete_file, complete_folder
from plansmith.errors import UsageError


@click.command("init", short_help="Write a commented spec for a model.")
@click.argument("source", shell_complete=complete_file)
@click.option(
    "--output",
    metavar="FILE",
    shell_complete=complete_file,
    default="-",
    help="Where to write the spec [standard output].",
)
@click.option("--name", help="Name of the model in Triton; made from the source when left out.")
@click.option("--task", help="Which head, by transformers' name of the task [as the model's configuration says].")
@click.option("--artifacts", metavar="DIR", shell_complete=complete_folder, help="Where cache and logs go [artifacts].")
@click.option("--random-weights", is_flag=True, help="Draw the weights instead of loading them.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the model.")
@click.option("--allow-pickle", is_flag=True, help="Read pickled weights, which can run any code.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the spec and what it was made of as one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress; notices and errors stay.")
def init_command(
    source: str, *, output: str, force: bool, as_json: bool, quiet: bool, **options: str | bool | None
) -> None:
    """Write a commented spec for a model, with its actual inputs, shapes and outputs.

    The model is fetched and loaded once; nothing is compiled. Compiling the spec as it is gives the release that
    compiling SOURCE with the same options gives.

    \b
    plansmith init hf:./my-bert --output my-bert.yaml
    plansmith init timm:resnet18 --random-weights
    plansmith init onnx:model.onnx --output model.yaml
    """
    from plansmith.cli.compile.progress import TerminalProgress
    from plansmith.cli.compile.scaffold import study, write_spec
    from plansmith.cli.output import program, require_text, short, write_output
    from plansmith.config.spec import make_spec

    require_text(source, output, *(value for value in options.values() if isinstance(value, str)))
    path = None if output == "-" else Path(output)
    if path is not None:
        _require_place(path, force=force)
    spec = make_spec({"source": source, **{key: value for key, value in options.items() if value}})
    with TerminalProgress(quiet=quiet) as listener:
        studied = study(spec, listener=listener)
    text = write_spec(spec, studied, (path.parent if path is not None else Path()).resolve())
    if path is not None:
        write_output(path, text, replace=force)
    if as_json:
        click.echo(json.dumps({"output": str(path) if path else None, "spec": text, **studied.document()}))
    elif path is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{studied.name}: spec written to {short(path)}")
        click.echo(f"Next: {program()} compile {short(path)}")


def _require_place(path: Path, *, force: bool) -> None:
    """Check, before the model is loaded, that a spec can be written to this path and compiled from there."""
    if path.suffix not in {".yaml", ".yml"}:
        raise UsageError(f"{path} is no name for a spec", remedy="give --output a name that ends in .yaml")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", remedy="choose another --output, or pass --force")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", remedy="make it, or choose another --output")
