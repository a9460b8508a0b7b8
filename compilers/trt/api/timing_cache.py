"""Timing cache of a build: loaded where compatible, otherwise ignored, and written back.

Polygraphy's own way does not serve: it does not look whether TensorRT took a cache, and it merges caches of other
devices, which TensorRT's documentation warns of (https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/
c-api/classnvinfer1_1_1_i_timing_cache.html, `combine`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.api.runtime import gpu_needed, listen, logger, version
from plansmith.system.files import fsync_path, move_into_place, storage_errors

_EMPTY = "Returning an empty timing cache"


def write_whole(content: Any, path: Path) -> None:
    """Write TensorRT's output (`IHostMemory`, or bytes) without a second copy in memory.

    Raises:
        RepositoryError: the disk is full, or takes no files there.
    """
    with (
        storage_errors(path.parent),
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
    ):
        staged = Path(folder, path.name)
        with staged.open("wb") as stream:
            stream.write(memoryview(content))
        fsync_path(staged)
        move_into_place(staged, path)


class Measured:
    """Timing cache of one build: kernel timings before and after it; the file must have no other writer meanwhile.

    `status`: what became of the cache; `warnings`: why it was ignored.

    Args:
        path: the cache file, which need not be there; None for a build without one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.status = "not used"
        self.warnings: list[str] = []

    def attach(self, config: Any) -> None:
        """Attach the cache to a configuration whose flags are set; an empty one if none is valid for it."""
        if self._path is None:
            return
        self.status = "started empty"
        content = self._path.read_bytes() if self._path.is_file() else b""
        if content:
            heard = logger().heard
            begun = len(heard.lines)
            problem = _attach(config, content)
            if not problem:
                self.status = f"started from {len(content)} bytes"
                return
            heard.forgive(begun)
            self.status = f"ignored, as {problem}"
            self.warnings.append(f"the timing cache was ignored, as {problem}; the build measured everything anew")
        _attach(config, b"")

    def save(self, config: Any) -> None:
        """Write the cache back, atomically.

        Raises:
            RepositoryError: the disk is full.
        """
        cache = None if self._path is None else config.get_timing_cache()
        if self._path is not None and cache is not None:
            write_whole(cache.serialize(), self._path)
            self.status += f", now {self._path.stat().st_size} bytes"


def _attach(config: Any, content: bytes) -> str:
    """Attach a timing cache; return why TensorRT rejects it, or "".

    It has three ways to say no: None for a cache, an empty one with a warning, and False when the cache is set.
    """
    heard = logger().heard
    begun = len(heard.lines)
    cache = config.create_timing_cache(content)
    lines = heard.lines[begun:]
    if cache is None or any(_EMPTY in line for _, line in lines):
        errors = [line for letter, line in lines if letter in {"F", "E"}]
        return ": ".join(["TensorRT cannot read it", *errors[:1]])
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        return "it is of another TensorRT, GPU or driver"
    return ""


def combine(files: Sequence[Path], out: Path) -> bool:
    """Merge timing caches of the same TensorRT and GPU type; return whether TensorRT accepted them all.

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
    if not all(first.combine(candidate, ignore_mismatch=False) for candidate in others):
        return False
    write_whole(first.serialize(), out)
    return True
