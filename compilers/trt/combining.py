"""One timing cache out of several, which only TensorRT can make."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_TRT = "plansmith.compilers.trt"


def combine(files: Sequence[Path], out: Path) -> bool:
    """Put the entries of all files into one; where files disagree, the first is right.

    Args:
        files: timing caches of one TensorRT, kind of GPU and set of flags.
        out: takes the whole; may be one of them.

    Returns:
        Whether TensorRT took them all; else nothing is written.

    Raises:
        EnvironmentFault: there is no usable GPU, without which TensorRT does not even look at them.
    """
    import tensorrt

    with import_module(f"{_TRT}.probing").gpu_needed():
        builder = tensorrt.Builder(import_module(f"{_TRT}.logger").logger())
    config = builder.create_builder_config()
    whole, *others = (config.create_timing_cache(file.read_bytes()) for file in files)
    if whole is None or not all(_takes(whole, other) for other in others):
        return False
    out.write_bytes(memoryview(whole.serialize()))
    return True


def _takes(cache: Any, other: Any) -> bool:
    """None is a cache that TensorRT cannot read; one of another device would give wrong choices."""
    return other is not None and cache.combine(other, ignore_mismatch=False)
