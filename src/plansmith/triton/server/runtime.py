"""Serving runtime of a target on this machine: server, backend and device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from plansmith.config.targets import Target, require_onnxruntime
from plansmith.errors import EnvironmentFault
from plansmith.records.model import Device, EngineKind
from plansmith.triton.server.installation import (
    Installation,
    dali_site,
    find_installation,
    require_python,
    require_tensorrt,
    serving_device,
    stand_in_site,
)

_COMPILING_SECONDS = 3600
"""What torch.compile may take while a model is loaded."""


@dataclass(frozen=True)
class ServingRuntime:
    """Serving runtime: the Triton that serves, with its backends and device.

    Args:
        installation: the server.
        site: the stand-in's packages; None where the server has the real backend.
        description: the backend's ONNX Runtime or TensorRT, or PyTorch.
        device: what the instances run on. On "cpu", the server is shown CPU instances where the release has GPU
            ones: Triton does not load those on a machine without a GPU. The release itself stays as it is.
        library_folders: as for `TritonServer`.
        load_seconds: how long loading may take.
        dali_site: the packages of the stand-in for the DALI backend; None where nothing needs it.
    """

    installation: Installation
    site: Path | None
    description: str
    device: Device
    library_folders: tuple[Path, ...] = ()
    load_seconds: float = 60
    dali_site: Path | None = None


def find_serving_runtime(
    tritonserver: str,
    target: Target,
    engine: EngineKind,
    *,
    beside: Collection[EngineKind] = (),
    dali: bool = False,
    parts: bool = False,
) -> ServingRuntime:
    """Find the given or this machine's Triton, and the stand-in backend for a target if needed.

    Args:
        tritonserver: its program or folder; empty for that of this machine.
        target: what a release is for.
        engine: what serves the model.
        beside: what serves those beside it.
        dali: whether the release has a DALI pipeline in it.
        parts: whether it has parts for the Python backend around the model.

    Raises:
        EnvironmentFault: one of them is not there; says how to get it.
        EngineError: nothing says which ONNX Runtime, or which DALI, the target has.
    """
    others = [kind for kind in (engine, *beside) if kind is not EngineKind.PYTHON]
    runtime = _without_dali(tritonserver, target, others[0] if others else engine)
    if parts:
        has_pytorch = EngineKind.PYTHON in {engine, *beside}
        require_python(runtime.installation, torch=has_pytorch)
        runtime = replace(runtime, load_seconds=_COMPILING_SECONDS) if has_pytorch else runtime
    return with_dali(runtime, target) if dali else runtime


def _without_dali(tritonserver: str, target: Target, engine: EngineKind) -> ServingRuntime:
    server = find_installation(Path(tritonserver) if tritonserver else None)
    if engine is EngineKind.TENSORRT:
        require_tensorrt(server, target)
        return ServingRuntime(server, None, f"the TensorRT of Triton {server.version}", "gpu")
    if engine is EngineKind.PYTHON:
        require_python(server)
        description = (
            f"PyTorch {version('torch')}" if server.lends_python else f"the PyTorch of Triton {server.version}"
        )
        device = serving_device(server, target, engine)
        return ServingRuntime(server, None, description, device, load_seconds=_COMPILING_SECONDS)
    site = stand_in_site(server, target)
    description = f"ONNX Runtime {require_onnxruntime(target).version}" if site else f"that of Triton {server.version}"
    return ServingRuntime(server, site, description, serving_device(server, target))


def with_dali(runtime: ServingRuntime, target: Target) -> ServingRuntime:
    """Return the runtime with DALI, for a release with a DALI pipeline.

    Raises:
        EnvironmentFault: DALI is not there, or has no GPU for a pipeline that needs one; says what to do.
        EngineError: nothing says which DALI the target has.
    """
    if target.device == "gpu" and (runtime.device == "cpu" or not runtime.installation.real_dali):
        raise EnvironmentFault(
            f"a DALI pipeline for the GPU of {target.name} cannot run here: Triton's DALI backend and a GPU are needed",
            remedy=f"check it in {target.images.get('gpu', 'the container of the target')}, on a machine with a GPU; a"
            " compile without this check takes --no-check-served",
        )
    return replace(runtime, dali_site=dali_site(runtime.installation, target))
