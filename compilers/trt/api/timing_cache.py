"""The timing cache of a build: started from where it fits, ignored where not, and written back.

Polygraphy's own way does not serve: it does not look whether TensorRT took a cache, and it merges caches of other
devices, which TensorRT's documentation warns of (https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/
c-api/classnvinfer1_1_1_i_timing_cache.html, `combine`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.api.logger import logger
from plansmith.system.files import fsync_path, move_into_place, storage_errors

_EMPTY = "Returning an empty timing cache"


def write_whole(content: Any, path: Path) -> None:
    """Write what TensorRT gave (`IHostMemory`, or bytes) without a second copy of it in memory.

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
    """What is known of the speed of kernels before and after one build; nobody else may write the file meanwhile.

    `words`: what became of the cache; `warnings`: why it was ignored.

    Args:
        path: the cache file, which need not be there; None for a build without one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.words = "not used"
        self.warnings: list[str] = []

    def attach(self, config: Any) -> None:
        """Give a configuration, whose flags are set, the cache; an empty one where there is none that it takes."""
        if self._path is None:
            return
        self.words = "started empty"
        content = self._path.read_bytes() if self._path.is_file() else b""
        if content:
            heard = logger().heard
            begun = len(heard.lines)
            problem = _attach(config, content)
            if not problem:
                self.words = f"started from {len(content)} bytes"
                return
            heard.forgive(begun)
            self.words = f"ignored, as {problem}"
            self.warnings.append(f"the timing cache was ignored, as {problem}; the build measured everything anew")
        _attach(config, b"")

    def save(self, config: Any) -> None:
        """Write the cache back, whole or not at all.

        Raises:
            RepositoryError: the disk is full.
        """
        cache = None if self._path is None else config.get_timing_cache()
        if self._path is not None and cache is not None:
            write_whole(cache.serialize(), self._path)
            self.words += f", now {self._path.stat().st_size} bytes"


def _attach(config: Any, content: bytes) -> str:
    """Why TensorRT does not take a cache; "" where it does.

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
