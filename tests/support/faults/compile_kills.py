"""Kill whole compiles at random moments, and see that the next one goes on from what they finished.

`python -m tests.support.faults.compile_kills FOLDER ROUNDS SEED`; prints what came of every round as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from .compiles import NAME, cached_steps, finish, start_compile, write_tiny_bert
from .ends import still_running
from .wholeness import cache_problems, release_numbers, repository_problems, shown_versions, staging_problems, store_of

STEPS = ("fetch", "export", "sample", "lower", "compile", "validate", "package", "publish")

# A guess for the first round; what the last compile needed for the later ones.
FIRST_SECONDS = dict.fromkeys(STEPS, 0.1) | {"fetch": 4.0, "export": 2.0, "sample": 2.0, "lower": 1.0}


@dataclass(frozen=True)
class Outcome:
    """One round: when the compile was killed, which steps it had finished, and what was wrong."""

    killed_in: str
    after_seconds: float
    children: int
    finished: list[str]
    problems: list[str]


class Rounds:
    """Compiles of one model into one folder.

    Args:
        folder: for the model and the artifacts.
        chance: decides where to start and when to kill.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._model = write_tiny_bert(folder / "model")
        self._artifacts = folder / "artifacts"
        self._chance = chance
        self._seconds = FIRST_SECONDS

    def run_round(self, first: str, steps: Sequence[str]) -> Outcome:
        """Forget a step and those after it, kill a compile in one of some steps, and compile again."""
        self._forget(STEPS[STEPS.index(first) :])
        step = self._chance.choice(steps)
        seconds = self._chance.uniform(0, self._seconds[step])
        finished, children, survivors = self._kill(step, seconds)
        problems = [f"survived its parent: {child}" for child in survivors] + self._problems()
        again = finish(self._start())
        cached = cached_steps(again)
        problems += [f"{name} was finished and is done again" for name in finished if not cached[name]]
        problems += [f"after doing it again: {problem}" for problem in self._problems() + self._leftovers()]
        self._seconds = self._seconds | {s["name"]: s["seconds"] for s in again["steps"] if not s["cached"]}
        return Outcome(step, seconds, children, finished, problems)

    def _start(self) -> subprocess.Popen[str]:
        return start_compile(self._model, self._artifacts, "--precision", "int8")

    def _forget(self, steps: Sequence[str]) -> None:
        for step in steps:
            shutil.rmtree(self._artifacts / "cache" / step, ignore_errors=True)
        for repository in (self._artifacts / "repository", store_of(self._artifacts / "repository")):
            shutil.rmtree(repository, ignore_errors=True)

    def _kill(self, step: str, seconds: float) -> tuple[list[str], int, list[str]]:
        """Kill a compile some seconds after a step began: what was finished, its children, which live on."""
        with self._start() as process:
            assert process.stderr is not None
            finished: list[str] = []
            while STEPS[len(finished)] != step:
                finished += _finished_by(process.stderr.readline())
            time.sleep(seconds)
            children = _stop_and_kill(process)
            finished += [name for line in process.stderr for name in _finished_by(line)]
        return finished, len(children), still_running(children)

    def _problems(self) -> list[str]:
        return cache_problems(self._artifacts / "cache") + repository_problems(self._artifacts / "repository")

    def _leftovers(self) -> list[str]:
        root = self._artifacts / "repository"
        left = staging_problems(self._artifacts / "cache" / "staging") + staging_problems(store_of(root) / "staging")
        versions = (release_numbers(root, NAME), shown_versions(root, NAME))
        return left + ([] if versions == ((1,), (1,)) else [f"versions and view are {versions}"])


def _finished_by(line: str) -> list[str]:
    """The step that a line of progress tells of; notices tell of none."""
    return [] if line.startswith("plansmith: ") else [line.split(maxsplit=1)[0]]


def _stop_and_kill(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Kill a process; the children that it had at that moment."""
    process.send_signal(signal.SIGSTOP)
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    finally:
        process.kill()


def main(folder: Path, rounds: int, seed: str) -> None:
    """The outcomes as a JSON list. Every tenth round does the slow steps too, and is killed in one of them."""
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "temporary")
    Path(tempfile.tempdir).mkdir()
    compiles = Rounds(folder, random.Random(seed))
    slow, quick = STEPS[:3], STEPS[3:]
    outcomes = [
        compiles.run_round(slow[0], slow) if n % 10 == 0 else compiles.run_round(quick[0], quick) for n in range(rounds)
    ]
    sys.stdout.write(json.dumps([asdict(outcome) for outcome in outcomes]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
