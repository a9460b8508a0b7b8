"""The step that lays out a release: config.pbtxt, and the files that Triton loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.config import TritonOptions
from plansmith.durable import link_or_copy
from plansmith.engines import Engine
from plansmith.manifest import Package
from plansmith.stages import Finished, StageRunner
from plansmith.triton import model_config, plan_config
from plansmith.triton.releases import MODEL_FOLDER
from plansmith.types import Device, OnnxModel

_Laid = tuple[Package, dict[str, str], Callable[[Device, TritonOptions], str]]
"""A release, the place in it of every file, and what writes its configuration."""


def lay_out(
    stages: StageRunner,
    name: str,
    device: Device,
    options: TritonOptions,
    engine: Finished[Engine],
    onnx: Finished[OnnxModel],
) -> Finished[Package]:
    """Write the configuration of a model and put the engine's files where Triton looks for them.

    Args:
        stages: the compile's steps.
        name: of the model.
        device: what its instances run on.
        options: what the configuration says beyond what the graph determines.
        engine: made for the backend.
        onnx: what the engine was made from; it knows the ranges of the axes.

    Raises:
        EngineError: an input or output that Triton cannot carry, or a plan that it cannot load.
    """
    package, placed, write = _plans(name, engine.record) if engine.record.plans else _graph(name, engine.record, onnx)

    def build(out: Path) -> Any:
        (out / package.config_file).write_text(write(device, options))
        for file, place in placed.items():
            link_or_copy(engine.folder / file, out / MODEL_FOLDER / place)
        return package.model_dump(mode="json")

    parameters = {"package": package.model_dump(mode="json"), "device": device, "triton": options.model_dump()}
    return stages.stage("package", Package, [engine.digest], parameters, build)


def _graph(name: str, engine: Engine, onnx: Finished[OnnxModel]) -> _Laid:
    """What a graph becomes; Triton takes one with external weights as a folder of the graph's name."""
    component = engine.components["model"]
    inner = component.file if component.external_files else "."
    placed = {file: (Path(inner) / file).as_posix() for file in component.files}
    package = Package(
        model=name,
        config_file=model_config.CONFIG_FILE,
        model_files=tuple(placed.values()),
        max_batch_size=model_config.max_batch_size(component, onnx.record.axes),
        interface=model_config.interface_of(component),
    )
    return package, placed, lambda *how: model_config.write_config(package, engine.kind, *how)


def _plans(name: str, engine: Engine) -> _Laid:
    """What plans become."""
    package, files = plan_config.plan_package(name, engine), plan_config.plan_files(engine)
    placed = {plan.file: files[capability] for capability, plan in engine.plans.items()}
    return package, placed, lambda *how: plan_config.write_plan_config(package, engine, *how)
