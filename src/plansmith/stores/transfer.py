"""Content transfers to and from a store: several files at a time, each verified by its digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

from plansmith.errors import RepositoryError
from plansmith.records.model import FileEntry
from plansmith.records.release import Manifest
from plansmith.stores.backend.documents import outwait_pruner
from plansmith.stores.backend.object_store import Moved, Objects, untold
from plansmith.stores.layout import GRACE_SECONDS, object_key, require_inside
from plansmith.stores.reader import in_parallel
from plansmith.system.aws.bucket import ObjectMetadata
from plansmith.system.digest import Digester
from plansmith.system.files import link_or_copy

# A file of this size keeps a connection busy by itself, or several with its parts: such go one after the other.
_LARGE_BYTES = 8 << 20
_ROUNDS = 4

_AT_ONCE = 4


@dataclass(frozen=True)
class TransferProgress:
    """Callbacks for upload progress.

    Args:
        begins: how many bytes are about to be sent.
        moved: how many more are on their way; called by several threads.
    """

    begins: Callable[[int], None] = untold
    moved: Moved = untold


NOBODY = TransferProgress()
"""Does not want to know."""


def files_of(folder: Path, manifest: Manifest, digester: Digester) -> tuple[FileEntry, ...]:
    """Return the files of a release.

    Those that the manifest lists were hashed when it was made, and are compared when they are sent: they are not read
    for this, the others are.

    Raises:
        RepositoryError: one that the manifest lists is missing, or has another size.
    """
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for file in manifest.files:
        path = paths.pop(file.path, None)
        if path is None or path.stat().st_size != file.bytes:
            raise RepositoryError(
                f"{folder / file.path} {'is missing' if path is None else 'has changed'} since the release was made",
                remedy="restore it, or compile the model again",
            )
    return tuple(sorted((*manifest.files, *digester.entries(folder, [*paths.values()])), key=lambda file: file.path))


def missing_contents(objects: Objects, files: Sequence[FileEntry]) -> list[FileEntry]:
    """Return the files whose contents are missing, one for each content."""
    return [file for file, item in _looked_up(objects, files) if item is None]


def send_contents(
    objects: Objects,
    folder: Path,
    files: Sequence[FileEntry],
    observer: TransferProgress = NOBODY,
    *,
    again: bool = False,
) -> int:
    """Upload the contents of files, verify at the end that all are present and recent, and return the bytes sent.

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
    renewed_keys: set[str] = set()
    for _ in range(_ROUNDS):
        pairs = _looked_up(objects, files)
        missing = [file for file, item in pairs if again or item is None]
        old = _old(objects, [item for _, item in pairs if item is not None and item.key not in renewed_keys])
        if not missing and not old:
            objects.flush(item.key for _, item in pairs if item is not None)
            return tally.bytes
        in_parallel(lambda key: _keep(objects, key), old)
        renewed_keys.update(old)
        if old:  # a pruner that looked at them before may be about to remove them
            outwait_pruner(objects)
        observer.begins(sum(file.bytes for file in missing))
        _send(objects, folder, missing, tally)
        again = False
    raise RepositoryError(
        f"contents that were sent to {objects.place} were gone again when the last of them was there",
        remedy="see who removes them, and run the same command again",
        transient=True,
    )


class _Tally:
    """Progress counter: adds up the bytes transferred by several threads and reports the total."""

    def __init__(self, moved: Moved) -> None:
        self.bytes = 0
        self._moved = moved
        self._lock = Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self.bytes += count
        self._moved(count)


def _looked_up(objects: Objects, files: Sequence[FileEntry]) -> list[tuple[FileEntry, ObjectMetadata | None]]:
    """Look up each distinct content: one file that has it and its stored metadata.

    None where it is absent or its size differs.
    """

    def find_object(file: FileEntry) -> ObjectMetadata | None:
        item = objects.find(object_key(file.sha256))
        return item if item is not None and item.bytes == file.bytes else None

    distinct = list({file.sha256: file for file in files}.values())
    return list(zip(distinct, in_parallel(find_object, distinct), strict=True))


def _old(objects: Objects, items: Sequence[ObjectMetadata]) -> list[str]:
    """Keys of contents so old that garbage collection might delete them before a list names them."""
    oldest = objects.now() - GRACE_SECONDS / 2 if items else 0.0
    return [item.key for item in items if item.changed < oldest]


def _keep(objects: Objects, key: str) -> None:
    """Refresh the age of a content; one deleted a moment ago is reported missing at its next lookup."""
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


class Damaged(Exception):
    """Damaged content: a file's content is lost or was changed."""

    def __init__(self, file: FileEntry, *, lost: bool) -> None:
        super().__init__(file.path)
        self.file = file
        self.lost = lost


class _Ended(Exception):
    """The transfer was abandoned: its result is no longer needed."""


def fetch_files(
    objects: Objects,
    files: Sequence[FileEntry],
    folder: Path,
    moved: Moved = untold,
    local_files: Mapping[str, Path] | None = None,
) -> None:
    """Download files into a folder, and verify their digests.

    Args:
        objects: the store's.
        files: which; of equal ones a single content is fetched.
        folder: where; what is left there of a call that failed is for the caller to take away.
        moved: told of the bytes that come.
        local_files: finished files by SHA-256, which are linked instead.

    Raises:
        Damaged: the store has not got one of them as it was.
        RepositoryError: the store refuses, or a name leads out of the folder.
        EnvironmentFault: the store cannot be reached.
    """
    targets = {file.path: folder / require_inside(file.path, objects.place) for file in files}
    for target in targets.values():
        target.parent.mkdir(parents=True, exist_ok=True)
    sources = dict(local_files or {})
    missing = {file.sha256: file for file in files if file.sha256 not in sources}
    ended = Event()

    def report(count: int) -> None:
        if ended.is_set():
            raise _Ended
        moved(count)

    def fetch(file: FileEntry) -> None:
        fetch_file(objects, object_key(file.sha256), file, targets[file.path], report)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            for done in as_completed([threads.submit(fetch, file) for file in missing.values()]):
                done.result()
        except BaseException:
            ended.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    sources |= {sha256: targets[file.path] for sha256, file in missing.items()}
    for file in files:
        if sources[file.sha256] != targets[file.path]:
            link_or_copy(sources[file.sha256], targets[file.path])


def fetch_file(objects: Objects, key: str, file: FileEntry, target: Path, moved: Moved = untold) -> None:
    """Download an object's content to a file, and verify its digest.

    Raises:
        Damaged: it is lost, or not what it was.
        RepositoryError: the store refuses.
        EnvironmentFault: the store cannot be reached.
    """
    try:
        objects.fetch(key, target, file.sha256, moved)
    except RepositoryError as error:
        item = objects.find(key)
        if item is None or item.bytes != file.bytes or objects.sha256(key) != file.sha256:
            raise Damaged(file, lost=item is None) from error
        raise
    if target.stat().st_size != file.bytes:
        raise Damaged(file, lost=False)
