"""Padding of images and maps to whole patches, pairs and windows, without branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import EVERY, Rewrite
from plansmith.compilers.export.rewrites.names import attributes_set, holders, in_place_of

if TYPE_CHECKING:
    import torch

_PADS = "maybe_pad"
_SAME = "apply_tf_padding"


def _padding(part: Any) -> Callable[..., Any] | None:
    """What a part's `maybe_pad` does, whatever it is given; None where it is of no known kind."""
    if not hasattr(part, _PADS):
        return None
    if hasattr(part, "projection") and hasattr(part, "patch_size"):
        sides = part.patch_size if isinstance(part.patch_size, tuple | list) else (part.patch_size,) * 2
        return _to_patches(int(sides[0]), int(sides[1]))
    return _to_pairs if hasattr(part, "reduction") else None


def _to_patches(rows: int, columns: int) -> Callable[..., Any]:
    """Images [batch, channels, height, width] to whole patches."""

    def pad(pixel_values: Any, height: Any, width: Any) -> Any:
        import torch

        missing = (0, (columns - width % columns) % columns, 0, (rows - height % rows) % rows)
        return torch.nn.functional.pad(pixel_values, missing)

    return pad


def _to_pairs(input_feature: Any, height: Any, width: Any) -> Any:
    """Maps [batch, height, width, channels] to pairs of rows and columns."""
    import torch

    return torch.nn.functional.pad(input_feature, (0, 0, 0, width % 2, 0, height % 2))


def _padded(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if _padding(part) is not None]


def padded_to_same(features: Any, conv_layer: Any) -> Any:
    """As transformers' apply_tf_padding: so that a convolution gives ceil(size / stride); [..., height, width].

    TensorFlow's "SAME": https://www.tensorflow.org/api_docs/python/tf/nn#notes_on_padding_2
    """
    import torch

    if any(1 < kernel < stride for kernel, stride in zip(conv_layer.kernel_size, conv_layer.stride, strict=True)):
        return NotImplemented
    missing: list[Any] = []
    for place in (1, 0):
        kernel, stride, gap = (getattr(conv_layer, name)[place] for name in ("kernel_size", "stride", "dilation"))
        size = features.shape[place - 2]
        # Never negative: a kernel of one takes every stride-th element as it is.
        whole = ((size + stride - 1) // stride - 1) * stride + kernel - size if kernel >= stride else 0
        missing += [whole // 2 * gap, (whole - whole // 2) * gap]
    return torch.nn.functional.pad(features, missing)


def _with_other_form(original: Callable[..., Any]) -> Callable[..., Any]:
    def pad(features: Any, conv_layer: Any) -> Any:
        padded = padded_to_same(features, conv_layer)
        return original(features, conv_layer) if padded is NotImplemented else padded

    return pad


REWRITES = (
    Rewrite(
        name="padding to the same size",
        reason="sizes made whole numbers of Python's own, and what is chosen by them, are constants in a trace",
        link="https://github.com/huggingface/transformers/blob/main/src/transformers/models/mobilenet_v2/"
        "modeling_mobilenet_v2.py",
        exporters=EVERY,
        applies=lambda module: bool(holders(module, _SAME)),
        put=lambda module: in_place_of(module, _SAME, _with_other_form),
    ),
    Rewrite(
        name="padding without branches",
        reason="a branch that pads only sizes that are not whole is written down as it was taken",
        link="https://github.com/huggingface/transformers/blob/main/src/transformers/models/swin/modeling_swin.py",
        exporters=EVERY,
        applies=lambda module: bool(_padded(module)),
        put=lambda module: attributes_set(_padded(module), _PADS, _padding),
    ),
)
