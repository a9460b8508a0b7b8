"""Served inputs: the inputs of a model as clients of its release send them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plansmith.records.model import Tensor
from plansmith.records.release import Package
from plansmith.triton.dtypes import numpy_dtype

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


def inputs_as_served(inputs: Arrays, package: Package) -> Arrays:
    """Convert inputs of the source model to the dtypes and dims of the release.

    Lowered inputs change the element types; options of the spec change dims, and hide what Triton fills.
    """
    return {tensor.name: array_as_served(inputs[tensor.name], tensor, package) for tensor in package.interface.inputs}


def array_as_served(array: NDArray[np.generic], tensor: Tensor, package: Package) -> NDArray[np.generic]:
    """Convert one input or output of the source model to the dtype and dims of the release."""
    array = array.astype(numpy_dtype(tensor.dtype), copy=False)
    own = package.reshaped.get(tensor.name)
    if own is None:
        return array
    varying = iter([size for size, dim in zip(array.shape, own, strict=True) if isinstance(dim, str)])
    return array.reshape([next(varying) if isinstance(dim, str) else dim for dim in tensor.dims])


def is_accepted(inputs: Arrays, package: Package) -> bool:
    """Whether the release accepts a request's batch and sizes, which options of the spec may restrict."""
    if package.max_batch_size and len(next(iter(inputs.values()))) > package.max_batch_size:
        return False
    return all(
        isinstance(dim, str) or dim == size
        for tensor in package.interface.inputs
        for dim, size in zip(tensor.dims, inputs[tensor.name].shape, strict=True)
    )
