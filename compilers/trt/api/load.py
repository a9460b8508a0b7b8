"""Plans opened: deserialized on the GPU, with the plugins and rights that they need."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.api.logger import listen, logger
from plansmith.compilers.trt.api.plugins import load_plugins
from plansmith.compilers.trt.api.probe import gpu_needed, version
from plansmith.compilers.trt.failures import failure_of


def engine_of(plan: Path, *, plugins: Iterable[str], version_compatible: bool) -> Any:
    """A plan as TensorRT's `ICudaEngine`. It is a program: open none that you did not build.

    Args:
        plan: the file.
        plugins: libraries that it needs.
        version_compatible: it was built so; it may then bring code for the host, which runs with the rights of this
            process and which TensorRT refuses unless told.

    Raises:
        EngineError: TensorRT refuses it: another version, another GPU, damaged.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
    """
    version()
    import tensorrt

    load_plugins(plugins)
    heard = listen()
    tensorrt.init_libnvinfer_plugins(logger(), "")
    with gpu_needed():
        runtime = tensorrt.Runtime(logger())
    if version_compatible:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    if engine is None:
        raise failure_of(heard.text, what=f"loading {plan.name}")
    return engine


def io_names(engine: Any) -> list[str]:
    """The names of a plan's inputs and outputs, in its order."""
    return [str(engine.get_tensor_name(index)) for index in range(engine.num_io_tensors)]
