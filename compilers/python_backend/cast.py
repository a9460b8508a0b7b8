"""A PyTorch module in a lower precision, as its own library would load it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plansmith.records.model import Precision

if TYPE_CHECKING:
    import torch


def cast(module: torch.nn.Module, precision: Precision) -> torch.dtype:
    """Make the floats of a module those of a precision, and tell which they are.

    What a state holds becomes lower, as when transformers loads a model with `dtype`: what a model computes for itself
    (buffers that are not saved, as the frequencies of rotary embeddings) stays FP32, and so do the parts that its class
    names in `_keep_in_fp32_modules` (FP16 only) and `_keep_in_fp32_modules_strict`: see
    `PreTrainedModel._get_dtype_plan` in transformers' modeling_utils.py.

    Args:
        module: in FP32; changed.
        precision: FP32, FP16 or BF16.
    """
    import torch

    dtype = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}[precision]
    if precision is Precision.FP32:
        return dtype
    kept = _kept(module, precision)
    saved = set(module.state_dict(keep_vars=True))
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in saved and tensor.is_floating_point() and not any(one.search(name) for one in kept):
                tensor.data = tensor.data.to(dtype)
    return dtype


def _kept(module: torch.nn.Module, precision: Precision) -> list[re.Pattern[str]]:
    """Patterns of the names of weights that stay FP32."""
    names: list[str] = []
    for part in module.modules():
        names += getattr(part, "_keep_in_fp32_modules_strict", None) or ()
        if precision is Precision.FP16:
            names += getattr(part, "_keep_in_fp32_modules", None) or ()
    return [re.compile(rf"((^|\.){re.escape(name)}($|\.))") for name in dict.fromkeys(names)]
