"""`plansmith demo`: the main job on a small model, from nothing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from plansmith.cli.options import complete_folder
from plansmith.cli.output import this_program
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.system.libraries import require_library

_SOURCE = "hf:sentence-transformers/all-MiniLM-L6-v2"
_NAME = "minilm"
_SHAPES = "input_ids=1x1:8x64:32x256"


@click.command("demo", short_help="Compile a small text model, and ask it on Triton.")
@click.option("--source", default=_SOURCE, show_default=True, metavar="SOURCE", help="A sentence encoder.")
@click.option("--text", default="a cat on a mat", show_default=True, help="What it is asked.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("plansmith-demo"),
    show_default=True,
    shell_complete=complete_folder,
    help="Takes the cache and the repository.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands, and run none of them.")
def demo_command(source: str, text: str, folder: Path, *, dry_run: bool) -> None:
    """Compile a sentence encoder for texts, check it on a running Triton, and turn a text into its embedding.

    The commands are printed as they run, to be repeated with a model of your own. The model has 90 MB; where no Triton
    is installed, it is installed first, with 370 MB.

    \b
    plansmith demo
    plansmith demo --source hf:./all-MiniLM-L6-v2 --text "a dog in the rain"
    plansmith demo --dry-run
    """
    from plansmith.config.source_reference import parse_reference

    if parse_reference(source, relative_to=Path.cwd()).scheme != "hf":
        raise UsageError(
            f"the demo asks a text model, and {source} is not of transformers",
            remedy=f"pass --source hf:<id or directory>, or compile yours: plansmith compile {source}",
        )
    if not dry_run:
        require_library("torch", "compile")  # before a Triton is downloaded
    commands = [
        *([] if _has_triton() else [("serve-env", "add")]),
        ("compile", source, "--name", _NAME, "--pipeline", "--shapes", _SHAPES, "--artifacts", str(folder)),
        ("infer", _NAME, "--text", text, "--serve", "--repository", str(folder / "repository")),
    ]
    import subprocess

    for words in commands:
        click.echo(f"$ {shlex.join(('plansmith', *words))}")
        if not dry_run:
            code = subprocess.run([*this_program(), *words], check=False).returncode
            if code:  # the command has said why
                sys.exit(code)


def _has_triton() -> bool:
    from plansmith.triton.server.installation import find_installation

    try:
        find_installation()
    except EnvironmentFault:
        return False
    return True
