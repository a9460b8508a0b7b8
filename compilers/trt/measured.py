"""The timing cache of a build: read where it fits, ignored where not, written back together with what others wrote.

Polygraphy's own way does not serve: it does not look whether TensorRT took a cache, and it merges caches of other
devices, which TensorRT's documentation warns of (https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/
python-api/infer/Core/TimingCache.html, `combine`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from plansmith.durable import fsync_path, locked, move_into_place

NOT_USED = "not used"


class Measured:
    """What is known of the speed of kernels before and after one build.

    `words`: what became of the cache; `warnings`: why it was ignored.

    Args:
        path: the cache file, which need not be there; None for a build without one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._begun = path.read_bytes() if path is not None and path.is_file() else b""
        self.words = NOT_USED
        self.warnings: list[str] = []

    def attach(self, config: Any) -> None:
        """Give a configuration, whose flags are set, the cache; an empty one where there is none that it takes."""
        if self._path is None:
            return
        self.words = "started empty"
        if self._begun:
            problem = _attach(config, self._begun)
            if not problem:
                self.words = f"started from {len(self._begun)} bytes of earlier builds"
                return
            self.words = f"ignored: {problem}"
            self.warnings.append(f"the timing cache {self._path.name} was ignored: {problem}; the build measured anew")
        _attach(config, b"")

    def save(self, config: Any) -> None:
        """Write the cache back, whole or not at all, with what another build wrote into the file meanwhile."""
        cache = None if self._path is None else config.get_timing_cache()
        if self._path is None or cache is None:
            return
        with locked(self._path.with_name(f"{self._path.name}.merging")):
            there = self._path.read_bytes() if self._path.is_file() else b""
            if there and there != self._begun:
                other = config.create_timing_cache(there)
                if other is None or not cache.combine(other, ignore_mismatch=False):
                    self.warnings.append(
                        f"the timing cache {self._path.name} did not fit this build's; it was replaced"
                    )
            with tempfile.TemporaryDirectory(prefix=f".{self._path.name}.", dir=self._path.parent) as folder:
                staged = Path(folder, self._path.name)
                staged.write_bytes(memoryview(cache.serialize()))
                fsync_path(staged)
                move_into_place(staged, self._path)
        self.words += f", now {self._path.stat().st_size} bytes"


def _attach(config: Any, content: bytes) -> str:
    """Why TensorRT does not take a cache; "" where it does. None for a cache and False are its two ways to say no."""
    cache = config.create_timing_cache(content)
    if cache is None:
        return "TensorRT cannot read it"
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        return "it is of another TensorRT, GPU or driver"
    return ""
