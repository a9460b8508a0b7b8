"""Rewrites of functions of torch on images and maps of features, [batch, channels, height, width]."""

from __future__ import annotations

from typing import Any

from plansmith.compilers.export.rewrites.functions import FunctionRewrite


def pooled_by_products(tensor: Any, output_size: Any) -> Any:
    """`adaptive_avg_pool2d` as two matrix products, [..., height, width] to [..., rows, columns]."""
    sizes = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    if any(not isinstance(size, int) for size in sizes) or sizes == (1, 1):
        return NotImplemented
    rows, columns = (_shares(tensor, place, size) for place, size in zip((-2, -1), sizes, strict=True))
    return rows @ tensor @ columns.transpose(0, 1)


def _shares(tensor: Any, place: int, size: int) -> Any:
    """What a cell takes of a position, [cells, positions]: cell i of k those from floor(i n/k) to ceil((i + 1) n/k)."""
    import torch

    length = tensor.shape[place]
    cells = torch.arange(size, device=tensor.device)[:, None]
    positions = torch.arange(length, device=tensor.device)[None, :]
    begin = torch.div(cells * length, size, rounding_mode="floor")
    end = torch.div((cells + 1) * length + size - 1, size, rounding_mode="floor")
    within = ((positions >= begin) & (positions < end)).to(tensor.dtype)
    return within / within.sum(dim=1, keepdim=True)


def unfolded_by_convolution(tensor: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """`torch.nn.functional.unfold` as a convolution that copies: [N, C, H, W] to [N, C * kernel, places]."""
    import torch

    if tensor.dim() != 4:
        return NotImplemented
    copying = _copying_kernel(tensor, _pair(kernel_size))
    planes = tensor.flatten(0, 1).unsqueeze(1)
    taken: Any = torch.nn.functional.conv2d(planes, copying, None, stride, padding, dilation)
    return taken.flatten(2).unflatten(0, (-1, tensor.shape[1])).flatten(1, 2)


def folded_by_convolution(
    tensor: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """`torch.nn.functional.fold` as a transposed convolution: [N, C * kernel, places] to [N, C, H, W]."""
    import torch

    if tensor.dim() != 3:
        return NotImplemented
    kernel, steps, edges, gaps = map(_pair, (kernel_size, stride, padding, dilation))
    copying = _copying_kernel(tensor, kernel)
    reach = [gap * (size - 1) for gap, size in zip(gaps, kernel, strict=True)]
    places = [(n + 2 * e - r - 1) // s for n, e, r, s in zip(_pair(output_size), edges, reach, steps, strict=True)]
    left = [
        n - (p * s - 2 * e + r + 1)
        for n, p, s, e, r in zip(_pair(output_size), places, steps, edges, reach, strict=True)
    ]
    channels = tensor.shape[1] // (kernel[0] * kernel[1])
    # One reshape, whose first size is what is left: from several of them the exporter makes constants of the batch.
    grid = tensor.reshape(-1, kernel[0] * kernel[1], places[0] + 1, places[1] + 1)
    laid: Any = torch.nn.functional.conv_transpose2d(grid, copying, None, steps, edges, left, 1, gaps)
    return laid.squeeze(1).unflatten(0, (-1, channels))


def nearest_by_indices(input: Any, size: Any = None, *_: Any, mode: str = "nearest", **given: Any) -> Any:  # noqa: A002
    """`interpolate` to a size, in mode nearest: PyTorch takes element floor(i * (in / out)), in single precision."""
    import torch

    if mode != "nearest" or size is None or given.get("antialias") or given.get("scale_factor") is not None:
        return NotImplemented
    sizes = list(size) if isinstance(size, list | tuple) else [size] * (input.dim() - 2)
    taken = input
    for place, wanted in enumerate(sizes, start=2):
        have = _number(input.shape[place], input.device)
        share = have.to(torch.float32) / _number(wanted, input.device).to(torch.float32)
        places = torch.floor(torch.arange(wanted, device=input.device).to(torch.float32) * share)
        taken = taken.index_select(place, torch.minimum(places.to(torch.int64), have - 1))
    return taken


def largest_of_windows(input: Any, *places: Any, return_indices: bool = False, **given: Any) -> Any:  # noqa: A002
    """`max_pool2d` of maps without channels as those of one sample; of padded ones, with a bound that changes none."""
    import torch

    is_padded = _made_by(input) in _PADDING
    if return_indices or not (is_padded or input.dim() == 3):
        return NotImplemented
    known = input.clamp(min=torch.finfo(input.dtype).min) if is_padded else input
    if input.dim() == 3:
        return torch.max_pool2d(known.unsqueeze(0), *places, **given).squeeze(0)
    return torch.max_pool2d(known, *places, **given)


def _made_by(tensor: Any) -> str:
    """The operator that a tensor comes from in the trace; empty where nothing is traced."""
    import torch

    tracer: Any = torch._C  # noqa: SLF001 - torch.jit says nothing of single values
    if tracer._get_tracing_state() is None:  # noqa: SLF001
        return ""
    return str(tracer._get_value_trace(tensor).node().kind())  # noqa: SLF001


def _number(value: Any, device: Any) -> Any:
    import torch

    return value.to(device) if isinstance(value, torch.Tensor) else torch.full((), int(value), device=device)


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _copying_kernel(tensor: Any, kernel: tuple[int, int]) -> Any:
    """A kernel for every place in it, which takes that place alone: [height * width, 1, height, width]."""
    import torch

    rows, columns = kernel
    return torch.eye(rows * columns, dtype=tensor.dtype, device=tensor.device).reshape(-1, 1, rows, columns)


_PADDING = ("aten::pad", "aten::constant_pad_nd")

REWRITES = (
    FunctionRewrite(
        name="largest of windows",
        reason="ONNX Runtime makes padding with zeros and the largest of a window one operator, which pads with less"
        " than anything: zeros are lost wherever a window holds negative numbers alone. The tracer writes pooling of"
        " maps without channels with dilations of a wrong size",
        link="https://github.com/microsoft/onnxruntime/pull/18136",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.max_pool2d",),
        form=largest_of_windows,
    ),
    FunctionRewrite(
        name="unfolding by convolution",
        reason="the tracer writes im2col as gathers of a size that it has to know, and fails where it does not",
        link="https://github.com/pytorch/pytorch/issues/67042",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.unfold",),
        form=unfolded_by_convolution,
    ),
    FunctionRewrite(
        name="folding by convolution",
        reason="col2im is written for a batch and a size that the tracer has to know, and fails where it does not",
        link="https://github.com/pytorch/pytorch/issues/30638",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.fold",),
        form=folded_by_convolution,
    ),
    FunctionRewrite(
        name="nearest elements by indices",
        reason="Resize divides by out / in where PyTorch multiplies by in / out, and one of the two rounds below a"
        " whole number: another element is taken",
        link="https://github.com/onnx/onnx/issues/5266",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.interpolate",),
        form=nearest_by_indices,
    ),
    FunctionRewrite(
        name="adaptive pooling by products",
        reason="the tracer writes adaptive pooling only to sizes that divide a size that it knows",
        link="https://github.com/pytorch/pytorch/issues/42653",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.adaptive_avg_pool2d",),
        form=pooled_by_products,
    ),
)
