"""Processes that publish into one store at the same moment, and one that reads it all the while.

`python -m tests.support.stores.publishers`, at the root of the repository, takes orders from its input, one JSON object
in a line, and has each carried out by processes of its own, which it forks: what it takes to import plansmith and to
make a client is spent once. It answers with their ids, waits for an empty line, and answers with what came of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from plansmith.errors import RepositoryError
from plansmith.records.destination import Location
from plansmith.records.release import Manifest
from plansmith.stores.backend import s3_transfer
from plansmith.stores.backend.s3 import S3Objects
from plansmith.stores.layout import object_key
from plansmith.stores.publication import publish_release
from plansmith.stores.records import StoredVersion
from plansmith.stores.store import Store
from plansmith.system.digest import Digester

PART_BYTES = 64 << 10
"""How large the parts of uploads are in these processes."""

_FORK = multiprocessing.get_context("fork")


def serve() -> None:
    """Carry out orders until there are no more."""
    while line := sys.stdin.readline():
        with tempfile.TemporaryDirectory() as folder:
            _carry_out(json.loads(line), Path(folder))


def _carry_out(order: dict[str, Any], folder: Path) -> None:
    os.environ.update(order["environment"])
    s3_transfer._SMALLEST_PART_BYTES = PART_BYTES
    objects = S3Objects(Location.model_validate(order["place"]), Path())
    assert objects.bucket.client  # made here, where it has sent nothing; each process goes on with a copy
    store = Store(objects)
    start, done = _FORK.Event(), _FORK.Event()

    def begin(number: int, work: Callable[[], Any]) -> ForkProcess:
        process = _FORK.Process(target=_report, args=(folder / str(number), start, work))
        process.start()
        return process

    crowd = [
        begin(number, lambda release=release: _publish(store, *release))  # type: ignore[misc]
        for number, release in enumerate(order["releases"])
    ]
    readers = [begin(len(crowd), lambda: _watch(done, Watch(store, order["model"])))] if order["reader"] else []
    _say([process.pid for process in crowd])
    assert sys.stdin.readline() == "\n"
    start.set()
    for process in crowd:
        process.join()
    done.set()
    for process in readers:
        process.join()
    _say([json.loads(path.read_text()) if path.exists() else None for path in _answers(folder, crowd + readers)])


def _answers(folder: Path, processes: list[ForkProcess]) -> list[Path]:
    return [folder / str(number) for number in range(len(processes))]


def _say(words: list[Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _report(path: Path, start: Event, work: Callable[[], Any]) -> None:
    """Do some work when all are there, and write down what came of it."""
    start.wait()
    try:
        result = work()
    except Exception:  # noqa: BLE001 - the test shows what went wrong
        result = {"error": traceback.format_exc()}
    path.write_text(json.dumps(result))


def _publish(store: Store, folder: str, manifest: str) -> dict[str, Any]:
    digester = Digester(Path(folder).parent / "no-memo", read_only=True)
    publication = publish_release(store, Path(folder), Manifest.model_validate_json(manifest), digester)
    return {"version": publication.version, "digest": publication.digest, "sent_bytes": publication.sent_bytes}


class Watch:
    """Reads a model over and over.

    Args:
        store: where it is.
        model: its name.

    Attributes:
        reads: how often it was there.
        entries: the versions that were seen, and their digests.
        problems: what was wrong, in words.
    """

    def __init__(self, store: Store, model: str) -> None:
        self.reads = 0
        self.entries: dict[int, str] = {}
        self.problems: list[str] = []
        self._store = store
        self._model = model

    def look(self) -> None:
        """Read it once: versions that are new whole, every byte of them."""
        catalogue = self._store.find_catalogue(self._model)
        if catalogue is None:
            self.problems += ["it is gone"] if self.entries else []
            return
        self.reads += 1
        numbers = {version.version: version.digest for version in catalogue.versions}
        for number, digest in self.entries.items():
            self.problems += [] if numbers.get(number) == digest else [f"version {number} was lost"]
        for alias, pointer in catalogue.aliases.items():
            self.problems += [] if pointer.version in numbers else [f"{alias} stands for {pointer.version}"]
        for version in catalogue.versions:
            if version.version not in self.entries:
                self.problems += self._broken(version)
        self.entries = numbers

    def _broken(self, version: StoredVersion) -> list[str]:
        """What is wrong with a version that can be seen."""
        objects = self._store.objects
        try:
            files = self._store.release(self._model, version).files
            wrong = [file.path for file in files if objects.sha256(object_key(file.sha256)) != file.sha256]
        except RepositoryError as error:
            return [f"version {version.version}: {error}"]
        return [f"version {version.version}: {path} is damaged" for path in wrong]


def _watch(done: Event, watch: Watch) -> dict[str, Any]:
    """Look without a pause, and once more at the end."""
    while not done.is_set():
        watch.look()
    watch.look()
    return {"reads": watch.reads, "versions": watch.entries, "problems": watch.problems}


if __name__ == "__main__":
    serve()
