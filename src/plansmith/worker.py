"""The heavy child of a compile: loads the model once and does the steps that need it.

Run as `python -m plansmith.worker <file descriptor> <parent>` by `process.Worker`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.durable import storage_errors
from plansmith.errors import EnvironmentFault
from plansmith.process import serve
from plansmith.shapes import InputRange, resolve_axes
from plansmith.types import Engine, OnnxModel, Precision, ReferenceSet, Tolerance

if TYPE_CHECKING:
    from plansmith.compilers.torch_export import Probe
    from plansmith.sources.live import LiveModel

RANDOM_SEED = 0
REFERENCE = "reference"
_PROBES = ("traced", "single", "untraced")

Progress = Callable[[str], None]


def timm_hub_id(*, name: str, progress: Progress) -> dict[str, str]:
    """The hub repository of a timm name."""
    from plansmith.sources import timm_models

    progress("looking the name up")
    return {"hub_id": timm_models.hub_id(name)}


def make_random(*, scheme: str, location: str, trust_remote_code: bool, out: str, progress: Progress) -> dict[str, Any]:
    """Write a model with random weights; `location` is a timm name or a transformers directory."""
    progress("drawing random weights")
    if scheme == "timm":
        from plansmith.sources import timm_models

        timm_models.make_random(location, Path(out), seed=RANDOM_SEED)
    else:
        from plansmith.sources import hf_models

        hf_models.make_random(Path(location), Path(out), seed=RANDOM_SEED, trust_remote_code=trust_remote_code)
    return {}


def export(
    *,
    source: Mapping[str, Any],
    folder: str,
    allow_pickle: bool,
    shapes: Mapping[str, Any],
    max_opset: int,
    out: str,
    progress: Progress,
) -> dict[str, Any]:
    """Load the model, store the reference's answers and export the graph that agrees with them."""
    import torch

    from plansmith.compilers import torch_export
    from plansmith.reference import plan_cases, store_case

    progress("loading the model")
    live = _load(source, Path(folder), allow_pickle)
    given = {k: InputRange.model_validate(v) for k, v in shapes.items()}
    axes = resolve_axes(live.inputs, live.axes, live.limits, given)
    planned = plan_cases(axes, live.axes)
    probes = [_ask(live, name, sizes, progress) for name, sizes in planned if name in _PROBES]
    job = torch_export.ExportJob(
        module=live.module,
        inputs=live.inputs,
        outputs=torch_export.output_tensors(live.output_names, probes),
        probes=probes,
        mask_input=live.mask_input,
        opset=min(torch_export.OPSET, max_opset),
        folder=Path(out),
    )
    with live.exportable():
        component, attempts = torch_export.export(job, progress)
    known = {p.name: p for p in probes}
    cases = []
    for name, sizes in planned:
        probe = known.get(name) or _ask(live, name, sizes, progress)
        inside = all(r.min <= sizes[axis] <= r.max for axis, r in axes.items())
        cases.append(store_case(name, sizes, probe.feed, probe.answer, Path(out) / REFERENCE, in_range=inside))
    onnx = OnnxModel(
        components={"model": component},
        axes=axes,
        mask_input=live.mask_input,
        exporter=attempts[-1].exporter,
        attempts=attempts,
        precision=Precision.FP32,
        reference=ReferenceSet(runtime=f"PyTorch {torch.__version__}, FP32", data=live.data, cases=tuple(cases)),
    )
    return onnx.model_dump(mode="json")


def describe(*, source: Mapping[str, Any], folder: str, allow_pickle: bool, progress: Progress) -> dict[str, Any]:
    """Load the model and tell its inputs, outputs, axes and limits."""
    progress("loading the model")
    return _load(source, Path(folder), allow_pickle).signature.model_dump(mode="json")


def compile_engine(
    *, onnx: Mapping[str, Any], folder: str, max_opset: int, max_ir_version: int, out: str, progress: Progress
) -> dict[str, Any]:
    """Make the ONNX Runtime engine of a graph."""
    from plansmith.compilers.onnxrt import compile_onnxruntime

    progress("optimising the graph")
    engine = compile_onnxruntime(
        OnnxModel.model_validate(onnx), Path(folder), Path(out), max_opset=max_opset, max_ir_version=max_ir_version
    )
    return engine.model_dump(mode="json")


def validate(
    *,
    engine: Mapping[str, Any],
    engine_folder: str,
    onnx: Mapping[str, Any],
    reference_folder: str,
    tolerances: Mapping[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """Run the gate; the verdict is in the report."""
    from plansmith import validation

    report = validation.validate(
        Engine.model_validate(engine),
        Path(engine_folder),
        OnnxModel.model_validate(onnx),
        Path(reference_folder),
        overrides={k: Tolerance.model_validate(v) for k, v in tolerances.items()},
        progress=progress,
    )
    return report.model_dump(mode="json")


def _load(source: Mapping[str, Any], folder: Path, allow_pickle: bool) -> LiveModel:
    if source["scheme"] == "timm":
        from plansmith.sources import timm_models

        return timm_models.load(folder)
    from plansmith.sources import hf_models

    return hf_models.load(folder, trust_remote_code=source["trust_remote_code"], allow_pickle=allow_pickle)


def _ask(live: LiveModel, name: str, sizes: dict[str, int], progress: Progress) -> Probe:
    """Real inputs at one shape, and PyTorch's answer."""
    from plansmith.compilers.torch_export import Probe

    progress(f"asking PyTorch at {name} ({'x'.join(map(str, sizes.values()))})")
    feed = live.make_inputs(sizes)
    return Probe(name, sizes, feed, live.ask(feed))


FUNCTIONS = {f.__name__: f for f in (timm_hub_id, make_random, describe, export, compile_engine, validate)}


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        try:
            with storage_errors(Path(arguments.get("out", "."))):
                return function(**arguments)
        except ImportError as error:
            raise EnvironmentFault(
                f"{error.name} is not installed", remedy="pip install 'plansmith[compile]'"
            ) from error

    return call


if __name__ == "__main__":
    serve({name: _guarded(function) for name, function in FUNCTIONS.items()}, int(sys.argv[1]), int(sys.argv[2]))
