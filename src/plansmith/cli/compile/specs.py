"""Model and spec arguments of commands, and the options that a spec can hold as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_folder, complete_gpu, complete_target
from plansmith.cli.output import require_text

if TYPE_CHECKING:
    from plansmith.config.loader import SpecFile

_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(["onnxruntime", "tensorrt", "python"]),
        help="What runs the model in Triton [onnxruntime].",
    ),
    click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "fp16", "bf16", "fp8", "int8"]),
        help="Precision of the graph; auto: the fastest that is accurate enough [fp32].",
    ),
    click.option(
        "--gpu",
        "gpus",
        metavar="NAME",
        multiple=True,
        shell_complete=complete_gpu,
        help="Kind of GPU that a TensorRT plan is for, such as L4; repeatable [this machine's].",
    ),
    click.option(
        "--check-build/--no-check-build",
        default=None,
        help="Have TensorRT-RTX parse and build the graph on this CPU, before a GPU is kept busy with it [off].",
    ),
    click.option(
        "--data",
        metavar="PATH",
        shell_complete=complete_file,
        help="Real inputs to calibrate and judge with: a .txt, .csv, .jsonl, .parquet or .npz file, or a folder of"
        " images.",
    ),
    click.option(
        "--shapes",
        metavar="NAME=MIN:OPT:MAX,...",
        help="Shapes of each input; a single one stands for all three. Made from the model when left out.",
    ),
    click.option("--task", help="Which head, by transformers' name of the task [as the model's configuration says]."),
    click.option(
        "--target",
        multiple=True,
        shell_complete=complete_target,
        help="Serving runtime, or a file that describes one; of several, each has <repository>/<target> [local-cpu].",
    ),
    click.option(
        "--artifacts",
        metavar="DIR",
        shell_complete=complete_folder,
        help="Where cache, logs and repository go [artifacts].",
    ),
    click.option(
        "--shared-cache",
        metavar="PLACE",
        shell_complete=complete_folder,
        help="Where machines share finished steps: a folder or s3://bucket/prefix [PLANSMITH_SHARED_CACHE].",
    ),
    click.option(
        "--random-weights/--no-random-weights", default=None, help="Draw the weights instead of loading them."
    ),
    click.option(
        "--trust-remote-code/--no-trust-remote-code", default=None, help="Run Python code that comes with the model."
    ),
    click.option(
        "--device",
        type=click.Choice(["cpu", "cuda"]),
        help="Where PyTorch holds the model while it is asked and exported [cpu].",
    ),
    click.option(
        "--allow-pickle/--no-allow-pickle",
        default=None,
        help="Read pickled weights and modules, which can run any code.",
    ),
    click.option(
        "--isolate/--no-isolate",
        default=None,
        help="Keep that code, and functions of yours, from the network and from your credentials [yes].",
    ),
)


_TENSORRT = {"builder": "builder", "check_build": "check_build", "gpus": "gpus"}
"""Options of the command line that stand under `tensorrt` in a spec, by the names that they have there."""


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that control the conversion of a source, up to its graph."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


def specs_from_arguments(source: str, options: dict[str, Any], models: tuple[str, ...] = ()) -> tuple[SpecFile, Path]:
    """Return the models of a command line, and the folder that their source directories are relative to.

    Raises:
        UsageError: what is wrong with a spec or with what was typed.
    """
    file, folder = _read_given(source, options, models)
    for notice in file.notices:
        click.echo(f"plansmith: {notice}", err=True)
    if options.get("check_build"):
        _require_tensorrt(file)
    return file, folder


def _require_tensorrt(file: SpecFile) -> None:
    from plansmith.errors import UsageError
    from plansmith.records.model import EngineKind

    for model in file.models:
        if model.spec.engine is not EngineKind.TENSORRT:
            raise UsageError(
                f"--check-build is for engine tensorrt, and this is for {model.spec.engine}",
                remedy="add --engine tensorrt, or leave out --check-build",
                model=model.label,
            )


def _read_given(source: str, options: dict[str, Any], models: tuple[str, ...]) -> tuple[SpecFile, Path]:
    from plansmith.config.loader import SpecFile, name_of, read_specs
    from plansmith.config.spec import NamedSpec, for_targets, make_spec, without_targets
    from plansmith.errors import UsageError

    overrides = values_of_options(options)
    require_text(source)
    if source.endswith((".yaml", ".yml")):
        return read_specs(Path(source), overrides, models), Path(source).absolute().parent
    if models:
        raise UsageError("--model picks models of a spec", remedy="name a .yaml file, or leave --model out")
    values, targets = without_targets({"source": source, **overrides})
    spec = make_spec(values)
    named = NamedSpec(spec.name, spec)
    if targets is None:
        return SpecFile((named,), several=False), Path.cwd()
    named = replace(named, name=name_of(values, Path.cwd()))
    return SpecFile(tuple(for_targets(named, targets)), several=True), Path.cwd()


def values_of_options(options: dict[str, Any]) -> dict[str, Any]:
    """Convert command line options to spec values, which override those in a spec file.

    Raises:
        UsageError: two options contradict each other, or one is no text in this locale.
    """
    from plansmith.config.shapes import parse_shapes
    from plansmith.errors import UsageError

    overrides = {key: value for key, value in options.items() if value not in {None, ()}}
    if overrides.pop("no_publish", False):
        if "publish" in overrides:
            raise UsageError("--publish and --no-publish are opposites", remedy="give one of the two")
        overrides["publish"] = ()
    elif "publish" in overrides:
        overrides["publish"] = [_from_here(place) for place in overrides["publish"]]
    if "shared_cache" in overrides:
        overrides["shared_cache"] = _from_here(overrides["shared_cache"])
    if overrides.get("tritonserver"):  # a release notes it, and is verified from elsewhere
        overrides["tritonserver"] = str(Path(overrides["tritonserver"]).absolute())
    if "target" in overrides:
        overrides["target"] = list(overrides["target"]) if len(overrides["target"]) > 1 else overrides["target"][0]
    texts = [text for value in overrides.values() for text in (value if isinstance(value, list) else [value])]
    require_text(*(text for text in texts if isinstance(text, str)))
    if "shapes" in overrides:
        overrides["shapes"] = parse_shapes(overrides["shapes"])
    if tensorrt := {key: overrides.pop(option) for option, key in _TENSORRT.items() if option in overrides}:
        overrides["tensorrt"] = tensorrt
    if "pipeline" in overrides:
        overrides["pipeline"] = {} if overrides["pipeline"] else None
    if "data" in overrides:
        overrides["data"] = {"path": str(Path(overrides["data"]).absolute())}
    return overrides


def _from_here(place: str) -> str:
    """Resolve a location of the command line: a folder is relative to the working directory, not to the spec."""
    return str(Path(place).absolute()) if place and "://" not in place else place
