"""What a plan itself says of its inputs, outputs, layers and memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.api.load import engine_of, io_names
from plansmith.records.engine import PlanTensor
from plansmith.records.model import Record

# TensorRT's names of data types by NumPy's (and ml_dtypes', which carries on where NumPy ends).
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "FP8": "float8_e4m3fn",
    "INT4": "int4",
    "FP4": "float4_e2m1fn",
    "E8M0": "float8_e8m0fnu",
}


class Inspection(Record):
    """A plan by itself; `layers`: JSON as its inspector writes it; `profile_bytes`: device memory by profile."""

    tensors: tuple[PlanTensor, ...]
    layers: str
    profile_bytes: tuple[int, ...]


def inspect(plan: Path, *, plugins: Iterable[str] = (), version_compatible: bool = False) -> Inspection:
    """Open a plan and have it tell.

    Raises:
        EngineError: TensorRT refuses it.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
    """
    engine = engine_of(plan, plugins=plugins, version_compatible=version_compatible)
    import tensorrt

    inspector = engine.create_engine_inspector()
    return Inspection(
        tensors=tuple(_tensor(engine, name) for name in io_names(engine)),
        layers=inspector.get_engine_information(tensorrt.LayerInformationFormat.JSON),
        profile_bytes=tuple(
            engine.get_device_memory_size_for_profile_v2(index) for index in range(engine.num_optimization_profiles)
        ),
    )


def _tensor(engine: Any, name: str) -> PlanTensor:
    import tensorrt

    return PlanTensor(
        name=name,
        is_input=engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT,
        dtype=DTYPES[engine.get_tensor_dtype(name).name],
        dims=tuple(engine.get_tensor_shape(name)),
        format=engine.get_tensor_format_desc(name),
        is_shape=engine.is_shape_inference_io(name),
    )
