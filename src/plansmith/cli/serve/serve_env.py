"""`plansmith serve-env`: the private environment with a Triton server and ONNX Runtime for the served check."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_target

if TYPE_CHECKING:
    from plansmith.triton.server.environment import InstalledPart


@click.group("serve-env", short_help="Install what releases are checked with.")
def serve_env_group() -> None:
    """Manage the Triton server and the ONNX Runtimes that the served check uses in this environment.

    They lie in the Python environment's share/plansmith, or in the folder that PLANSMITH_SERVE_ENV names.

    \b
    plansmith serve-env add
    plansmith serve-env list
    """


@serve_env_group.command("add", short_help="Install Triton and the ONNX Runtime of a target.")
@click.argument("target", default="local-cpu", shell_complete=complete_target)
@click.option("--dali", "with_dali", is_flag=True, help="Install its DALI as well, for pipelines that preprocess so.")
def add_command(target: str, with_dali: bool) -> None:
    """Install Triton and the ONNX Runtime of TARGET [local-cpu] for this Python environment.

    Some 370 MB from the package index for the first target, 150 MB for each further version of ONNX Runtime, 810 MB
    for each DALI; nothing else is touched.

    \b
    plansmith serve-env add
    plansmith serve-env add triton-26.08
    plansmith serve-env add --dali
    """
    from plansmith.config.targets import load_target, require_dali, require_onnxruntime
    from plansmith.triton.server.environment import install_dali, install_numpy, install_runtime, install_server

    chosen = load_target(target)
    version, dali = require_onnxruntime(chosen).version, require_dali(chosen) if with_dali else None
    install_server(click.echo)
    install_numpy(click.echo)
    install_runtime(version, click.echo)
    if dali is not None:
        install_dali(dali, click.echo)
    click.echo(f"ready to check releases for {target}")


@serve_env_group.command("list", short_help="What is installed, and for which targets.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def list_command(as_json: bool) -> None:
    """List what is installed, its disk usage, and the targets that use it.

    \b
    plansmith serve-env list
    plansmith serve-env list --json
    """
    from plansmith.cli.output import program
    from plansmith.formatting import format_bytes
    from plansmith.triton.server.environment import NUMPY_FOLDER, installed_parts, private_folder

    parts = installed_parts()
    targets = [_targets_of(part) for part in parts]
    if as_json:
        entries = [
            {
                "folder": str(p.folder),
                "onnxruntime": p.onnxruntime,
                "dali": p.dali,
                "bytes": p.bytes,
                "targets": names,
            }
            for p, names in zip(parts, targets, strict=True)
        ]
        click.echo(json.dumps({"folder": str(private_folder()), "installed": entries}))
        return
    click.echo(f"{private_folder()}:" if parts else f"nothing is installed in {private_folder()}")
    for part, names in zip(parts, targets, strict=True):
        purpose = "for PyTorch models" if part.folder.name == NUMPY_FOLDER else "the Triton server, for all"
        if part.onnxruntime or part.dali:
            purpose = f"for {', '.join(names) or 'no known target'}"
        click.echo(f"  {part.folder.name:<20}{format_bytes(part.bytes):>10}  {purpose}")
    if not parts:
        click.echo(f"Next: {program()} serve-env add")


@serve_env_group.command("remove", short_help="Take away the ONNX Runtime of a target.")
@click.argument("target", shell_complete=complete_target)
@click.option("--dali", "of_dali", is_flag=True, help="Take away its DALI instead.")
def remove_command(target: str, of_dali: bool) -> None:
    """Remove the ONNX Runtime of TARGET, or its DALI, which other targets may share; the server stays.

    \b
    plansmith serve-env remove triton-26.08
    plansmith serve-env remove triton-26.08 --dali
    """
    from plansmith.config.targets import load_target, require_dali, require_onnxruntime
    from plansmith.triton.server.environment import (
        dali_folder,
        installed_parts,
        remove_dali,
        remove_runtime,
        runtime_folder,
    )

    chosen, quoted = load_target(target), shlex.quote(target)
    version = require_dali(chosen) if of_dali else require_onnxruntime(chosen).version
    folder = (dali_folder if of_dali else runtime_folder)(version, target=quoted)
    shared = next((_targets_of(part) for part in installed_parts() if part.folder == folder), [])
    (remove_dali if of_dali else remove_runtime)(version)
    others = [name for name in shared if name != target]
    click.echo(f"removed {folder}" + (f", which was for {', '.join(others)} too" if others else ""))


def _targets_of(part: InstalledPart) -> list[str]:
    """Return the targets that a runtime or DALI version is for; empty for what serves all targets."""
    from plansmith.config.target_names import runtime_names
    from plansmith.config.targets import load_target

    targets = [load_target(name) for name in runtime_names()]
    versions = {one.name: (one.onnxruntime.version if one.onnxruntime else None, one.dali) for one in targets}
    return [
        name
        for name, (onnxruntime, dali) in versions.items()
        if (part.onnxruntime and part.onnxruntime == onnxruntime) or (part.dali and part.dali == dali)
    ]
