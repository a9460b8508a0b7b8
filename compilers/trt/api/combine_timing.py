"""Timing caches of several builds made into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plansmith.compilers.trt.api.logger import listen, logger
from plansmith.compilers.trt.api.probe import gpu_needed, version
from plansmith.compilers.trt.api.timing_cache import write_whole


def combine(files: Sequence[Path], out: Path) -> bool:
    """Make one timing cache of several, of the same TensorRT and kind of GPU; whether TensorRT took them all.

    Args:
        files: the first counts where two disagree.
        out: the file to write, whole or not at all, which may be one of them; left as it is where one is refused.

    Raises:
        EnvironmentFault: there is no TensorRT, or no usable GPU.
        RepositoryError: the disk is full.
    """
    version()
    import tensorrt

    listen()
    with gpu_needed():
        builder = tensorrt.Builder(logger())
    config = builder.create_builder_config()
    caches = [config.create_timing_cache(file.read_bytes()) for file in files]
    first, *others = caches
    # `set_timing_cache` looks whether a cache is of this machine, which `combine` looks at only between the two.
    if any(cache is None or not config.set_timing_cache(cache, ignore_mismatch=False) for cache in caches):
        return False
    if not all(first.combine(other, ignore_mismatch=False) for other in others):
        return False
    write_whole(first.serialize(), out)
    return True
