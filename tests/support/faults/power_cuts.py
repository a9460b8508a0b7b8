"""Cut the power at any moment of a scenario's operation, and see what the next process makes of what is on the disk.

`python -m tests.support.faults.power_cuts SCENARIO FOLDER STATES SEED`. The operation is recorded once, with what was
done before it; a model of the disk draws the states that a power cut may leave. Prints one JSON document: how many
states, and what was wrong. The same seed draws the same cuts and losses again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from plansmith.errors import PlansmithError
from plansmith.triton.repository.repository import ModelRepository

from .disk.boundaries import Boundaries
from .disk.model import Disk, record
from .kill_rounds import act_until_killed, flush_nothing, in_child
from .packages import MODEL
from .scenarios import CUT_SCENARIOS, Release, Scenario

ROOT = Path(__file__).parents[3]
INPUTS = "package-"
BEGIN, END = "begin", "end"

_RECORDED = "recorded"
_AFTER_THE_END = 0.2
"""The share of the states in which the operation had returned."""
_MOST_TORN_RECORDS = 5
_STATES_OF_A_RECORD = 40


def record_scenario(name: str, folder: Path, kill: int = 0) -> Disk:
    """Record a scenario below a folder, and require that the record explains every byte of what is there then.

    Args:
        name: the scenario's.
        folder: takes the record, and the scenario's folder.
        kill: the call at which a process was killed that did the same just before; 0 for none.
    """
    place, trace = folder / "place", folder / "trace"
    arguments = [_RECORDED, name, str(folder), str(kill)]
    record([sys.executable, "-m", "tests.support.faults.power_cuts", *arguments], trace, ROOT)
    disk = Disk(place, INPUTS)
    disk.replay(trace)
    disk.write(folder / "now", disk.moment)
    assert _tree(folder / "now") == _tree(place), "not all that was written was recorded"
    return disk


def record_after_kill(name: str, folder: Path, calls: int, chance: Random) -> tuple[int, Disk]:
    """Record a scenario that goes on after a kill at some call; which one, and the record.

    Where several threads write, a kill at one's call may hit another's in the middle: strace does not tell whether that
    was done, and such a record is drawn again.
    """
    for _ in range(_MOST_TORN_RECORDS):
        kill = chance.randint(1, calls)
        with suppress(AssertionError):
            return kill, record_scenario(name, folder, kill)
        shutil.rmtree(folder)
        folder.mkdir()
    kill = chance.randint(1, calls)
    return kill, record_scenario(name, folder, kill)


def act_recorded(name: str, folder: Path, kill: int) -> None:
    """The operation, for strace, between two marks; arguments as for `record_scenario`."""
    place = folder / "place"
    place.mkdir()
    CUT_SCENARIOS[name].prepare(place)
    if kill:
        in_child(partial(act_until_killed, CUT_SCENARIOS[name], place, Boundaries(folder / "calls", kill, "after")))
    (folder / BEGIN).mkdir()
    CUT_SCENARIOS[name].act(place)
    (folder / END).mkdir()


def cut(scenario: Scenario, disk: Disk, place: Path, seed: int) -> list[str]:
    """One state, drawn by a seed; what is wrong with it, a line each."""
    chance = Random(seed)
    begin, end = disk.marks[BEGIN], disk.marks[END]
    moment = end if chance.random() < _AFTER_THE_END else chance.randint(begin, end)
    shutil.rmtree(place)
    lost = disk.write_cut(place, moment, chance)
    for package in (place.parent / "now").glob(f"{INPUTS}*"):
        shutil.rmtree(place / package.name, ignore_errors=True)
        shutil.copytree(package, place / package.name)
    problems = [] if moment < end else [f"though it had returned: {p}" for p in _attempt(scenario.undone, place)]
    problems += _attempt(scenario.torn, place, errors=(PlansmithError,))
    if isinstance(scenario, Release) and chance.random() < 0.3:
        disk.write(place.with_name("seen"), moment)
        shown = {*ModelRepository(place.with_name("seen") / "repository").views(MODEL).shown()}
        shutil.rmtree(place.with_name("seen"))
        problems += _attempt(lambda folder: scenario.reused(folder, shown), place)
    else:
        problems += [f"after doing it again: {p}" for p in _attempt(lambda folder: _again(scenario, folder), place)]
    where = f"cut after {moment} of {begin} to {end}"
    return [f"{where}: {p}; lost: {lost}" for p in problems]


def _again(scenario: Scenario, place: Path) -> list[str]:
    scenario.act(place)
    return scenario.unfinished(place)


def _attempt(look: Callable[[Path], list[str]], place: Path, errors: tuple[type[Exception], ...] = ()) -> list[str]:
    """What a look finds; an exception is a problem, too, but for those of some classes."""
    try:
        return look(place)
    except errors:
        return []
    except Exception as error:  # noqa: BLE001 - whatever a reader or the next writer meets
        return [f"{type(error).__name__}: {error}, {traceback.extract_tb(error.__traceback__)[-1]}"]


def _tree(folder: Path) -> dict[str, object]:
    """Every file, folder and link below a folder, but what SQLite maps into memory, which no call writes."""
    paths = [path for path in folder.rglob("*") if not path.name.endswith("-shm")]
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in paths
    }


def main(name: str, folder: Path, states: int, seed: int) -> None:
    """Some states of a scenario, from a seed on; their number and what was wrong as JSON."""
    flush, scenario = os.fsync, CUT_SCENARIOS[name]
    problems: list[str] = []
    calls = 0
    for number in range(0, states, _STATES_OF_A_RECORD):
        place = folder / str(number)
        place.mkdir()
        # Every other record is that of a process that goes on after a killed one.
        resumes = number // _STATES_OF_A_RECORD % 2 == 1
        os.fsync = flush
        chance = Random(seed + number)
        kill, disk = record_after_kill(name, place, calls, chance) if resumes else (0, record_scenario(name, place))
        os.fsync = flush_nothing
        calls = calls or disk.marks[END] - disk.marks[BEGIN]
        for state in range(number, min(number + _STATES_OF_A_RECORD, states)):
            found = cut(scenario, disk, place / "place", seed + state)
            problems += [f"seed {seed}, state {state}, {f'killed at call {kill}, ' if kill else ''}{p}" for p in found]
        shutil.rmtree(place)
    sys.stdout.write(json.dumps({"states": states, "calls": calls, "problems": problems}))


if __name__ == "__main__":
    if sys.argv[1] == _RECORDED:
        act_recorded(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main(sys.argv[1], Path(sys.argv[2]).resolve(), int(sys.argv[3]), int(sys.argv[4]))
