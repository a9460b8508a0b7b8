"""Crowds of publisher processes, ordered by tests; `publishers.py` is what runs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.records.destination import Location
from plansmith.records.release import MANIFEST_FILE

from .releases import MODEL, PackagedRelease, make_release

ROOT = Path(__file__).parents[3]


def small_release(root: Path, answer: int, bulk_bytes: int = 0) -> PackagedRelease:
    """A release of a few files only: what a store does with each is the same."""
    release = make_release(root, answer, bulk_bytes=bulk_bytes)
    for path in release.folder.iterdir():
        if path.is_file() and path.name not in {"config.pbtxt", MANIFEST_FILE}:
            path.unlink()
    return release


@dataclass(frozen=True)
class Outcome:
    """What came of a crowd: what each publisher was told (None where it was killed), and what the reader saw."""

    answers: list[dict[str, Any] | None]
    reader: dict[str, Any]

    @property
    def versions(self) -> list[int]:
        """The numbers that publishers were told, sorted; a KeyError shows what failed."""
        return sorted(answer["version"] for answer in self.answers if answer is not None)


class Publishers:
    """The process that forks publishers.

    Args:
        process: it, just started.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def publish(
        self, place: Location, releases: Sequence[PackagedRelease], begun: Callable[[list[int]], None] = lambda _: None
    ) -> Outcome:
        """Have each release published by a process of its own, at the same moment.

        Args:
            place: where.
            releases: of one model.
            begun: told of the ids of the processes before they do anything.
        """
        order = {
            "place": place.model_dump(mode="json"),
            "environment": {name: value for name, value in os.environ.items() if name.startswith("AWS_")},
            "model": MODEL,
            "releases": [[str(release.folder), release.manifest.model_dump_json()] for release in releases],
            "reader": len(releases) > 1,
        }
        self._say(json.dumps(order))
        begun(self._answer())
        self._say("")
        answers = self._answer()
        return Outcome(answers[: len(releases)], answers[-1] if len(releases) > 1 else {})

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the publishers' process died"
        return json.loads(line)


@contextmanager
def publishers() -> Iterator[Publishers]:
    """A process that publishes, until this is left."""
    command = [sys.executable, "-m", "tests.support.stores.publishers"]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with subprocess.Popen(
        command, env=surroundings, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Publishers(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
