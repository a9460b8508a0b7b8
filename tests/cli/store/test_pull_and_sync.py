"""`plansmith pull` and `plansmith sync` as a person and a container use them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.layout import LIVE, catalogue_key, object_key
from plansmith.stores.store import Store
from plansmith.stores.transfer.publication import publish_release
from plansmith.system.digest import Digester

from ...support.cli.command import COMMAND, environment
from ...support.cli.in_process import InProcess
from ...support.stores.releases import MODEL, make_release

DEADLINE_SECONDS = 180


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with two versions of a model; the second is `current`."""
    found = Store(FolderObjects(tmp_path / "store"))
    for answer in (1, 2):
        publish(found, tmp_path, answer)
    return found


def publish(store: Store, folder: Path, answer: int) -> None:
    made = make_release(folder / "repository", answer)
    publish_release(store, made.folder, made.manifest, Digester(folder / "digests"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(tmp_path, monkeypatch, capfd)


def test_what_was_pulled_is_told_and_can_be_looked_at_like_any_repository(here: InProcess, store: Store) -> None:
    pulled = here("pull", MODEL, "--store", "store")
    assert pulled.status == 0
    assert f"{MODEL} version 2: " in pulled.stdout
    again = here("pull", f"{MODEL}@1", "--store", "store", "--json").document
    assert (again["version"], again["shown"], again["unchanged"]) == (1, [1], False)
    shown = here("show", MODEL, "--repository", "artifacts/mirror")
    assert "1 " in shown.stdout.splitlines()[2]
    assert "serves" in shown.stdout.splitlines()[2]
    assert "not shown: its store says another" in shown.stdout.splitlines()[3]
    assert store.place in here("rollback", MODEL, "--repository", "artifacts/mirror").message
    assert here("check", "artifacts/mirror").status == 0


def test_sync_once_brings_all_models_and_fails_where_one_is_not_as_the_store_says(
    here: InProcess, store: Store
) -> None:
    once = ("sync", "--store", "store", "--into", "mirror", "--once")
    done = here(*once)
    assert done.status == 0
    assert f"{MODEL}: version 2 is shown" in done.stdout
    missing = here(*once, MODEL, "other")
    assert (missing.status, "has no model 'other'" in missing.message) == (7, True)
    store.take_alias_away(MODEL, "current")
    refused = here(*once, MODEL)
    assert (refused.status, "plansmith promote" in refused.message) == (7, True)
    assert here(*once, MODEL, "--accept-older").status == 0
    others = here(*once)
    assert (others.status, "it is not followed" in others.stdout) == (7, True)
    assert here(*once, "--accept-older").status == 0
    store.promote(MODEL, 1, "current")
    report = here(*once, MODEL, "--json").document
    assert (report["model"], report["wanted"], report["serves"], report["failed"]) == (MODEL, 1, [1], None)


def test_an_alias_that_no_model_has_and_an_empty_store_are_errors_that_leave_nothing(
    here: InProcess, store: Store, tmp_path: Path
) -> None:
    once = ("sync", "--into", "mirror", "--once")
    before = {*tmp_path.rglob("*")}
    mistyped = here(*once, "--store", "store", "--alias", "champoin")
    assert (mistyped.status, f"no model in {store.place} has the alias 'champoin'" in mistyped.message) == (7, True)
    (tmp_path / "store" / catalogue_key(MODEL)).unlink()
    empty = here(*once, "--store", "store")
    assert (empty.status, f"{store.place} has no model yet" in empty.message) == (7, True)
    assert {*tmp_path.rglob("*")} <= before


def test_a_pull_that_fails_leaves_nothing_and_the_folder_to_any_store(
    here: InProcess, store: Store, tmp_path: Path
) -> None:
    _, version = store.find(MODEL)
    kept = {path: path.read_bytes() for path in (tmp_path / "store" / "objects").rglob("*") if path.is_file()}
    for file in store.release(MODEL, version).files:
        (tmp_path / "store" / object_key(file.sha256)).unlink()
    assert here("pull", MODEL, "--store", "store", "--into", "mirror").status == 7
    assert not list(tmp_path.glob("mirror*"))
    for path, content in kept.items():
        path.write_bytes(content)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert here("pull", MODEL, "--store", "elsewhere", "--into", "mirror").status == 0


def test_with_an_older_version_here_a_triton_starts_though_the_store_has_a_fault_and_not_on_a_damaged_one(
    here: InProcess, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = ("sync", "--store", "store", "--into", "mirror", "--once")
    assert here(*once).status == 0
    publish(store, tmp_path, 3)
    catalogue, newest = store.find(MODEL)
    for file in store.release(MODEL, newest).files:
        if file.path == "model/model.onnx":
            store.objects.put(object_key(file.sha256), b"x" * file.bytes)
    assert catalogue.aliases["current"].version == 3
    assert here(*once).status == 7
    accepted = here(*once, "--accept-older")
    assert accepted.status == 0
    assert f"{MODEL}: " in accepted.stdout
    assert here(*once, MODEL, "other", "--accept-older").status == 7, "of which there is none here"
    with monkeypatch.context() as patch:
        patch.setattr(FolderObjects, "read", _lost)
        assert (here(*once).status, here(*once, "--accept-older").status) == (9, 0)
    graph = tmp_path / "mirror.plansmith" / "releases" / MODEL / "2" / "model" / "model.onnx"
    graph.write_bytes(b"x" * graph.stat().st_size)
    assert here(*once, "--accept-older").status == 7


def test_a_server_that_is_away_is_an_error_of_one_look_also_where_older_versions_will_do(
    here: InProcess, store: Store, tmp_path: Path
) -> None:
    once = ("sync", "--store", store.place, "--into", "mirror", "--once", "--url", "grpc://127.0.0.1:1")
    away = here(*once, "--accept-older")
    assert (away.status, "127.0.0.1:1" in away.message) == (9, True)
    assert (tmp_path / "mirror" / MODEL / "2").is_dir()


def test_what_cannot_be_is_refused_with_what_to_do(here: InProcess, store: Store) -> None:
    del store
    assert here("pull", MODEL).status == 2
    assert here("pull", f"{MODEL}@9", "--store", "store").status == 7
    assert here("pull", "../up", "--store", "store").status == 7
    assert here("pull", MODEL, "--store", "nowhere").status == 7
    compiled = here("sync", "--store", "store", "--into", "repository", "--once")
    assert (compiled.status, "--into" in compiled.message) == (7, True)
    assert here("sync", "--store", "store", "--alias", "-x", "--once").status == 2
    assert here("sync", "--store", "store", "--accept-older").status == 2
    assert here("sync", "--store", "store", "--url", "ftp://host", "--once").status == 2


@pytest.mark.slow
def test_sync_follows_until_it_is_told_to_end_and_is_alone_on_its_folder(
    here: InProcess, store: Store, tmp_path: Path
) -> None:
    words = ("sync", "--store", "store", "--into", "mirror", "--interval", "0.1", "--name", "pod-1")
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    with process.stdout as lines:
        try:
            _wait_for((tmp_path / "mirror" / MODEL / "2").is_dir)
            other = here("pull", MODEL, "--store", "store", "--into", "mirror")
            assert (other.status, "another plansmith" in other.message) == (7, True)
            publish(store, tmp_path, 3)
            _wait_for((tmp_path / "mirror" / MODEL / "3").is_dir)
            store.roll_back(MODEL)
            _wait_for((tmp_path / "mirror" / MODEL / "2").is_dir)
        finally:
            process.send_signal(signal.SIGTERM)
        told = lines.read()
    assert process.wait(DEADLINE_SECONDS) == 0, told
    assert f"{MODEL}: version 3 is shown" in told
    assert told.endswith("stopped\n")
    assert [held.key for held in store.objects.below(LIVE)] == [f"{LIVE}{MODEL}/pod-1.json"]


def _lost(objects: FolderObjects, key: str) -> None:
    """What NFS says once its server was set up anew."""
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), f"{objects.place}/{key}")


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
