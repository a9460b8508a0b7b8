"""Contents on their way from a store: some files at a time, each as its digest says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

from plansmith.errors import RepositoryError
from plansmith.records.model import FileEntry
from plansmith.stores.backend.object_store import Moved, Objects, untold
from plansmith.stores.layout import object_key, require_inside
from plansmith.system.files import link_or_copy

_AT_ONCE = 4


class Damaged(Exception):
    """The content of a file is lost, or not what it was."""

    def __init__(self, file: FileEntry, *, lost: bool) -> None:
        super().__init__(file.path)
        self.file = file
        self.lost = lost


class _Ended(Exception):
    """Nobody needs any more what is on its way."""


def fetch_files(
    objects: Objects,
    files: Sequence[FileEntry],
    folder: Path,
    moved: Moved = untold,
    here: Mapping[str, Path] | None = None,
) -> None:
    """Write files into a folder, each as its digest says.

    Args:
        objects: the store's.
        files: which; of equal ones a single content is fetched.
        folder: where; what is left there of a call that failed is for the caller to take away.
        moved: told of the bytes that come.
        here: finished files by SHA-256, which are linked instead.

    Raises:
        Damaged: the store has not got one of them as it was.
        RepositoryError: the store refuses, or a name leads out of the folder.
        EnvironmentFault: the store cannot be reached.
    """
    targets = {file.path: folder / require_inside(file.path, objects.place) for file in files}
    for target in targets.values():
        target.parent.mkdir(parents=True, exist_ok=True)
    sources = dict(here or {})
    missing = {file.sha256: file for file in files if file.sha256 not in sources}
    ended = Event()

    def told(count: int) -> None:
        if ended.is_set():
            raise _Ended
        moved(count)

    def fetch(file: FileEntry) -> None:
        fetch_file(objects, object_key(file.sha256), file, targets[file.path], told)

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
    """Write an object's content to a file, which is as its digest says.

    Raises:
        Damaged: it is lost, or not what it was.
        RepositoryError: the store refuses.
        EnvironmentFault: the store cannot be reached.
    """
    try:
        objects.fetch(key, target, file.sha256, moved)
    except RepositoryError as error:
        held = objects.find(key)
        if held is None or held.bytes != file.bytes or objects.sha256(key) != file.sha256:
            raise Damaged(file, lost=held is None) from error
        raise
    if target.stat().st_size != file.bytes:
        raise Damaged(file, lost=False)
