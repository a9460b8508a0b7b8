"""Processes that publish into one store at the same moment, and one that reads it all the while.

`python -m tests.stores.publishers`, at the root of the repository, takes orders from its input, one JSON object in a
line, and has each carried out by processes of its own, which it forks: what it takes to import plansmith and to make a
client is spent once. It answers with their ids, waits for an empty line, and answers with what came of them.
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

from plansmith.destinations import Place
from plansmith.digest import Digester
from plansmith.errors import RepositoryError
from plansmith.stores.layout import object_key
from plansmith.stores.publication import publish_release
from plansmith.stores.s3 import S3Objects
from plansmith.stores.store import Store
from plansmith.triton.repository import ModelRepository

_FORK = multiprocessing.get_context("fork")


def serve() -> None:
    """Carry out orders until there are no more."""
    while line := sys.stdin.readline():
        with tempfile.TemporaryDirectory() as folder:
            _carry_out(json.loads(line), Path(folder))


def _carry_out(order: dict[str, Any], folder: Path) -> None:
    os.environ.update(order["environment"])
    objects = S3Objects(Place.model_validate(order["place"]), Path())
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
    readers = [begin(len(crowd), lambda: read_until(done, store, order["model"]))] if order["reader"] else []
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
        said = work()
    except Exception:  # noqa: BLE001 - the test shows what went wrong
        said = {"error": traceback.format_exc()}
    path.write_text(json.dumps(said))


def _publish(store: Store, root: str, model: str, version: int) -> dict[str, Any]:
    repository = ModelRepository(Path(root))
    digester = Digester(Path(root).parent / "memo", read_only=True)
    folder, manifest = repository.release(model, version), repository.manifest(model, version)
    made = publish_release(store, folder, manifest, digester)
    return {"version": made.version, "digest": made.digest, "sent_bytes": made.sent_bytes}


def read_until(done: Event, store: Store, model: str) -> dict[str, Any]:
    """Read a model over and over, and once more at the end: how often, the versions that were seen, and what was wrong.

    A version is looked at whole when it is first seen: every byte of it.
    """
    seen: dict[int, str] = {}
    problems: list[str] = []
    reads, last = 0, False
    while not last:
        last = done.is_set()
        catalogue = store.known(model)
        if catalogue is None:
            continue
        reads += 1
        numbers = {version.version: version.digest for version in catalogue.versions}
        problems += [f"version {number} was lost" for number, digest in seen.items() if numbers.get(number) != digest]
        for alias, pointer in catalogue.aliases.items():
            problems += [] if pointer.version in numbers else [f"{alias} stands for {pointer.version}, which is not"]
        for version in catalogue.versions:
            if version.version not in seen:
                seen[version.version] = version.digest
                problems += _broken(store, model, version.version)
    return {"reads": reads, "versions": seen, "problems": problems}


def _broken(store: Store, model: str, number: int) -> list[str]:
    """What is wrong with a version that can be seen."""
    _, version = store.find(f"{model}@{number}")
    try:
        files = store.release(model, version).files
        wrong = [file.path for file in files if store.objects.sha256(object_key(file.sha256)) != file.sha256]
    except RepositoryError as error:
        return [f"version {number}: {error}"]
    return [f"version {number}: {path} is damaged" for path in wrong]


if __name__ == "__main__":
    serve()
