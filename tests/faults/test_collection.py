"""Releases and views that nobody needs go, and no number is given twice."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plansmith.config.engine_options import OWNER_FILE
from plansmith.fleet.maintenance.garbage import RECORDS_KEPT, Collector, Garbage, Limits
from plansmith.steps.cache.local import StageCache
from plansmith.steps.provenance.history import HISTORY, History
from plansmith.system.digest import Digester
from plansmith.system.files import (
    abandoned_folders,
    abandoned_scratch,
    locked,
    not_waiting,
    scratch_folder,
    scratch_name,
)
from plansmith.triton.repository.repository import ModelRepository, hidden_since, versions
from plansmith.triton.server.process import abandoned_environments

from ..support.faults.packages import MODEL, draft_of, publish, write_package
from ..support.faults.runs import run_record
from ..support.faults.wholeness import release_numbers, repository_problems, shown_versions

DAY = 86400


class Repository:
    """A repository with releases of some interfaces, all made in this moment.

    Args:
        folder: for the packages, the repository and the artifacts.
        outputs: the name of each version's output.
    """

    def __init__(self, folder: Path, *outputs: str) -> None:
        self.folder, self.root = folder, folder / "repository"
        self.opened = ModelRepository(self.root)
        for output in outputs:
            self.publish(output)

    def publish(self, output: str, *, days_ago: float = 0) -> int:
        number = len(list(self.folder.glob("package-*")))
        package = write_package(self.folder / f"package-{number}", str(number))
        moment = datetime.now(UTC) - timedelta(days=days_ago)
        draft = draft_of(package, output=output).model_copy(update={"created": moment.isoformat()})
        version = publish(self.root, package, draft, allow_interface_change=True).version
        os.utime(self.opened.release(MODEL, version), (moment.timestamp(),) * 2)
        return version

    def collect(self, *, days: float = 31, older_than: float = 30 * DAY) -> list[Garbage]:
        """Collect some days from now."""
        limits = Limits(older_than=older_than, now=time.time() + days * DAY, scratch=(), staging=())
        collected = Collector(self.folder, self.root, limits).collect(lambda _: None)
        assert repository_problems(self.root) == []
        return collected

    @property
    def numbers(self) -> tuple[int, ...]:
        return release_numbers(self.root, MODEL)

    @property
    def shown(self) -> tuple[int, ...]:
        return shown_versions(self.root, MODEL)


def test_old_interface_release_goes(tmp_path: Path) -> None:
    """A release with another interface goes when it is old, and its number is not given again."""
    repository = Repository(tmp_path, "logits", "scores", "scores")
    assert repository.shown == (2, 3)
    assert repository.collect(days=29) == []
    (release,) = (item for item in repository.collect() if item.kind == "release")
    assert release.path == repository.opened.release(MODEL, 1)
    assert release.why == "other inputs or outputs than version 3"
    assert (repository.numbers, repository.shown) == ((2, 3), (2, 3))
    assert repository.publish("scores") == 4


def test_shown_and_newest_versions_stay(tmp_path: Path) -> None:
    """Every version that Triton is shown and the newest stay, however old."""
    repository = Repository(tmp_path, "logits", "logits", "logits")
    assert {item.kind for item in repository.collect(days=10_000, older_than=0)} == {"view"}
    assert repository.numbers == repository.shown == (1, 2, 3)


def test_release_without_view_stays(tmp_path: Path) -> None:
    """A whole release stays where somebody took the view away."""
    repository = Repository(tmp_path, "logits", "logits")
    (repository.root / MODEL).unlink()
    assert "release" not in {item.kind for item in repository.collect()}
    assert repository.numbers == (1, 2)


def test_rollback_version_stays(tmp_path: Path) -> None:
    """The version that a rollback leads to stays however old."""
    repository = Repository(tmp_path, "logits", "logits", "scores")
    assert repository.shown == (3,)
    assert [item.path.name for item in repository.collect(days=10_000) if item.kind == "release"] == ["1"]
    assert repository.numbers == (2, 3)
    repository.opened.withdraw(MODEL, 3, "clients break")
    assert repository.shown == (2,)


def test_damaged_version_is_no_rollback(tmp_path: Path) -> None:
    """A damaged version is none that a rollback leads to."""
    repository = Repository(tmp_path, "logits", "logits", "scores")
    damaged = repository.opened.release(MODEL, 2) / "model" / "model.onnx"
    damaged.unlink()
    damaged.write_text("damaged")
    assert [item.path.name for item in repository.collect(days=10_000) if item.kind == "release"] == ["2"]
    assert repository.numbers == (1, 3)


def test_age_counts_from_last_view(tmp_path: Path) -> None:
    """The age of a release counts from when it was last shown."""
    repository = Repository(tmp_path)
    for output, days_ago in (("logits", 90), ("scores", 60), ("logits", 50), ("scores", 40), ("scores", 0)):
        repository.publish(output, days_ago=days_ago)
    assert repository.shown == (2, 4, 5)

    def releases(days: float) -> list[str]:
        return [item.path.name for item in repository.collect(days=days) if item.kind == "release"]

    assert hidden_since(repository.opened, MODEL, 1) == pytest.approx(time.time() - 40 * DAY, abs=60)
    assert repository.collect(days=-11) == [], "it was shown until 29 days before"
    repository.opened.withdraw(MODEL, 5, "it answers too slowly")
    repository.publish("scores")
    assert releases(days=29) == [], "what another was withdrawn for may have been shown beside it"
    assert releases(days=31) == ["1", "3", "5"]
    assert repository.numbers == (2, 4, 6)


@pytest.mark.parametrize(
    ("file", "outputs", "reason"),
    [
        ("model/model.onnx", ("scores", "scores"), "model/model.onnx is damaged"),
        ("manifest.json", ("logits", "logits"), "its manifest is damaged"),
    ],
)
def test_damaged_hidden_release_goes(file: str, outputs: tuple[str, str], reason: str, tmp_path: Path) -> None:
    """A damaged release that is not shown goes and is listed with the same reason."""
    repository = Repository(tmp_path, *outputs)
    damaged = repository.opened.release(MODEL, 2) / file
    if file == "manifest.json":  # no view is made any more beside a damaged manifest
        repository.publish("scores")
    damaged.unlink()
    damaged.write_text("damaged")
    if file != "manifest.json":
        repository.publish("scores")
    limits = Limits(older_than=30 * DAY, now=time.time() + 31 * DAY, scratch=(), staging=())
    items = Collector(tmp_path, repository.root, limits, dry=True).find(lambda _: None)
    (why,) = (item.why for item in items if item.path == repository.opened.release(MODEL, 2))
    listed = {version.number: version.hidden for version in versions(repository.opened, MODEL)}
    assert (why, listed[2]) == (reason, reason)
    repository.collect(days=0)  # a damaged one is no good, however young
    assert 2 not in repository.numbers
    assert 3 in repository.numbers


def test_newest_damaged_release_stays(tmp_path: Path) -> None:
    """The newest release stays even if it is damaged."""
    repository = Repository(tmp_path, "logits")
    manifest = repository.opened.release(MODEL, 1) / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_text("{")
    limits = Limits(older_than=0, now=time.time() + DAY, scratch=(), staging=())
    assert Collector(tmp_path, repository.root, limits).collect(lambda _: None) == []
    manifest.write_bytes(content)
    assert repository.publish("logits") == 2


def test_past_views_go(tmp_path: Path) -> None:
    """Views of the past go, and the current one stays."""
    repository = Repository(tmp_path, "logits", "logits")
    current = (repository.root / MODEL).resolve()
    (view,) = (item for item in repository.collect() if item.kind == "view")
    assert view.path != current
    assert list(current.parent.iterdir()) == [current]


def test_future_times_keep_current_view(
    tmp_path: Path,
) -> None:
    """With all times in the future, numbers go on and the current view never goes."""
    repository = Repository(tmp_path, "logits", "logits")
    for number in range(3, 7):
        for path in tmp_path.rglob("*"):
            os.utime(path, (time.time() + (20 - number) * 400 * DAY,) * 2, follow_symlinks=False)
        before = (repository.root / MODEL).resolve()
        assert repository.publish("logits") == number
        assert repository.shown == tuple(range(1, number + 1))
        current = (repository.root / MODEL).resolve()
        assert sorted(current.parent.iterdir()) == sorted([before, current])
        assert repository.collect(days=0, older_than=0) == []


def test_future_release_is_young(tmp_path: Path) -> None:
    """A release that says it was made in the future is young."""
    repository = Repository(tmp_path)
    package = write_package(tmp_path / "package-future", "future")
    draft = draft_of(package, output="scores").model_copy(update={"created": "2999-01-01T00:00:00.000+00:00"})
    publish(repository.root, package, draft, allow_interface_change=True)
    for output in ("logits", "labels", "labels"):
        repository.publish(output)
    repository.collect()
    assert repository.numbers == (1, 3, 4)
    newest = repository.opened.newest(MODEL)
    assert newest is not None
    assert newest.version == 4


def test_arriving_model_left_alone(tmp_path: Path) -> None:
    """A model that comes while the locks are taken is left alone."""
    repository = Repository(tmp_path, "logits", "logits")
    lock = ExitStack()
    lock.enter_context(repository.opened.exclusive(MODEL))

    def another_comes(_process: int | None) -> None:
        for number in "12":
            package = write_package(tmp_path / f"other-{number}", number)
            publish(repository.root, package, draft_of(package, model="other"))
        lock.close()

    limits = Limits(older_than=0, now=time.time() + DAY, scratch=(), staging=())
    with lock:
        items = Collector(tmp_path, repository.root, limits).collect(another_comes)
    assert [item.kind for item in items] == ["view"]
    assert len(repository.opened.views("other").others()) == 1


def test_waiting_collection_frees_cache(tmp_path: Path) -> None:
    """Compiles have the cache while a collection waits for whoever publishes a model."""
    repository = Repository(tmp_path, "logits", "logits")
    cache = StageCache(tmp_path / "cache", Digester(tmp_path / "cache" / "digests.sqlite"))
    with cache.lock(not_waiting):
        pass  # makes the cache
    lock = ExitStack()
    lock.enter_context(repository.opened.exclusive(MODEL))
    used = []

    def compile_meanwhile(_process: int | None) -> None:
        with cache.lock(not_waiting):
            used.append(True)
        lock.close()

    limits = Limits(older_than=0, now=time.time() + DAY, scratch=(), staging=())
    with lock:
        items = Collector(tmp_path, repository.root, limits).collect(compile_meanwhile)
    assert used == [True]
    assert "view" in {item.kind for item in items}


def test_dry_run_ignores_running_builds(tmp_path: Path) -> None:
    """A dry run beside compiles that build entries finds nothing and does not fail."""
    cache = StageCache(tmp_path / "cache", Digester(tmp_path / "cache" / "digests.sqlite"))
    ended = threading.Event()

    def build() -> None:
        while not ended.is_set():
            with cache.staging() as staged:
                (staged / "model" / "weights").mkdir(parents=True)
                (staged / "model" / "weights" / "data").write_text("1")

    limits = Limits(older_than=DAY, now=time.time(), scratch=(), staging=())
    with ThreadPoolExecutor(2) as threads:
        building = [threads.submit(build) for _ in range(2)]
        try:
            results = [
                Collector(tmp_path, tmp_path / "repository", limits, dry=True).find(lambda _: None) for _ in range(300)
            ]
        finally:
            ended.set()
        for item in building:
            item.result()
    assert [item for item in results if item] == []


@pytest.mark.slow
@pytest.mark.parametrize("older_than", [-DAY, DAY], ids=["old entries", "young entries"])
def test_dry_run_bears_vanishing_entries(older_than: float, tmp_path: Path) -> None:
    """A dry run bears entries that vanish while it looks at them."""
    cache = StageCache(tmp_path / "cache", Digester(tmp_path / "cache" / "digests.sqlite"))
    ended = threading.Event()

    def rebuild() -> None:
        while not ended.is_set():
            with cache.staging() as staged:
                for number in range(8):
                    (staged / f"part-{number}").mkdir()
                    (staged / f"part-{number}" / "data").write_text(str(number))
                cache.remove(cache.publish("compile", "key", staged, {}).folder)

    limits = Limits(older_than=older_than, now=time.time(), scratch=(), staging=())
    collector = Collector(tmp_path, tmp_path / "repository", limits, dry=True)
    with ThreadPoolExecutor(1) as threads:
        rebuilding = threads.submit(rebuild)
        try:
            kinds = {item.kind for _ in range(1500) for item in collector.find(lambda _: None)}
        finally:
            ended.set()
        rebuilding.result()
    assert kinds <= {"cache entry"}


def test_dead_scratch_folders_found(tmp_path: Path) -> None:
    """Scratch folders of a killed process are found, and those of a living one are not."""
    program = (
        "import os, pathlib, sys; from plansmith.system.files import scratch_folder\n"
        "with scratch_folder('doctor'), scratch_folder('doctor', pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    with scratch_folder("doctor", tmp_path) as alive:
        hidden, plain = abandoned_scratch(tmp_path)
        assert Path(alive) not in {hidden, plain}
    assert hidden.name.startswith(".plansmith-")
    assert plain.name.startswith("plansmith-")


def test_dead_server_environments_found(tmp_path: Path) -> None:
    """Environments that a killed server unpacked are found, and those of others are not."""
    living, dead = scratch_name("token"), "plansmith-99999999-token"
    for name, owner in (("python_env_living", living), ("python_env_dead", dead), ("python_env_foreign", "")):
        (tmp_path / name / "0").mkdir(parents=True)
        (tmp_path / name / "0" / (OWNER_FILE if owner else "python")).write_text(owner)
    for name, minutes in (("python_env_new", 0), ("python_env_empty", 2)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - 60 * minutes - 1,) * 2)
    assert abandoned_environments(tmp_path) == [tmp_path / "python_env_dead", tmp_path / "python_env_empty"]


def test_unlocked_staging_is_not_abandoned(tmp_path: Path) -> None:
    """A staging folder that is not locked yet is not taken for an abandoned one."""
    with ThreadPoolExecutor(1) as threads:
        with locked(tmp_path / ".lock"):
            (tmp_path / "new").mkdir()
            future = threads.submit(abandoned_folders, tmp_path)
            wait([future], 0.2)
            descriptor = os.open(tmp_path / "new", os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert future.result() == []
    os.close(descriptor)
    assert abandoned_folders(tmp_path) == [tmp_path / "new"]


def test_last_thousand_runs_stay(tmp_path: Path) -> None:
    """The last thousand runs stay however old."""
    history = History(tmp_path / HISTORY)
    (tmp_path / HISTORY).mkdir()
    content = run_record("tiny").model_dump_json()
    for number in range(1, RECORDS_KEPT + 3):
        history.file(number).write_text(content)
    repository = Repository(tmp_path)
    assert repository.collect(days=29) == []
    assert {item.path for item in repository.collect()} == {history.file(1), history.file(2)}
    assert len(history.numbers()) == RECORDS_KEPT
    history.add(run_record("tiny"))
    assert history.numbers()[-1] == RECORDS_KEPT + 3
