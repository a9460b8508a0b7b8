"""Turns keep writers apart where the server does not: the bakery, its expiry, and what it is used for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from plansmith.records.model import Record
from plansmith.stores.backend.documents import change, new_token
from plansmith.stores.backend.object_store import Abilities, Objects
from plansmith.stores.backend.turns import MARGIN_SECONDS, SECONDS, Lapsed, alone, turn
from plansmith.stores.layout import TURNS
from plansmith.system.aws import bucket
from plansmith.system.aws.client import CONNECT_SECONDS

from ...support.stores.racy_folder import SAFE, UNSAFE, RacyFolder

NAME = "models/m.json"

# Takes the turn, says so, and does nothing about it any more.
_HOLDER = f"""
import sys, time
from pathlib import Path
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.turns import turn

with turn(FolderObjects(Path(sys.argv[1])), {NAME!r}, 1.5, 0.5):
    print("held", flush=True)
    time.sleep(600)
"""


class Count(Record):
    """How often it was changed."""

    count: int
    token: str


def count_up(objects: Objects, times: int) -> None:
    for _ in range(times):
        change(objects, "count.json", Count, lambda old: Count(count=(old.count if old else 0) + 1, token=new_token()))


def in_threads(*work: Callable[[], None]) -> None:
    """Do things at once; what fails in one fails the test."""
    failed: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert not any(thread.is_alive() for thread in threads)


def counted(folder: Path, abilities: Abilities, writers: int, times: int) -> int:
    """How many changes are there after several writers made some each, on a server that lets two of them win."""
    in_threads(*(lambda n=n: count_up(RacyFolder(folder, n, abilities), times) for n in range(writers)))
    document = RacyFolder(folder).read("count.json")
    assert document is not None
    return Count.model_validate_json(document.content).count


@pytest.mark.slow
def test_racing_server_loses_no_change(tmp_path: Path) -> None:
    """No change is lost on a server that looks and then writes."""
    assert counted(tmp_path, UNSAFE, writers=5, times=3) == 15


def test_racing_server_without_turns_loses(tmp_path: Path) -> None:
    """Without turns, such a server loses changes."""
    assert counted(tmp_path, SAFE, writers=5, times=3) < 15


@pytest.mark.slow
def test_turns_exclude_and_leave_nothing(tmp_path: Path) -> None:
    """Nobody is inside with another, and nothing is left."""
    inside: list[int] = []
    most: list[int] = []

    def enter(number: int) -> None:
        objects = RacyFolder(tmp_path, number)
        for _ in range(3):
            with turn(objects, NAME):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.002)
                inside.remove(number)

    in_threads(*(lambda n=n: enter(n) for n in range(5)))
    assert most == [1] * 15
    assert list(RacyFolder(tmp_path).below(TURNS)) == []


def test_other_names_are_others_turns(tmp_path: Path) -> None:
    objects = RacyFolder(tmp_path)
    with turn(objects, NAME), turn(objects, "models/other.json"):
        pass


def test_strict_server_needs_no_turns(tmp_path: Path) -> None:
    """A server that keeps writers apart needs no turns."""
    objects = RacyFolder(tmp_path, abilities=SAFE)
    with alone(objects, NAME) as require:
        require()
        assert list(objects.below("")) == []


def test_who_came_first_goes_first(tmp_path: Path) -> None:
    objects = RacyFolder(tmp_path)
    order: list[int] = []

    def enter(number: int) -> None:
        with turn(objects, NAME):
            order.append(number)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(4)]
    with turn(objects, NAME):
        for thread in threads:
            before = _tickets(objects)
            thread.start()
            _wait_until(partial(_has_changed, objects, before))
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3]


@pytest.mark.slow
def test_killed_owner_turn_runs_out(tmp_path: Path) -> None:
    """A killed owner's turn runs out."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    objects = RacyFolder(tmp_path)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        [left] = _tickets(objects)
        with turn(objects, NAME, 1.5, 0.5):
            assert left not in _tickets(objects)
            assert len(_tickets(objects)) == 1
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.slow
def test_long_waiter_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for longer is told once, for whom and for how long."""
    monkeypatch.setattr("plansmith.stores.backend.turns._SILENT_SECONDS", 0.1)
    objects = RacyFolder(tmp_path)
    objects.put(f"{TURNS}{NAME}/ticket-000000000001-dead", b"gpu-7, process 12\n")
    notices: list[str] = []
    with turn(objects, NAME, 1.4, 0.2, notices.append):
        pass
    assert notices == [
        f"{objects.place}: waiting for gpu-7, process 12, which writes there; if it died, this goes on in 1 s"
    ]
    assert caplog.messages == []
    objects.put(f"{TURNS}{NAME}/ticket-000000000001-dead", b"gpu-7, process 12\n")
    with turn(objects, NAME, 1.4, 0.2):
        pass
    assert caplog.messages == notices


@pytest.mark.slow
def test_dead_chooser_waited_for_briefly(tmp_path: Path) -> None:
    """A process that died while it chose is waited for, and then no more."""
    objects = RacyFolder(tmp_path)
    left = f"{TURNS}{NAME}/choosing-dead"
    objects.put(left, b"")
    with turn(objects, NAME, 1.0, 0.5):
        assert objects.find(left) is None


@pytest.mark.slow
def test_waiter_stays_in_row(tmp_path: Path) -> None:
    """A waiter stays in the row."""
    objects = RacyFolder(tmp_path)
    done = threading.Event()

    def enter() -> None:
        with turn(objects, NAME, 6, 1):
            done.set()

    waiting = threading.Thread(target=enter)
    with turn(objects, NAME, 60, 1):
        waiting.start()
        _wait_until(lambda: len(_tickets(objects)) == 2)
        ticket = _tickets(objects)[1]
        first = os.stat(tmp_path / ticket).st_mtime  # noqa: PTH116
        _wait_until(lambda: os.stat(tmp_path / ticket).st_mtime > first + 0.5)  # noqa: PTH116
        assert not done.is_set()
    waiting.join(60)
    assert done.is_set()


@pytest.mark.slow
def test_expired_turn_not_used(tmp_path: Path) -> None:
    """A turn that may have run out is not used."""
    with turn(RacyFolder(tmp_path), NAME, 2, 1) as mine:
        mine.require()
        time.sleep(1.25)
        with pytest.raises(Lapsed):
            mine.require()


@pytest.mark.slow
def test_late_change_made_from_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that took too long is made from what is there then."""
    monkeypatch.setattr("plansmith.stores.backend.turns.turn", lambda objects, name: turn(objects, name, 2, 1))
    objects = RacyFolder(tmp_path)
    counts: list[int | None] = []

    def changed(old: Count | None) -> Count:
        counts.append(old.count if old else None)
        if len(counts) == 1:
            time.sleep(1.25)
            count_up(RacyFolder(tmp_path), 1)
        return Count(count=(old.count if old else 0) + 1, token=new_token())

    assert change(objects, "count.json", Count, changed).count == 2
    assert counts == [None, 1]


@pytest.mark.slow
def test_slow_chooser_chooses_again(tmp_path: Path) -> None:
    """A process that chooses for too long chooses again."""
    objects = RacyFolder(tmp_path)
    written: list[str] = []

    def before_write(key: str) -> None:
        written.append(key)
        if len(written) == 2:
            time.sleep(1.25)

    objects.before_write = before_write
    with turn(objects, NAME, 2, 1):
        assert ["/choosing-" in key for key in written] == [True, False, True, False]
        assert _tickets(objects) == [written[3]]


def test_turn_given_up_before_late_write() -> None:
    """A turn is given up before a write that began in it could still land."""
    # Standard mode waits at most 20 s before each of the retries: docs.aws.amazon.com/sdkref, "Retry behavior".
    longest = bucket.ATTEMPTS * (CONNECT_SECONDS + bucket._READ_SECONDS) + (bucket.ATTEMPTS - 1) * 20
    assert longest < MARGIN_SECONDS < SECONDS


def _tickets(objects: Objects) -> list[str]:
    return [item.key for item in objects.below(f"{TURNS}{NAME}/ticket-")]


def _has_changed(objects: Objects, before: list[str]) -> bool:
    return _tickets(objects) != before


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
