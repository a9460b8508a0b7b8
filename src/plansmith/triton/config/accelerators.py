"""What TensorRT inside of ONNX Runtime is told of a model's shapes.

Without the smallest, usual and largest shape it builds an engine anew for every shape that it has not seen, which takes
minutes; all inputs whose shapes vary have to be named, as `name:1x8,other:1x8` ("Explicit shape range for dynamic shape
input" in ONNX Runtime's page on the TensorRT execution provider).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.records.model import BATCH, AxisRange, Tensor
from plansmith.triton.config.option_rules import PROFILE_KEYS

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


def add_profiles(config: pb.ModelConfig, inputs: Sequence[Tensor], axes: Mapping[str, AxisRange]) -> None:
    """Tell TensorRT the ranges of the axes, where an accelerator of that name is asked for and nothing is told it.

    Args:
        config: has the accelerators and the largest batch.
        inputs: of the model.
        axes: their ranges.
    """
    varying = [tensor for tensor in inputs if any(isinstance(dim, str) for dim in tensor.dims)]
    ranges = dict(axes)
    if config.max_batch_size and BATCH in axes:
        largest = config.max_batch_size
        ranges[BATCH] = AxisRange(min=1, opt=min(axes[BATCH].opt, largest), max=largest)
    if not all(dim in ranges for tensor in varying for dim in tensor.dims if isinstance(dim, str)):
        return
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt" and varying and PROFILE_KEYS[0] not in accelerator.parameters:
            for key, point in zip(PROFILE_KEYS, ("min", "opt", "max"), strict=True):
                accelerator.parameters[key] = ",".join(_shape(tensor, ranges, point) for tensor in varying)


def _shape(tensor: Tensor, ranges: Mapping[str, AxisRange], point: str) -> str:
    sizes = (getattr(ranges[dim], point) if isinstance(dim, str) else dim for dim in tensor.dims)
    return f"{tensor.name}:{'x'.join(map(str, sizes))}"
