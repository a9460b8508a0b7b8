"""`plansmith compile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from plansmith.config import ModelSpec
    from plansmith.types import Manifest, PublishedVersion, StepRecord

_EPILOG = """\
\b
Examples:
  plansmith compile hf:sentence-transformers/all-MiniLM-L6-v2 --name minilm
  plansmith compile hf:./my-bert --shapes "input_ids=1x1:8x64:32x256"
  plansmith compile timm:resnet18 --random-weights --dry-run
  plansmith compile configs/models/resnet18-random.yaml --json

Exit codes: 2 usage or spec, 3 source, 4 export, 5 gate not passed, 6 engine or target, 7 repository,
8 served check, 9 something missing on this machine, 130 interrupted.
"""


@click.command("compile", epilog=_EPILOG)
@click.argument("source", metavar="SOURCE|SPEC.yaml")
@click.option("--name", help="Name of the model in Triton; made from the source when left out.")
@click.option(
    "--engine", type=click.Choice(["onnxruntime", "tensorrt", "python"]), help="What serves it [onnxruntime]."
)
@click.option("--precision", type=click.Choice(["fp32", "fp16", "bf16", "int8"]), help="Of the graph [fp32].")
@click.option("--shapes", metavar="NAME=MIN:OPT:MAX,…", help="Shapes per input; derived from the model when left out.")
@click.option("--task", help="Which head, by transformers' name of the task [as the model's configuration says].")
@click.option("--target", help="Serving runtime [local-cpu].")
@click.option("--repository", metavar="DIR", help="Triton model repository [<artifacts>/repository].")
@click.option("--artifacts", metavar="DIR", help="Cache, logs and default repository [artifacts].")
@click.option("--random-weights/--no-random-weights", default=None, help="Draw the weights instead of loading them.")
@click.option("--trust-remote-code/--no-trust-remote-code", default=None, help="Run Python code that comes with it.")
@click.option("--allow-pickle/--no-allow-pickle", default=None, help="Read pickled weights, which can run any code.")
@click.option("--check-served/--no-check-served", default=None, help="Load and ask the release on a real Triton [on].")
@click.option(
    "--allow-interface-change/--no-allow-interface-change",
    default=None,
    help="Publish even if inputs or outputs changed.",
)
@click.option("--tritonserver", metavar="PATH", help="Server for the check; found when left out.")
@click.option("--force/--no-force", default=None, help="Do every step again and publish a new version.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--quiet", is_flag=True, help="No progress.")
def compile_command(
    source: str,
    *,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    shapes: str | None,
    **options: Any,
) -> None:
    """Compile a model into a validated, versioned Triton model repository.

    SOURCE is hf:<id or directory>[@revision], timm:<name or directory>, or a YAML spec. All options but --dry-run,
    --json and --quiet can stand in a spec, with _ for -; the command line wins.
    """
    from plansmith.cli.progress import TerminalProgress
    from plansmith.steps import Compilation

    spec, base = _read_spec(source, options, shapes)
    with TerminalProgress(quiet=quiet or dry_run) as listener:
        compilation = Compilation(spec, relative_to=base, listener=listener, dry=dry_run)
        with compilation:
            if dry_run:
                _print_plan(compilation.name, compilation.plan(), as_json)
                return
            published, manifest = compilation.run()
    if as_json:
        click.echo(json.dumps(_document(published, manifest, compilation.steps)))
    else:
        _print_summary(published, manifest)


def _read_spec(source: str, options: dict[str, Any], shapes: str | None) -> tuple[ModelSpec, Path]:
    """The spec of a command line, and the folder that its source directory is relative to."""
    from plansmith.config import load_spec, make_spec
    from plansmith.shapes import parse_shapes

    given = {key: value for key, value in options.items() if value is not None}
    if shapes is not None:
        given["shapes"] = parse_shapes(shapes)
    if source.endswith((".yaml", ".yml")):
        return load_spec(Path(source), given), Path(source).absolute().parent
    return make_spec({"source": source, **given}), Path.cwd()


def _document(published: PublishedVersion, manifest: Manifest, steps: list[StepRecord]) -> dict[str, Any]:
    from plansmith.triton.releases import MANIFEST_FILE

    served = manifest.served
    return {
        "name": published.name,
        "version": published.version,
        "unchanged": published.unchanged,
        "repository": published.repository,
        "model_path": published.release,
        "manifest": str(Path(published.release) / MANIFEST_FILE),
        "engine": manifest.engine.kind,
        "precision": manifest.engine.precision,
        "verdict": manifest.validation.verdict,
        "steps": [step.model_dump() for step in steps],
        "validation": manifest.validation.worst(),
        "served": served
        and {
            "server_version": served.server_version,
            "backend": served.backend,
            "backend_runtime": served.backend_runtime,
            "checks": [check.model_dump() for check in served.checks],
            "median_seconds": served.median_seconds,
            "worst_seconds": served.worst_seconds,
        },
    }


def _print_plan(name: str, plan: dict[str, str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"name": name, "plan": plan}))
        return
    click.echo(f"{name}: nothing was done; a compile would")
    for step, what in plan.items():
        click.echo(f"  {step:<13}{what}")


def _print_summary(published: PublishedVersion, manifest: Manifest) -> None:
    from plansmith.cli.text import program, short

    release = short(Path(published.release))
    state = "unchanged, still" if published.unchanged else "published,"
    click.echo(
        f"{published.name} {state} version {published.version}: {manifest.engine.kind}, {manifest.engine.precision},"
        f" gate {manifest.validation.verdict}"
    )
    click.echo(f"  compared with {manifest.validation.reference}, on {manifest.validation.data}")
    for output, worst in manifest.validation.worst().items():
        allowed = manifest.validation.tolerances[output]
        click.echo(
            f"  {output}: largest error {worst['max_relative']:.1e} of the output's magnitude"
            f" (allowed {allowed.max_relative:.0e}), smallest cosine {worst['min_cosine']:.9f}"
        )
    if manifest.served is None:
        click.echo("  not checked on a running Triton (--no-check-served)")
    else:
        served = manifest.served
        who = (
            "its own ONNX Runtime backend"
            if served.backend == "real"
            else f"a stand-in backend ({served.backend_runtime})"
        )
        click.echo(
            f"  served by Triton {served.server_version} with {who}: {served.requests} requests over HTTP and gRPC,"
            f" median {served.median_seconds * 1000:.0f} ms"
        )
    click.echo(f"  repository  {short(Path(published.repository))}")
    click.echo(f"  release     {release}")
    click.echo(f"Next: {program()} serve {published.name} --repository {short(Path(published.repository))}")
    click.echo(f"      {program()} inspect {release}")
