"""Leases: one machine at a time does a piece of work, and a dead one's is done by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.stores.backend.documents import Hold, forget_leases, leased
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import lease_key
from plansmith.system.aws.bucket import Document

NAME = "compile/0123abcd"

# Takes the lease, says so, and does nothing about it any more.
_HOLDER = f"""
import sys, time
from pathlib import Path
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.documents import leased

with leased(FolderObjects(Path(sys.argv[1])), {NAME!r}, 3.0):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return FolderObjects(tmp_path / "store")


class Away(FolderObjects):
    """A folder that cannot be reached for a while."""

    is_away = False
    refused = 0

    def read(self, key: str) -> Document | None:
        if self.is_away:
            self.refused += 1
            raise EnvironmentFault("the store cannot be reached", remedy="wait")
        return super().read(key)


def test_second_waits_and_told_once(objects: Objects) -> None:
    """A second process waits until the first is done, and is told of it once."""
    order: list[str] = []
    messages: list[str] = []
    waits = threading.Event()

    def waiting(holder: str) -> None:
        messages.append(holder)
        waits.set()

    def second() -> None:
        with leased(objects, NAME, waiting=waiting):
            order.append("second")

    with leased(objects, NAME):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(60)
        time.sleep(0.3)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert len(messages) == 1
    assert f"process {os.getpid()}" in messages[0]


def test_lease_held_one_at_time(objects: Objects) -> None:
    """Of many, one at a time has the lease."""
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with leased(objects, NAME):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 6


def test_other_name_not_waited_for(objects: Objects) -> None:
    """What bears another name is not waited for."""
    with leased(objects, NAME), leased(objects, "compile/another", waiting=_refuse):
        pass


@pytest.mark.slow
def test_lease_lasts_as_long_as_work(objects: Objects) -> None:
    """A lease lasts as long as the work though that takes longer."""
    with leased(objects, NAME, 2.0):
        time.sleep(3)
        with pytest.raises(InterruptedError), leased(objects, NAME, 2.0, _refuse):
            pass


@pytest.mark.slow
def test_killed_holder_lease_taken_over(tmp_path: Path) -> None:
    """A killed holder's lease is taken over when it expires."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    messages: list[str] = []
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        with leased(FolderObjects(tmp_path), NAME, 3.0, messages.append):
            assert [f"process {holder.pid}" in message for message in messages] == [True]
    finally:
        holder.kill()
        holder.communicate()


def test_suspended_holder_disturbs_no_lease(objects: Objects) -> None:
    """A suspended holder neither takes its lease back nor ends another's."""
    suspended, next_one = (Hold(objects, lease_key(NAME), 0.2), Hold(objects, lease_key(NAME), 60))
    suspended.prolong()
    time.sleep(0.3)
    next_one.prolong()
    with pytest.raises(Exception, match=f"process {os.getpid()}"):
        suspended.prolong()
    suspended.give_back()
    with pytest.raises(InterruptedError), leased(objects, NAME, waiting=_refuse):
        pass


@pytest.mark.slow
def test_silent_store_costs_no_lease(tmp_path: Path) -> None:
    """A store that does not answer for a while costs no lease."""
    objects = Away(tmp_path)
    with leased(objects, NAME, 3.0):
        objects.is_away = True
        deadline = time.monotonic() + 60
        while not objects.refused and time.monotonic() < deadline:
            time.sleep(0.01)
        objects.is_away = False
        time.sleep(3.3)
        with pytest.raises(InterruptedError), leased(FolderObjects(tmp_path), NAME, 3.0, _refuse):
            pass
    assert objects.refused


def test_work_ending_in_silence_succeeds(tmp_path: Path) -> None:
    """Work that ends while the store does not answer ends well."""
    objects = Away(tmp_path)
    with leased(objects, NAME):
        objects.is_away = True
    assert objects.refused


def test_failing_work_returns_lease(objects: Objects) -> None:
    """Work that fails gives its lease back."""
    with pytest.raises(KeyError), leased(objects, NAME):
        raise KeyError
    with leased(objects, NAME, waiting=_refuse):
        pass


def test_stale_leases_forgotten(objects: Objects) -> None:
    """Leases that nobody changed for long are forgotten."""
    with leased(objects, NAME):
        pass
    assert forget_leases(objects, 60) == 0
    time.sleep(0.05)
    assert forget_leases(objects, 0.01) == 1
    assert list(objects.below("leases/")) == []


def _refuse(holder: str) -> None:
    raise InterruptedError(holder)
