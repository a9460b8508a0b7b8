"""Kill a scenario's operation just before and just after each call that changes the disk.

`python -m tests.support.faults.kill_rounds SCENARIO FOLDER`. One warm process forks a child for every
round, so a round costs milliseconds. Prints one JSON document: how many rounds, and what was wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, get_args

from .disk.boundaries import Boundaries, When
from .scenarios import SCENARIOS, Scenario

UNREACHED = 4


def rounds(scenario: Scenario, folder: Path) -> Iterator[list[str]]:
    """One round after the other: what was wrong in it. Ends when the kill did not reach the operation a few times.

    An operation with threads makes as many calls as its threads leave to each other, and so not always the same number.
    """
    for when in get_args(When):
        unreached = 0
        for number in count(1):
            place = folder / f"{when}-{number}"
            place.mkdir(parents=True)
            scenario.prepare(place)
            boundaries = Boundaries(folder / "trace", number, when)
            killed = in_child(partial(act_until_killed, scenario, place, boundaries))
            lines = boundaries.trace.read_text().splitlines()
            where = f"killed {when} call {number}, {lines[-1]}" if killed else "not killed"
            problems = scenario.torn(place)
            scenario.act(place)
            problems += [f"after doing it again: {p}" for p in scenario.unfinished(place)]
            shutil.rmtree(place)
            yield [f"{where}: {p}" for p in problems]
            unreached += not killed
            if unreached == UNREACHED:
                break


def in_child(work: Callable[[], None]) -> bool:
    """Run in a forked child; whether it was killed. Any other end than a kill or success is an error."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a forked child must not go on into its parent's code
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}, f"the operation failed with {status}"
    return status != 0


def act_until_killed(scenario: Scenario, place: Path, boundaries: Boundaries) -> None:
    """The operation, up to the call at which it is killed."""
    boundaries.arm()
    scenario.act(place)


def flush_nothing(fd: Any) -> None:
    """In place of fsync: a kill loses nothing that was written, and flushing would take most of the time."""
    del fd


def main(name: str, folder: Path) -> None:
    """All rounds of one scenario; the number of rounds and what was wrong as JSON."""
    os.fsync = flush_nothing
    results = list(rounds(SCENARIOS[name], folder))
    sys.stdout.write(json.dumps({"rounds": len(results), "problems": [p for problems in results for p in problems]}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
