"""Contents on their way into a store: what is there is not sent, and the rest several files at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from plansmith.errors import RepositoryError
from plansmith.records.model import FileEntry
from plansmith.records.release import Manifest
from plansmith.stores.backend.object_store import Moved, Objects, untold
from plansmith.stores.layout import GRACE_SECONDS, object_key
from plansmith.stores.reader import in_parallel
from plansmith.system.aws.s3.objects import Held
from plansmith.system.digest import Digester

# A file of this size keeps a connection busy by itself, or several with its parts: such go one after the other.
_LARGE_BYTES = 8 << 20
_ROUNDS = 4


@dataclass(frozen=True)
class TransferProgress:
    """Told how contents are sent.

    Args:
        begins: how many bytes are about to be sent.
        moved: how many more are on their way; called by several threads.
    """

    begins: Callable[[int], None] = untold
    moved: Moved = untold


NOBODY = TransferProgress()
"""Does not want to know."""


def files_of(folder: Path, manifest: Manifest, digester: Digester) -> tuple[FileEntry, ...]:
    """The files of a release.

    Those that the manifest lists were hashed when it was made, and are compared when they are sent: they are not read
    for this, the others are.

    Raises:
        RepositoryError: one that the manifest lists is missing, or has another size.
    """
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for file in manifest.files:
        path = found.pop(file.path, None)
        if path is None or path.stat().st_size != file.bytes:
            raise RepositoryError(
                f"{folder / file.path} {'is missing' if path is None else 'has changed'} since the release was made",
                remedy="restore it, or compile the model again",
            )
    return tuple(sorted((*manifest.files, *digester.entries(folder, [*found.values()])), key=lambda file: file.path))


def missing_contents(objects: Objects, files: Sequence[FileEntry]) -> list[FileEntry]:
    """The files whose contents are not there; one for each content."""
    return [file for file, held in _looked_up(objects, files) if held is None]


def send_contents(
    objects: Objects,
    folder: Path,
    files: Sequence[FileEntry],
    observer: TransferProgress = NOBODY,
    *,
    again: bool = False,
) -> int:
    """Bring the contents of files in, and see at the end that all are there and young; how many bytes were sent.

    Parts of a file that an earlier attempt has brought there are not sent, and do not count.

    Args:
        objects: the store's.
        folder: holds the files.
        files: by their names in it.
        observer: told how it goes.
        again: send what is there, too.

    Raises:
        RepositoryError: a file is not what its digest says, or contents go while others come.
    """
    tally = _Tally(observer.moved)
    kept: set[str] = set()
    for _ in range(_ROUNDS):
        found = _looked_up(objects, files)
        missing = [file for file, held in found if again or held is None]
        old = _old(objects, [held for _, held in found if held is not None and held.key not in kept])
        if not missing and not old:
            return tally.bytes
        in_parallel(lambda key: _keep(objects, key), old)
        kept.update(old)
        observer.begins(sum(file.bytes for file in missing))
        _send(objects, folder, missing, tally)
        again = False
    raise RepositoryError(
        f"contents that were sent to {objects.place} were gone again when the last of them was there",
        remedy="see who removes them, and run the same command again",
        transient=True,
    )


class _Tally:
    """Adds up what goes, of several threads, and passes it on."""

    def __init__(self, moved: Moved) -> None:
        self.bytes = 0
        self._moved = moved
        self._lock = Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self.bytes += count
        self._moved(count)


def _looked_up(objects: Objects, files: Sequence[FileEntry]) -> list[tuple[FileEntry, Held | None]]:
    """For each content one of the files that have it, and what is there of it; None for what has not its size."""

    def held(file: FileEntry) -> Held | None:
        found = objects.find(object_key(file.sha256))
        return found if found is not None and found.bytes == file.bytes else None

    distinct = list({file.sha256: file for file in files}.values())
    return list(zip(distinct, in_parallel(held, distinct), strict=True))


def _old(objects: Objects, held: Sequence[Held]) -> list[str]:
    """The keys of contents that might be taken for left over before the list that names them is written."""
    oldest = objects.now() - GRACE_SECONDS / 2 if held else 0.0
    return [one.key for one in held if one.changed < oldest]


def _keep(objects: Objects, key: str) -> None:
    """Give a content a new age; one that went a moment ago is found missing when it is next looked for."""
    try:
        objects.copy(key, key)
    except RepositoryError:
        if objects.find(key) is not None:
            raise


def _send(objects: Objects, folder: Path, files: Sequence[FileEntry], moved: Moved) -> None:
    def send(file: FileEntry) -> None:
        objects.send(folder / file.path, object_key(file.sha256), file.sha256, moved)

    for file in files:
        if file.bytes >= _LARGE_BYTES:
            send(file)
    in_parallel(send, [file for file in files if file.bytes < _LARGE_BYTES])
