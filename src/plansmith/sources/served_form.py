"""The form in which a served model takes its inputs, where that is another than the source's: dtypes and layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import DescribedInput
from plansmith.data.sample import Sample
from plansmith.errors import UsageError
from plansmith.records.model import AxisRange, Dim, Tensor
from plansmith.sources.loaded_model import Align, Encoded, InputPlan, LoadedModel

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations of axes: to channels last, and back."""


def in_served_form(live: LoadedModel, inputs: Mapping[str, DescribedInput]) -> LoadedModel:
    """A model that takes INT32 in place of INT64, or images with their channels last, and converts them itself.

    So what is exported, asked as the reference and served as PyTorch has one interface.

    Args:
        live: the model as its source has it.
        inputs: what the spec says, by name.

    Raises:
        UsageError: the model has no such input, or one of another dtype or rank.
    """
    changes = changes_of(inputs)
    if not changes:
        return live
    module = _converting(live.module, [changes.get(tensor.name) for tensor in live.inputs.tensors])
    return replace(live, module=module, inputs=served_plan(live.inputs, changes))


def changes_of(inputs: Mapping[str, DescribedInput]) -> dict[str, DescribedInput]:
    """Of what a spec says of inputs, that which has them served in another form."""
    return {name: change for name, change in inputs.items() if change.served_dtype or change.layout}


def served_plan(plan: InputPlan, changes: Mapping[str, DescribedInput]) -> InputPlan:
    """What a model is fed with in the form that it is served in; `changes` is from `changes_of`.

    Raises:
        UsageError: the model has no such input, or one of another dtype or rank.
    """
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    for name, change in changes.items():
        _require_fitting(name, change, tensors)

    def make(sizes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        return _served_arrays(plan.make(sizes), changes)

    def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], align: Align) -> Encoded:
        encoded = plan.encode(samples, axes, align)
        return replace(encoded, feed=_served_arrays(encoded.feed, changes))

    served = tuple(_served_tensor(tensor, changes.get(tensor.name)) for tensor in plan.tensors)
    return replace(plan, tensors=served, make=make, encode=encode)


def source_arrays(feed: Arrays, changes: Mapping[str, DescribedInput]) -> dict[str, NDArray[np.generic]]:
    """The inputs of a model as its source has them, of those in the form that it is served in."""
    import numpy as np

    found = dict(feed)
    for name, change in changes.items():
        if name in found and change.layout:
            found[name] = np.ascontiguousarray(found[name].transpose(NCHW))
        if name in found and change.served_dtype:
            found[name] = found[name].astype(np.int64)
    return found


def _require_fitting(name: str, change: DescribedInput, tensors: Mapping[str, Tensor]) -> None:
    key = "io_dtypes" if change.served_dtype else "io_layouts"
    if name not in tensors:
        raise UsageError(f"{key}: the model has no input {name}", remedy=f"its inputs are {', '.join(tensors)}")
    tensor = tensors[name]
    if change.served_dtype and tensor.dtype != "int64":
        raise UsageError(
            f"io_dtypes: {name} is {tensor.dtype}, and only int64 is served as {change.served_dtype}",
            remedy=f"leave {name} out of `io_dtypes`",
        )
    if change.layout and len(tensor.dims) != len(NHWC):
        dims = ", ".join(map(str, tensor.dims))
        raise UsageError(
            f"io_layouts: {name} has dims [{dims}], and images have [batch, channels, height, width]",
            remedy=f"leave {name} out of `io_layouts`",
        )


def _served_tensor(tensor: Tensor, change: DescribedInput | None) -> Tensor:
    if change is None:
        return tensor
    dims: tuple[Dim, ...] = tuple(tensor.dims[axis] for axis in NHWC) if change.layout else tensor.dims
    return tensor.model_copy(update={"dtype": change.served_dtype or tensor.dtype, "dims": dims})


def _served_arrays(feed: Arrays, changes: Mapping[str, DescribedInput]) -> dict[str, NDArray[np.generic]]:
    import numpy as np

    served = dict(feed)
    for name, change in changes.items():
        if name in served and change.layout:
            served[name] = np.ascontiguousarray(served[name].transpose(NHWC))
        if name in served and change.served_dtype:
            served[name] = served[name].astype(change.served_dtype)
    return served


def _converting(module: torch.nn.Module, changes: Sequence[DescribedInput | None]) -> torch.nn.Module:
    """The module behind conversions of its inputs."""
    import torch

    class Converting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = module

        @property
        def model(self) -> Any:
            """The library's own, as the source's module has it."""
            return self.source.model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer: tuple[torch.Tensor, ...] = self.source(
                *(_source_tensor(tensor, change) for tensor, change in zip(tensors, changes, strict=True))
            )
            return answer

    return Converting().eval()


def _source_tensor(tensor: torch.Tensor, change: DescribedInput | None) -> torch.Tensor:
    if change is not None and change.layout:
        tensor = tensor.permute(NCHW)
    return tensor.long() if change is not None and change.served_dtype else tensor
