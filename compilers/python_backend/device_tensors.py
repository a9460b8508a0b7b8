"""Tensors between Triton's Python backend and PyTorch without a copy: by DLPack where they lie on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Rows = NDArray[np.generic] | torch.Tensor


def rows_from_tensor(tensor: Any) -> Rows:
    """What a request holds: an array where it lies in the CPU's memory, else a tensor on the device that it is on.

    Args:
        tensor: a `pb_utils.Tensor`.
    """
    if not tensor.is_cpu():
        return torch_from_triton(tensor)
    array: NDArray[np.generic] = tensor.as_numpy()
    return array


def tensor_from_rows(name: str, rows: torch.Tensor) -> Any:
    """A `pb_utils.Tensor` of an answer, which stays on the device that it lies on.

    On the CPU it is given as an array: what comes by DLPack would be copied once more (`PbTensor` in pb_tensor.cc of
    the Python backend makes an array of it, whether anybody asks for one or not). So is an empty one, which the backend
    does not find contiguous (issue 6960 of Triton's server).

    Args:
        name: of the output.
        rows: contiguous; nothing that writes it is under way.
    """
    import triton_python_backend_utils as pb_utils

    if rows.device.type == "cpu" or not rows.numel():
        return pb_utils.Tensor(name, rows.cpu().numpy())
    return triton_from_torch(name, rows)


def torch_from_triton(tensor: Any) -> torch.Tensor:
    """A `pb_utils.Tensor` as PyTorch's, in the same memory. Nothing writes there any more when a model has it."""
    from torch.utils import dlpack

    found: torch.Tensor = dlpack.from_dlpack(tensor.to_dlpack())
    return found


def triton_from_torch(name: str, tensor: torch.Tensor) -> Any:
    """A `pb_utils.Tensor` in the memory of PyTorch's, which is kept as long; arguments as for `tensor_from_rows`."""
    import triton_python_backend_utils as pb_utils

    return pb_utils.Tensor.from_dlpack(name, tensor.detach().__dlpack__())


def merge_on_device(
    feeds: Sequence[Mapping[str, Rows]], device: torch.device, *, own: bool = False
) -> dict[str, torch.Tensor]:
    """The inputs of several requests as those of one, on a device; a single one that lies there is not copied.

    Args:
        feeds: the inputs of each request, of equal shapes behind the first dim.
        device: that the model is on.
        own: copy it nevertheless, as the model writes into its inputs, which others may read.
    """
    return {name: _merge([feed[name] for feed in feeds], device, own=own) for name in feeds[0]}


def _merge(values: Sequence[Rows], device: torch.device, *, own: bool) -> torch.Tensor:
    import numpy as np
    import torch

    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values):  # one transfer is faster than many
        return _tensor(np.concatenate(arrays) if len(arrays) > 1 else arrays[0]).to(device)
    tensors = [(_tensor(value) if isinstance(value, np.ndarray) else value).to(device) for value in values]
    if len(tensors) > 1:
        return torch.cat(tensors)
    return tensors[0].clone() if own else tensors[0]


def _tensor(array: NDArray[np.generic]) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))
