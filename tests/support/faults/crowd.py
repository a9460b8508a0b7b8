"""Sixteen processes that publish at the same moment, and one that reads all the while.

`python -m tests.support.faults.crowd WHAT FOLDER ROUNDS`; prints what came of every round as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from plansmith.errors import RepositoryError

from .packages import MODEL, TARGET, draft_of, publish, write_package
from .wholeness import release_numbers, repository_problems, shown_versions, staging_problems, store_of

PROCESSES = 16
LONGEST_SECONDS = 300

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Publisher:
    """What one of the processes publishes."""

    content: str
    model: str = MODEL
    target: str = TARGET


@dataclass(frozen=True)
class Outcome:
    """One round: a version number or an error's name per publisher, and what was found on the disk."""

    answers: list[int | str]
    versions: tuple[int, ...]
    shown: tuple[int, ...]
    models: list[str]
    reads: int
    problems: list[str]


PUBLISHERS = {
    "different content": [Publisher(f"content {n}") for n in range(PROCESSES)],
    "the same content": [Publisher("one content") for _ in range(PROCESSES)],
    "two targets": [
        Publisher("one content", model=f"tiny-{target}", target=target) for target in (TARGET, "another-target")
    ],
}


def round_of(publishers: Sequence[Publisher], folder: Path) -> Outcome:
    """Let all of them publish into one fresh repository."""
    root = folder / "repository"
    start, done = _FORK.Barrier(len(publishers) + 1), _FORK.Event()
    answer_queue, reader_queue = _FORK.SimpleQueue(), _FORK.SimpleQueue()
    reader = _FORK.Process(target=lambda: reader_queue.put(read_until(done, start, root / MODEL)))
    crowd = [
        _FORK.Process(target=lambda n=n, p=p: answer_queue.put((n, _publish(p, folder / str(n), root, start))))
        for n, p in enumerate(publishers)
    ]
    for process in (reader, *crowd):
        process.start()
    answers = dict(answer_queue.get() for _ in crowd)
    done.set()
    reads, problems = reader_queue.get()
    for process in (reader, *crowd):
        process.join(LONGEST_SECONDS)
    return Outcome(
        answers=[answers[n] for n in range(len(publishers))],
        versions=release_numbers(root, MODEL),
        shown=shown_versions(root, MODEL) if (root / MODEL).exists() else (),
        models=sorted(path.name for path in root.iterdir()),
        reads=reads,
        problems=problems + repository_problems(root) + staging_problems(store_of(root) / "staging"),
    )


def read_until(done: Event, start: Barrier, link: Path) -> tuple[int, list[str]]:
    """Read a model as Triton does, over and over: how many views were read, and what was broken in one.

    A view that was exchanged meanwhile counts neither as read nor as broken.
    """
    reads, problems = 0, []
    start.wait(LONGEST_SECONDS)
    while not done.is_set():
        view = link.readlink() if link.is_symlink() else None
        broken = _broken(link)
        if view is not None and link.readlink() == view:
            reads += 1
            problems += broken
    return reads, problems


def _broken(link: Path) -> list[str]:
    try:
        content = (link / "config.pbtxt").read_text().removeprefix("config.pbtxt of ")
        versions = sorted((p for p in link.iterdir() if p.is_dir()), key=lambda p: int(p.name))
        texts = [(version / "model.onnx").read_text() for version in versions]
        whole = all((version / "weights" / "model.onnx.data").is_file() for version in versions)
    except OSError as error:
        return [f"the reader found no {error.filename}"]
    fits = bool(texts) and texts[-1].endswith(f" of {content}")
    return [] if fits and whole else [f"the reader found {content!r} with {texts}"]


def _publish(publisher: Publisher, folder: Path, root: Path, start: Barrier) -> int | str:
    package = write_package(folder, publisher.content)
    draft = draft_of(package, model=publisher.model, target=publisher.target)
    try:
        start.wait(LONGEST_SECONDS)
        return publish(root, package, draft).version
    except RepositoryError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - the test shows what went wrong
        return repr(error)


def main(scenario: str, folder: Path, rounds: int) -> None:
    """The outcomes of some rounds as a JSON list."""
    outcomes = [round_of(PUBLISHERS[scenario], folder / str(n)) for n in range(rounds)]
    sys.stdout.write(json.dumps([asdict(outcome) for outcome in outcomes]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
