"""Timing caches: kernel timings of earlier builds, kept per kind of GPU, driver, TensorRT version and flags.

`<root>/<key>.json` tells of the files `<key>-<digest>.cache` beside it, which are TensorRT's own form, so that other
tools can read them. A build works on a private copy. What it gives back takes the place of the files that it started
from; a file that another build brought meanwhile stays beside it, and the next build that can (TensorRT's Python API)
makes one of both. So builds on several GPUs of a kind neither lose nor tear anything, and nobody waits for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.records.engine import BuildFlags, Gpu
from plansmith.system.digest import digest_of
from plansmith.system.files import LOCKS, STAGING, fsync_path, locked, make_folder, move_into_place, staging_folder

MOST_FILES = 8
"""So many files of one key are kept, the largest: as many builds at a time, where none can combine files."""

# The flags that make TensorRT choose among other kernels, or keep its entries in another form.
_FLAGS = {
    "tf32",
    "sparsity",
    "version_compatible",
    "hardware_compatibility",
    "strip_weights",
    "refit",
    "editable_timing_cache",
}
_KEY_DIGITS, _FILE_DIGITS = 16, 16


@dataclass(frozen=True)
class Key:
    """Timing cache key: everything that the entries of a cache depend on.

    TensorRT's own check covers device, CUDA and its version (NvInfer.h, ITimingCache::combine); what it cannot see,
    such as the driver, and the flags of the builder are part of this, too.
    """

    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The prefix of its file names."""
        return digest_of(self.facts)[:_KEY_DIGITS]


def key_of(tensorrt: str, gpu: Gpu, flags: BuildFlags) -> Key:
    """Return the timing cache key of a build.

    Args:
        tensorrt: the full version of the one that builds.
        gpu: where; its driver counts by its first number, which stands for the CUDA that it brings.
        flags: of the build.
    """
    return Key(
        {
            "tensorrt": tensorrt,
            "gpu": gpu.name,
            "compute_capability": gpu.compute_capability,
            "memory_bytes": gpu.memory_bytes,
            "driver": gpu.driver.partition(".")[0],
            "flags": flags.model_dump(mode="json", include=_FLAGS),
        }
    )


def name_of(key: Key, sha256: str) -> str:
    """Return the name of a key's file."""
    return f"{key.name}-{sha256[:_FILE_DIGITS]}.cache"


class Loan:
    """A private copy of a key's timing cache, for one build.

    `file` is what the build starts from and writes back to, not there where nothing is known yet. `more` are further
    files of the key, to be combined with it first, and `combined` is set once they were. `fixed`: what the build
    writes is not taken back. `warnings`: what could not be used, and why.
    """

    def __init__(self, folder: Path, parts: dict[str, Path], *, fixed: bool, warnings: Sequence[str] = ()) -> None:
        self.file = folder / "timing.cache"
        self.more: list[Path] = []
        self.combined = False
        self.warnings = tuple(warnings)
        self.fixed = fixed
        self._names = list(parts)
        self._begun = ""
        for number, part in enumerate(parts.values()):
            copy = self.file if number == 0 else folder / f"more-{number}.cache"
            shutil.copyfile(part, copy)
            if number:
                self.more.append(copy)
        if parts:
            self._begun = sha256_of(self.file)

    @property
    def is_known(self) -> bool:
        """Whether earlier builds left any entries."""
        return bool(self._names)

    @property
    def origin(self) -> list[str]:
        """The files whose entries are all in the copy."""
        return self._names if self.combined else self._names[:1]

    @property
    def is_changed(self) -> bool:
        """Whether the copy has changed since the start and is not empty."""
        return self.file.is_file() and self.file.stat().st_size > 0 and sha256_of(self.file) != self._begun


class TimingCaches:
    """Timing caches of one artifacts folder; safe to share between processes.

    Args:
        root: `<artifacts>/cache/timing`; made when first needed. Locks and staging folders are those of the cache
            above it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def lent(self, key: Key, flags: BuildFlags) -> Iterator[Loan]:
        """Private copy of a key's cache, deleted after the `with` block; pass it to `take_back` before.

        A build with `error_on_timing_cache_miss` changes nothing, nor one with `editable_timing_cache` once there is
        a file: so that later builds choose as that file says, also after a person has edited it.
        """
        with staging_folder(self._subfolder(STAGING)) as folder:
            with self._locked(key):
                parts, warnings = self._parts(key, edited=flags.editable_timing_cache)
                fixed = flags.error_on_timing_cache_miss or (flags.editable_timing_cache and bool(parts))
                loan = Loan(folder, parts, fixed=fixed, warnings=warnings)
                if parts:
                    with suppress(OSError):  # another user's: it only looks older
                        os.utime(self._list_file(key))
            yield loan

    def take_back(self, key: Key, loan: Loan) -> None:
        """Store what a build has added to its copy, atomically."""
        if loan.fixed or not loan.is_changed:
            return
        staged = loan.file.with_name(name_of(key, sha256_of(loan.file)))
        shutil.copyfile(loan.file, staged)
        self._keep(key, [staged], instead_of=loan.origin)

    def files(self) -> list[tuple[Path, list[Path]]]:
        """Return each list with the files under its key, the list first; and files without a list."""
        lists = sorted(self.root.glob("*.json"))
        entries = [(path, sorted(self.root.glob(f"{path.stem}-*.cache"))) for path in lists]
        listed = {path for _, files in entries for path in files}
        return entries + [(path, []) for path in sorted(self.root.glob("*.cache")) if path not in listed]

    def _keep(self, key: Key, staged: Sequence[Path], *, instead_of: Sequence[str]) -> None:
        """Move files of one folder in, keeping their names, and update the list of kept ones."""
        for file in staged:
            fsync_path(file)
        with self._locked(key):
            make_folder(self.root)
            names = [file for file in self._parts(key)[0] if file not in instead_of]
            for file in staged:
                move_into_place(file, self.root / file.name)
            names = list(dict.fromkeys([*(file.name for file in staged), *names]))
            names = sorted(names, key=lambda name: -(self.root / name).stat().st_size)[:MOST_FILES]
            self._write_list(key, {name: sha256_of(self.root / name) for name in names}, staged[0].parent)
            for path in self.root.glob(f"{key.name}-*.cache"):
                if path.name not in names:
                    path.unlink(missing_ok=True)

    def _parts(self, key: Key, *, edited: bool = False) -> tuple[dict[str, Path], list[str]]:
        """The undamaged files of a cache key, the largest first, and the problems with the others."""
        try:
            document = json.loads(self._list_file(key).read_text())
            digests = {Path(name).name: str(digest) for name, digest in document["files"].items()}
            if document["key"] != key.facts:
                return {}, [f"the timing cache {self._list_file(key)} is of another machine, and was not used"]
        except FileNotFoundError:
            return {}, []
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}, [f"the timing cache {self._list_file(key)} is damaged, and was not used"]
        good: dict[str, Path] = {}
        warnings = []
        for name, digest in digests.items():
            path = self.root / name
            actual = sha256_of(path) if path.is_file() else ""
            if actual == digest or (edited and actual and path.stat().st_size):
                good[name] = path
            if actual != digest:
                state = "edited, and is used as it is now" if name in good else "damaged, and was not used"
                warnings.append(f"the timing cache {path} was {state if actual else 'lost'}")
        return dict(sorted(good.items(), key=lambda item: -item[1].stat().st_size)), warnings

    def _write_list(self, key: Key, digests: dict[str, str], folder: Path) -> None:
        staged = folder / f"{key.name}.json"
        staged.write_text(json.dumps({"key": key.facts, "files": digests}, indent=1))
        fsync_path(staged)
        move_into_place(staged, self._list_file(key))

    def _list_file(self, key: Key) -> Path:
        return self.root / f"{key.name}.json"

    def _locked(self, key: Key) -> AbstractContextManager[None]:
        return locked(self.root.parent / LOCKS / f"timing-{key.name}")

    def _subfolder(self, name: str) -> Path:
        make_folder(self.root.parent / name)
        return self.root.parent / name


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a small file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
