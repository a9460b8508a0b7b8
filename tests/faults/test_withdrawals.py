"""A release that a server refuses is withdrawn: never shown again, with the reason kept, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, RepositoryError, ServedCheckError
from plansmith.fleet.maintenance.garbage import Collector, Limits
from plansmith.triton.repository.repository import ModelRepository, versions

from ..support.faults.kill_rounds import in_child
from ..support.faults.packages import MODEL, draft_of, write_package
from ..support.faults.packages import publish as publish_package
from ..support.faults.wholeness import repository_problems, staging_problems

INTERRUPTED = "its publication was interrupted before every server had loaded it"


class RecordingServers:
    """Servers that note what they are told, and refuse some versions; what they find is asked of the disk."""

    def __init__(
        self,
        *refused: int,
        error: type[ServedCheckError | EnvironmentFault | Interrupted] = ServedCheckError,
        says: str = "it has no backend for version 2",
    ) -> None:
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self._refused, self._error, self._says = refused, error, says

    def take(self, folder: Path, version: int) -> None:
        self.calls.append((f"take {version}", _shown(folder)))
        if version in self._refused:
            raise self._error(self._says, remedy="mend it")

    def take_back(self, folder: Path) -> None:
        self.calls.append(("take back", _shown(folder)))


class Deadly(RecordingServers):
    """Kills the process that has it load anything."""

    def take(self, folder: Path, version: int) -> None:
        del folder, version
        os.kill(os.getpid(), signal.SIGKILL)


class Interrupted(BaseException):
    """Ends a publication as Ctrl-C would."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy)


def _shown(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(f.name for f in folder.iterdir() if f.is_dir())) if folder.is_dir() else ()


@pytest.fixture
def opened(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "repository")


def publish(
    opened: ModelRepository, content: str, servers: RecordingServers | None = None, output: str = "logits"
) -> int:
    package = write_package(opened.root.parent / content, content)
    draft = draft_of(package, output=output)
    return opened.publish(
        draft,
        {entry.path: package / entry.path for entry in draft.files},
        {},
        allow_interface_change=True,
        force=False,
        servers=servers,
    ).version


def test_refused_version_is_withdrawn(opened: ModelRepository) -> None:
    """Servers are told once the version is shown, and what they refuse is withdrawn."""
    servers = RecordingServers(2)
    assert publish(opened, "first", servers) == 1
    with pytest.raises(ServedCheckError) as refused:
        publish(opened, "second", servers)
    assert servers.calls == [("take 1", ("1",)), ("take 2", ("1", "2")), ("take back", ("1",))]
    assert refused.value.message == (
        "it has no backend for version 2\nversion 2 of tiny was withdrawn, and Triton is shown version 1 again"
    )
    assert refused.value.remedy == "mend it"
    assert opened.views(MODEL).shown() == [1]
    assert opened.why_hidden(MODEL, 2, opened.newest(MODEL)) == "withdrawn: it has no backend for version 2"
    assert opened.find(MODEL) == (MODEL, 1)
    assert opened.find(f"{MODEL}@2") == (MODEL, 2)
    assert [v.hidden for v in versions(opened, MODEL)] == [None, "withdrawn: it has no backend for version 2"]
    assert repository_problems(opened.root) == staging_problems(opened.staging) == []


def test_number_after_withdrawal_differs(
    opened: ModelRepository,
) -> None:
    """A version after a withdrawn one has another number and stands beside the good ones."""
    publish(opened, "first")
    with pytest.raises(ServedCheckError):
        publish(opened, "second", RecordingServers(2))
    assert publish(opened, "third", RecordingServers()) == 3
    assert opened.views(MODEL).shown() == [1, 3]


def test_withdrawn_content_gets_new_number(opened: ModelRepository) -> None:
    """The same content as a withdrawn version is tried again under a new number."""
    publish(opened, "first")
    with pytest.raises(ServedCheckError):
        publish(opened, "second", RecordingServers(2))
    assert publish(opened, "second", RecordingServers()) == 3
    assert publish(opened, "first", RecordingServers()) == 4


def test_refused_first_version_leaves_nothing(opened: ModelRepository) -> None:
    """A first version that is refused leaves nothing to be seen."""
    servers = RecordingServers(1)
    with pytest.raises(ServedCheckError, match="Triton is shown no version of it"):
        publish(opened, "first", servers)
    assert servers.calls[-1] == ("take back", ())
    assert opened.served_models() == []
    assert opened.newest(MODEL) is None
    assert publish(opened, "second", RecordingServers()) == 2
    assert opened.views(MODEL).shown() == [2]


def test_server_lost_while_loading_withdraws(opened: ModelRepository) -> None:
    """A server that is gone while it loads withdraws like one that refuses."""
    with pytest.raises(ServedCheckError, match="was withdrawn"):
        publish(opened, "first", RecordingServers(1, error=EnvironmentFault))


def test_earlier_version_not_withdrawn(
    opened: ModelRepository,
) -> None:
    """A version that was published before is not withdrawn where another server refuses it."""
    publish(opened, "first", RecordingServers())
    with pytest.raises(ServedCheckError) as refused:
        publish(opened, "first", RecordingServers(1, says="it has no such backend"))
    assert refused.value.message == "it has no such backend"
    assert opened.views(MODEL).shown() == [1]


def test_interrupted_publication_taken_back(opened: ModelRepository) -> None:
    """A publication that is interrupted while servers load is taken back."""
    publish(opened, "first")
    servers = RecordingServers(2, error=Interrupted)
    with pytest.raises(Interrupted) as interrupted:
        publish(opened, "second", servers)
    assert servers.calls[-1] == ("take back", ("1",))
    assert interrupted.value.__notes__ == ["version 2 of tiny was withdrawn, and Triton is shown version 1 again"]
    assert opened.withdrawals(MODEL).reason(2) == INTERRUPTED
    assert opened.views(MODEL).shown() == [1]


def test_full_disk_of_server_stays_there(opened: ModelRepository) -> None:
    """Words of a server about its own full disk are no full disk here."""
    publish(opened, "first")
    full = RecordingServers(2, says="a plugin: No space left on device")
    with pytest.raises(ServedCheckError, match=r"^a plugin: No space left on device"):
        publish(opened, "second", full)
    assert opened.withdrawals(MODEL).reason(2) == "a plugin: No space left on device"


def kill_while_it_loads(opened: ModelRepository, content: str) -> None:
    """Leave a version that is shown and on trial, as a kill of the process that publishes it does."""

    def work() -> None:
        publish(opened, content, Deadly())

    assert in_child(work)


def test_killed_publication_withdrawn_by_next(
    opened: ModelRepository,
) -> None:
    """A version whose publication was killed before the servers had it is withdrawn by the next one."""
    publish(opened, "first")
    kill_while_it_loads(opened, "second")
    assert opened.views(MODEL).shown() == [1, 2]
    with pytest.raises(ServedCheckError, match="version 2 of tiny was withdrawn"):
        publish(opened, "second", RecordingServers(2))
    assert opened.views(MODEL).shown() == [1]


@pytest.mark.parametrize("content", ["first", "third"])
def test_killed_version_goes_at_next_publication(content: str, opened: ModelRepository) -> None:
    """A version whose publication was killed goes when something else is published."""
    publish(opened, "first")
    kill_while_it_loads(opened, "second")
    publish(opened, content)
    assert opened.withdrawals(MODEL).reason(2) == INTERRUPTED
    assert opened.views(MODEL).shown() == ([1] if content == "first" else [1, 3])


def test_killed_version_hidden_despite_refusal(opened: ModelRepository) -> None:
    """A killed version is taken out of sight though the next publication is refused."""
    publish(opened, "first")
    kill_while_it_loads(opened, "second")
    package = write_package(opened.root.parent / "other", "other")
    with pytest.raises(RepositoryError, match="differ from version 1's"):
        publish_package(opened.root, package, draft_of(package, output="scores"))
    assert opened.views(MODEL).shown() == [1]


@pytest.mark.parametrize("settled", ["by itself", "by a collection"])
def test_killed_leftovers_are_settled(settled: str, opened: ModelRepository) -> None:
    """What a killed publication or withdrawal left is settled."""
    publish(opened, "first")
    publish(opened, "second")
    opened.withdrawals(MODEL).withdraw(2, "it answers too slowly")  # and killed before the view was exchanged
    kill_while_it_loads(opened, "third")
    assert opened.views(MODEL).shown() == [1, 3]
    opened.withdrawals(MODEL).withdraw(3, "no more")
    kill_while_it_loads(opened, "fourth")
    opened.withdrawals(MODEL).begin_trial(9)  # and killed before there was a release
    if settled == "by itself":
        opened.settle_all()
    else:
        limits = Limits(older_than=1e9, now=time.time(), scratch=(), staging=())
        assert Collector(opened.root.parent, opened.root, limits).collect(lambda _: None) == []
    assert opened.views(MODEL).shown() == [1]
    assert opened.withdrawals(MODEL).reason(4) == INTERRUPTED
    assert opened.withdrawals(MODEL).on_trial() == []
    assert publish(opened, "fifth") == 5


def test_foreign_trial_left_alone(opened: ModelRepository) -> None:
    """A version that another process has on trial is left alone."""
    publish(opened, "first")
    opened.withdrawals(MODEL).begin_trial(1)
    with opened.exclusive(MODEL):
        opened.settle_all()
        assert opened.withdrawals(MODEL).on_trial() == [1]
    opened.settle_all()
    assert opened.withdrawals(MODEL).numbers() == [1]


def test_later_withdrawal_takes_any_reason(opened: ModelRepository) -> None:
    """A version can be withdrawn later with any reason."""
    publish(opened, "first")
    publish(opened, "second")
    opened.withdraw(MODEL, 2, "it answers too slowly")
    assert opened.views(MODEL).shown() == [1]
    assert opened.withdrawals(MODEL).reason(2) == "it answers too slowly"
    (opened.store / "withdrawn" / MODEL / "2.json").write_text("{")
    assert opened.withdrawals(MODEL).reason(2) == "the record that says why is damaged"
    with pytest.raises(RepositoryError, match="no version '3'"):
        opened.withdraw(MODEL, 3, "it is not there")


def test_withdrawn_release_goes_when_old(opened: ModelRepository) -> None:
    """A withdrawn release goes when it is old and its number is not given again."""
    publish(opened, "first")
    publish(opened, "second")
    opened.withdraw(MODEL, 2, "it answers too slowly")
    limits = Limits(older_than=0, now=time.time() + 1, scratch=(), staging=())
    items = Collector(opened.root.parent, opened.root, limits).collect(lambda _: None)
    assert "release" not in {item.kind for item in items}, "the newest keeps its number"
    publish(opened, "third")
    (removal,) = (
        item
        for item in Collector(opened.root.parent, opened.root, limits).collect(lambda _: None)
        if item.kind == "release"
    )
    assert (removal.path.name, removal.why) == ("2", "withdrawn: it answers too slowly")
    assert publish(opened, "fourth") == 4


def test_views_grow_younger_despite_clock(opened: ModelRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a running Triton would take an older version, shown again, for what it has loaded."""
    link = opened.root / MODEL
    times = []
    for content in ("first", "second", "third"):
        publish(opened, content)
        times.append(max(path.stat().st_mtime_ns for path in (link.resolve(), *link.resolve().rglob("*"))))
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        os.utime(link.resolve() / "config.pbtxt", ns=(times[-1] + 10**10, times[-1] + 10**10))
        times.append(times[-1] + 10**10)
    opened.withdraw(MODEL, 3, "it answers too slowly")
    times.append(max(path.stat().st_mtime_ns for path in (link.resolve(), *link.resolve().rglob("*"))))
    assert times == sorted(set(times))
