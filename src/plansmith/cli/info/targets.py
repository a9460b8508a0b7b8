"""`plansmith targets`: the serving runtimes that releases can be compiled for."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_target

if TYPE_CHECKING:
    from plansmith.cli.info.image_check import ComparedVersion
    from plansmith.config.targets import Target

_NARROW_FIRST = ("driver", "Python", "CUDA", "TensorRT", "Triton")


@click.command("targets", short_help="List the serving runtimes that --target takes.")
@click.argument("name", default="", metavar="[NAME]", shell_complete=complete_target)
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print NAME's file, to start one of your own from.")
@click.option("--check-image", is_flag=True, help="Tell whether this runs in NAME's image, by the versions in it.")
def targets_command(name: str, *, as_json: bool, as_yaml: bool, check_image: bool) -> None:
    """List the serving runtimes that --target takes, or everything about one, with its sources.

    A value with ? was inferred and should be verified in the image. NAME-cpu is the same runtime on CPU instances.

    \b
    plansmith targets
    plansmith targets triton-26.08
    plansmith targets triton-26.08 --yaml > ours.yaml
    plansmith targets triton-26.08 --check-image

    With --check-image the exit code is 6 when this is another image: another TensorRT (for GPU instances) or Triton.
    """
    from plansmith.cli.output import columns
    from plansmith.config.target_names import runtime_names, shipped_file
    from plansmith.config.targets import is_target_file, load_target
    from plansmith.errors import UsageError

    if as_yaml:
        if not name or as_json or check_image:
            raise UsageError("--yaml prints one target's file", remedy="plansmith targets local-cpu --yaml")
        target = load_target(name)
        if is_target_file(target.name):
            raise UsageError(f"{target.name} is such a file already", remedy="copy it")
        click.echo(shipped_file(name).read_text(encoding="utf-8"), nl=False)
    elif check_image:
        if not name:
            raise UsageError("--check-image needs a target", remedy="plansmith targets triton-26.08 --check-image")
        _check_image(load_target(name), as_json=as_json)
    elif name:
        target = load_target(name)
        click.echo(json.dumps(_document(target)) if as_json else "\n".join(_facts(target)))
    else:
        targets = [load_target(runtime) for runtime in runtime_names()]
        if as_json:
            click.echo(json.dumps({"targets": [_document(target) for target in targets]}))
        else:
            click.echo("\n".join(_table(targets, columns(sys.stdout))))


def _check_image(target: Target, *, as_json: bool) -> None:
    """Compare installed versions with those of the target; raise an error if a decisive one differs."""
    from plansmith.cli.info.image_check import compare_image, installed_versions, require_image

    compared = compare_image(target, installed_versions())
    require_image(target, compared)
    if as_json:
        click.echo(json.dumps({"target": target.name, "versions": [entry.model_dump() for entry in compared]}))
        return
    click.echo(f"{target.name}: this is its image, or one with the same versions")
    for entry in compared:
        description = f"{entry.found} by {entry.where}" if entry.found else "not found"
        click.echo(f"  {entry.what:<10}{entry.stated or '-':<14}here: {description}{_verdict(entry)}")


def _verdict(entry: ComparedVersion) -> str:
    """Return what an installed version means for the target."""
    if entry.agrees is None:
        return ""
    if entry.what == "DALI" and entry.stated != entry.found:
        return ", newer, and opens its pipelines" if entry.agrees else ", differs, and does not open its pipelines"
    return ", the same" if entry.agrees else ", differs, and decides nothing"


def _document(target: Target) -> dict[str, Any]:
    return target.model_dump(mode="json") | {"stand_in_installed": _is_installed(target)}


def _is_installed(target: Target) -> bool:
    from plansmith.triton.server.environment import has_runtime

    return target.onnxruntime is not None and has_runtime(target.onnxruntime.version)


def _table(targets: list[Target], width: int) -> list[str]:
    """Format a table with a row per target; columns are left out if the terminal is too narrow."""
    rows = [_row(target) for target in targets]
    columns = list(rows[0])
    widths = {c: max(len(c), *(len(row[c]) for row in rows)) for c in columns}
    gap = 2
    for column in ("", *_NARROW_FIRST):
        if sum(widths[c] + gap for c in columns) - gap <= width:
            break
        gap = 1
        columns = [c for c in columns if c != column]
    lines = [dict(zip(columns, columns, strict=True)), *rows]
    legend = ["", "? inferred; verify it in the image    here: the stand-in for it is installed"]
    return [(" " * gap).join(line[c].ljust(widths[c]) for c in columns).rstrip() for line in lines] + legend


def _row(target: Target) -> dict[str, str]:
    return {
        "target": target.name,
        "Triton": _shown(target, "triton"),
        "CUDA": _shown(target, "cuda"),
        "TensorRT": _shown(target, "tensorrt"),
        "ONNX RT": _shown(target, "onnxruntime"),
        "Python": _shown(target, "python"),
        "driver": _shown(target, "driver"),
        "here": "yes" if _is_installed(target) else "-",
    }


def _shown(target: Target, field: str) -> str:
    value = getattr(target, field)
    if value is None:
        return "-"
    version = target.onnxruntime.version if field == "onnxruntime" and target.onnxruntime else value
    return f"{version}?" if field in target.inferred else str(version)


def _facts(target: Target) -> list[str]:
    from plansmith.cli.output import program
    from plansmith.config.target_names import CPU_SUFFIX
    from plansmith.config.targets import is_target_file

    runtime = target.onnxruntime
    facts = {
        "image": target.images.get(target.device, "-"),
        "instances": target.device.upper(),
        "Triton": _shown(target, "triton"),
        "CUDA": _shown(target, "cuda"),
        "driver": _shown(target, "driver"),
        "GPU": f"compute capability {_shown(target, 'min_compute_capability')} or later"
        if target.min_compute_capability
        else "-",
        "Python": _shown(target, "python"),
        "TensorRT": _shown(target, "tensorrt"),
        "ONNX Runtime": f"{_shown(target, 'onnxruntime')}, up to opset {runtime.max_opset} and IR version"
        f" {runtime.max_ir_version}"
        if runtime
        else "- (not known: no ONNX Runtime engines for this target)",
        "DALI": _shown(target, "dali"),
        "stand-in": "installed" if _is_installed(target) else "not installed",
    }
    lines = [f"{target.name}: {target.description}", *(f"  {key:<14}{value}" for key, value in facts.items())]
    lines += ["Sources:", *(f"  {source}" for source in target.sources)] if target.sources else []
    if target.inferred:
        lines.append(f"? inferred, to be verified in the image: {', '.join(target.inferred)}")
    if target.device == "gpu" and "cpu" in target.devices and not is_target_file(target.name):
        lines.append(f"On CPU instances: --target {target.name}{CPU_SUFFIX}")
    if runtime and not _is_installed(target):
        lines.append(f"Next: {program()} serve-env add {shlex.quote(target.name)}")
    return lines
