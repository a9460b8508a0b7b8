"""Remote model files in a registry or bucket: listed and downloaded. The listing itself is not trusted."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from plansmith.errors import EnvironmentFault, SourceError

LIMIT_VARIABLE = "PLANSMITH_SOURCE_MAX_GB"
"""Names the most that one model may bring, in GB."""

MOST_FILES = 10_000
_MOST_GB = 64.0
_FREE_BYTES = 64 << 20
_MOST_SHOWN = 300

Progress = Callable[[str, float], None]
"""Told what is done, and which part of it from 0 to 1."""


@dataclass(frozen=True)
class RemoteFile:
    """Remote file of a model: its path relative to the model, and its size."""

    path: str
    bytes: int


class RemoteFiles(Protocol):
    """Remote files of one model."""

    def listed(self) -> tuple[RemoteFile, ...]:
        """Return all files, with plain relative paths.

        Raises:
            SourceError: there are none, too many, or one whose path leads elsewhere.
            EnvironmentFault: whoever has them does not answer.
        """
        ...

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield one file chunk by chunk; errors as for `listed`."""
        ...


def require_plain(path: str, of: str) -> None:
    """Require that a path in a listing stays within its folder.

    Raises:
        SourceError: it does not.
    """
    if safe_path(path) is None:
        raise SourceError(
            f"{of} has a file called {path[:200]!r}, which leads out of its folder",
            remedy="do not use this model: whoever made it meant harm, or the store is damaged",
        )


def too_many(of: str) -> SourceError:
    """Return the error for an endless listing."""
    return SourceError(
        f"{of} has more than {MOST_FILES} files or folders", remedy="log the model alone, without checkpoints and data"
    )


def read_small(files: RemoteFiles, file: RemoteFile, most: int, of: str) -> bytes:
    """Read the content of a small file.

    Raises:
        SourceError: it is larger.
    """
    content = bytearray()
    for piece in files.pieces(file.path):
        content += piece
        if len(content) > most:
            raise SourceError(f"{file.path} of {of} is larger than any such file", remedy="log the model again")
    return bytes(content)


def download(
    files: RemoteFiles, files_by_path: Mapping[str, RemoteFile], folder: Path, *, of: str, progress: Progress
) -> None:
    """Download files; each must have its announced size.

    Args:
        files: of the model.
        files_by_path: by the path below the folder that each gets.
        folder: empty, and private to the caller.
        of: the model, for errors.
        progress: told how far it is.

    Raises:
        SourceError: they are larger than is allowed, or than they were said to be.
        EnvironmentFault: there is no room, or the line broke.
    """
    total = sum(file.bytes for file in files_by_path.values())
    require_space(total, folder, of)
    done = 0
    for name, file in files_by_path.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        left = file.bytes
        with path.open("xb") as stream:
            for piece in files.pieces(file.path):
                left -= len(piece)
                if left < 0:
                    raise SourceError(
                        f"{file.path} of {of} is larger than the {file.bytes} bytes that were announced",
                        remedy="run it again; if it stays so, log the model again",
                    )
                stream.write(piece)
                done += len(piece)
                progress(f"downloading, {format_bytes(done)} of {format_bytes(total)}", done / max(total, 1))
        if left:
            raise EnvironmentFault(
                f"{file.path} of {of} broke off {format_bytes(left)} before its end", remedy="try again", transient=True
            )


def most_bytes() -> int:
    """Return the maximum download size of one model.

    Raises:
        EnvironmentFault: the variable holds no number.
    """
    setting = os.environ.get(LIMIT_VARIABLE, "")
    try:
        return int((float(setting) if setting else _MOST_GB) * 1e9)
    except (ValueError, OverflowError) as error:
        raise EnvironmentFault(
            f"{LIMIT_VARIABLE} is {setting!r}, which is no number", remedy=f"export {LIMIT_VARIABLE}={_MOST_GB:g}"
        ) from error


def require_space(total: int, folder: Path, of: str, *, written: int = 0) -> None:
    """Require that files are within the size limit and fit on the disk.

    Args:
        total: bytes of all of them.
        folder: where they go.
        of: the model, for errors.
        written: how many of the bytes are in the folder already.

    Raises:
        SourceError: they are larger than is allowed.
        EnvironmentFault: there is no room.
    """
    if total > most_bytes():
        raise SourceError(
            f"{of} has {format_bytes(total)} of files, more than the {format_bytes(most_bytes())} that one model may"
            " bring",
            remedy=f"export {LIMIT_VARIABLE}={math.ceil(total / 1e9)} if it is to be that large",
        )
    free = shutil.disk_usage(folder).free
    if total - written + _FREE_BYTES > free:
        raise EnvironmentFault(
            f"{of} has {format_bytes(total)} of files, and {format_bytes(free)} are free where the cache lies",
            remedy="free some space, or choose another --artifacts folder",
        )


def format_bytes(size: int) -> str:
    """Format a size with three digits and its unit."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def printable(text: str) -> str:
    """Escape untrusted text for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_MOST_SHOWN]


def is_name(part: str) -> bool:
    """Whether a path component is a plain name that leads nowhere else, on any machine."""
    return (
        part not in {"", ".", ".."} and part.isprintable() and not set(part) & {"/", "\\"} and len(part.encode()) <= 255
    )


def safe_path(path: str) -> PurePosixPath | None:
    """Return a relative path if all components are plain names; otherwise None."""
    return PurePosixPath(path) if path and all(is_name(part) for part in path.split("/")) else None
