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

from plansmith.cli.serve.serve import naming_damage
from plansmith.errors import ServedCheckError
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.layout import LIVE, catalogue_key, object_key
from plansmith.stores.publication import publish_release
from plansmith.stores.store import Store
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository

from ...support.cli.command import COMMAND, environment
from ...support.cli.in_process import InProcess
from ...support.stores.releases import MODEL, make_release

DEADLINE_SECONDS = 180


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with two versions of a model; the second is `current`."""
    new_store = Store(FolderObjects(tmp_path / "store"))
    for answer in (1, 2):
        publish(new_store, tmp_path, answer)
    return new_store


def publish(store: Store, folder: Path, answer: int) -> None:
    release = make_release(folder / "repository", answer)
    publish_release(store, release.folder, release.manifest, Digester(folder / "digests"))


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(tmp_path, monkeypatch, capfd)


def test_pulled_models_can_be_inspected(in_process: InProcess, store: Store) -> None:
    """A pulled model is told and can be looked at like any repository."""
    pulled = in_process("pull", MODEL, "--store", "store")
    assert pulled.status == 0
    assert f"{MODEL} version 2: " in pulled.stdout
    again = in_process("pull", f"{MODEL}@1", "--store", "store", "--json").document
    assert (again["version"], again["shown"], again["unchanged"]) == (1, [1], False)
    shown = in_process("show", MODEL, "--repository", "artifacts/mirror")
    assert "1 " in shown.stdout.splitlines()[2]
    assert "serves" in shown.stdout.splitlines()[2]
    assert "not shown: its store says another" in shown.stdout.splitlines()[3]
    assert store.place in in_process("rollback", MODEL, "--repository", "artifacts/mirror").message
    assert in_process("check", "artifacts/mirror").status == 0


def test_damage_of_pulled_release(in_process: InProcess, store: Store, tmp_path: Path) -> None:
    """A damaged file of a pulled release is mended by another pull, as `verify` and a failed start say."""
    in_process("pull", MODEL, "--store", "store")
    repository = ModelRepository(tmp_path / "artifacts" / "mirror")
    graph = repository.release(MODEL, 2) / "model" / "model.onnx"
    graph.unlink()
    graph.write_bytes(b"other")
    with (
        pytest.raises(ServedCheckError, match=r"model\.onnx is damaged") as refused,
        naming_damage(repository, [MODEL]),
    ):
        raise ServedCheckError("Triton did not load it", remedy="read the log")
    assert refused.value.remedy == f"plansmith verify {MODEL} --repository {repository.root}"
    verified = in_process("verify", "--repository", "artifacts/mirror")
    again = f"pull {MODEL}@2 --store {store.typed} --into {repository.root}"
    assert (verified.status, f"plansmith {again}" in verified.message) == (7, True), verified.message
    assert in_process(*again.split()).status == 0
    assert in_process("verify", "--repository", "artifacts/mirror").status == 0


def test_sync_once_brings_all_models(in_process: InProcess, store: Store) -> None:
    """A single sync brings all models and fails where one is not as the store says."""
    once = ("sync", "--store", "store", "--into", "mirror", "--once")
    done = in_process(*once)
    assert done.status == 0
    assert f"{MODEL}: version 2 is shown" in done.stdout
    missing = in_process(*once, MODEL, "other")
    assert (missing.status, "has no model 'other'" in missing.message) == (7, True)
    store.take_alias_away(MODEL, "current")
    refused = in_process(*once, MODEL)
    assert (refused.status, "plansmith promote" in refused.message) == (7, True)
    assert in_process(*once, MODEL, "--accept-older").status == 0
    others = in_process(*once)
    assert (others.status, "it is not followed" in others.stdout) == (7, True)
    assert in_process(*once, "--accept-older").status == 0
    store.promote(MODEL, 1, "current")
    report = in_process(*once, MODEL, "--json").document
    assert (report["model"], report["wanted"], report["serves"], report["failed"]) == (MODEL, 1, [1], None)


def test_missing_alias_leaves_nothing(in_process: InProcess, store: Store, tmp_path: Path) -> None:
    """An alias that no model has and an empty store are errors that leave nothing."""
    once = ("sync", "--into", "mirror", "--once")
    before = {*tmp_path.rglob("*")}
    mistyped = in_process(*once, "--store", "store", "--alias", "champoin")
    assert (mistyped.status, f"no model in {store.place} has the alias 'champoin'" in mistyped.message) == (7, True)
    (tmp_path / "store" / catalogue_key(MODEL)).unlink()
    empty = in_process(*once, "--store", "store")
    assert (empty.status, f"{store.place} has no model yet" in empty.message) == (7, True)
    assert {*tmp_path.rglob("*")} <= before


def test_failed_pull_leaves_nothing(in_process: InProcess, store: Store, tmp_path: Path) -> None:
    """A pull that fails leaves nothing and the folder to any store."""
    _, version = store.find(MODEL)
    contents = {path: path.read_bytes() for path in (tmp_path / "store" / "objects").rglob("*") if path.is_file()}
    for file in store.release(MODEL, version).files:
        (tmp_path / "store" / object_key(file.sha256)).unlink()
    assert in_process("pull", MODEL, "--store", "store", "--into", "mirror").status == 7
    assert not list(tmp_path.glob("mirror*"))
    for path, content in contents.items():
        path.write_bytes(content)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert in_process("pull", MODEL, "--store", "elsewhere", "--into", "mirror").status == 0


def test_triton_starts_on_older_version(
    in_process: InProcess, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sound older version here Triton starts despite a store fault, but not with a damaged one."""
    once = ("sync", "--store", "store", "--into", "mirror", "--once")
    assert in_process(*once).status == 0
    publish(store, tmp_path, 3)
    catalogue, newest = store.find(MODEL)
    for file in store.release(MODEL, newest).files:
        if file.path == "model/model.onnx":
            store.objects.put(object_key(file.sha256), b"x" * file.bytes)
    assert catalogue.aliases["current"].version == 3
    assert in_process(*once).status == 7
    accepted = in_process(*once, "--accept-older")
    assert accepted.status == 0
    assert f"{MODEL}: " in accepted.stdout
    assert in_process(*once, MODEL, "other", "--accept-older").status == 7, "of which there is none here"
    with monkeypatch.context() as patch:
        patch.setattr(FolderObjects, "read", _lost)
        assert (in_process(*once).status, in_process(*once, "--accept-older").status) == (9, 0)
    graph = tmp_path / "mirror.plansmith" / "releases" / MODEL / "2" / "model" / "model.onnx"
    graph.write_bytes(b"x" * graph.stat().st_size)
    assert in_process(*once, "--accept-older").status == 7


def test_absent_server_ends_single_look(in_process: InProcess, store: Store, tmp_path: Path) -> None:
    """A server that is away is an error of a single look, also where older versions will do."""
    once = ("sync", "--store", store.place, "--into", "mirror", "--once", "--url", "grpc://127.0.0.1:1")
    away = in_process(*once, "--accept-older")
    assert (away.status, "127.0.0.1:1" in away.message) == (9, True)
    assert (tmp_path / "mirror" / MODEL / "2").is_dir()


def test_impossible_sync_refused(in_process: InProcess, store: Store) -> None:
    """A sync that cannot be made is refused with what to do."""
    del store
    assert in_process("pull", MODEL).status == 2
    assert in_process("pull", f"{MODEL}@9", "--store", "store").status == 7
    assert in_process("pull", "../up", "--store", "store").status == 7
    assert in_process("pull", MODEL, "--store", "nowhere").status == 7
    compiled = in_process("sync", "--store", "store", "--into", "repository", "--once")
    assert (compiled.status, "--into" in compiled.message) == (7, True)
    assert in_process("sync", "--store", "store", "--alias", "-x", "--once").status == 2
    assert in_process("sync", "--store", "store", "--accept-older").status == 2
    assert in_process("sync", "--store", "store", "--url", "ftp://host", "--once").status == 2


@pytest.mark.slow
def test_sync_follows_until_ended(in_process: InProcess, store: Store, tmp_path: Path) -> None:
    """Sync follows until it is told to end and is alone on its folder."""
    command = ("sync", "--store", "store", "--into", "mirror", "--interval", "0.1", "--name", "pod-1")
    process = subprocess.Popen(
        [*COMMAND, *command],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        try:
            _wait_for((tmp_path / "mirror" / MODEL / "2").is_dir)
            answer = in_process("pull", MODEL, "--store", "store", "--into", "mirror")
            assert (answer.status, "another plansmith" in answer.message) == (7, True)
            publish(store, tmp_path, 3)
            _wait_for((tmp_path / "mirror" / MODEL / "3").is_dir)
            store.roll_back(MODEL)
            _wait_for((tmp_path / "mirror" / MODEL / "2").is_dir)
        finally:
            process.send_signal(signal.SIGTERM)
        output = lines.read()
    assert process.wait(DEADLINE_SECONDS) == 0, output
    assert f"{MODEL}: version 3 is shown" in output
    assert output.endswith("stopped\n")
    assert [item.key for item in store.objects.below(LIVE)] == [f"{LIVE}{MODEL}/pod-1.json"]


def _lost(objects: FolderObjects, key: str) -> None:
    """What NFS says once its server was set up anew."""
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), f"{objects.place}/{key}")


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
