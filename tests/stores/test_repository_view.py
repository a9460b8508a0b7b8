"""A Triton that reads a store itself finds there what the alias stands for, and nothing half-made."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.destination import Location
from plansmith.records.release import CONFIG_FILE, Interface
from plansmith.stores import repository_view
from plansmith.stores.layout import VIEW
from plansmith.stores.repository_view import keep_view, refresh_view
from plansmith.stores.store import Store
from plansmith.stores.transfer.publication import Terms, publish_release
from plansmith.system.digest import Digester
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.control.live import RunningTriton
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ..support.stores.places import IN_A_FOLDER
from ..support.stores.python_versions import python_release
from ..support.stores.releases import BULK_FILE, MODEL, make_release
from ..support.triton.installed import installation
from ..support.triton.versions import INTERFACE
from ..support.triton.versions import MODEL as PYTHON_MODEL

__all__ = ["installation"]

OTHER = Interface(inputs=INTERFACE.inputs, outputs=INTERFACE.outputs[:1])


def publish(store: Store, folder: Path, answer: int, interface: Interface = INTERFACE, bulk_bytes: int = 0) -> int:
    """Make a release that answers with a number and have `current` stand for it; its number."""
    made = make_release(folder / "repository", answer, interface=interface, bulk_bytes=bulk_bytes)
    terms = Terms(allow_interface_change=True)
    return publish_release(store, made.folder, made.manifest, Digester(folder / "digests"), terms=terms).version


def shown(store: Store) -> list[str]:
    """The keys of the model in the view."""
    root = f"{VIEW}{MODEL}/"
    return [held.key.removeprefix(root) for held in store.objects.below(root)]


def served(store: Store) -> list[int]:
    """The versions that the configuration in the view names."""
    found = store.objects.read(f"{VIEW}{MODEL}/{CONFIG_FILE}")
    assert found is not None
    return list(parse_config(found.content.decode()).version_policy.specific.versions)


@pytest.fixture
def acts(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is copied and written to the view, in turn."""
    found: list[str] = []
    copy, put = store.objects.copy, store.objects.put

    def note(key: str) -> None:
        if key.startswith(VIEW):
            found.append(key.removeprefix(f"{VIEW}{MODEL}/"))

    def copied(source: str, key: str) -> None:
        note(key)
        copy(source, key)

    def written(key: str, content: bytes) -> None:
        note(key)
        put(key, content)

    monkeypatch.setattr(store.objects, "copy", copied)
    monkeypatch.setattr(store.objects, "put", written)
    return found


@pytest.mark.slow
def test_a_version_is_there_before_the_configuration_names_it(store: Store, tmp_path: Path, acts: list[str]) -> None:
    publish(store, tmp_path, 1, bulk_bytes=10)
    assert refresh_view(store, MODEL) == (), "nobody asked for a view"
    assert shown(store) == []
    keep_view(store, MODEL)
    for number in (1, 2):
        assert refresh_view(store, MODEL) == (number,)
        copied = acts.index(CONFIG_FILE)
        assert sorted(acts[:copied]) == [f"{number}/{BULK_FILE}", f"{number}/model.onnx"]
        assert set(acts[copied:]) == {CONFIG_FILE}
        assert served(store) == [number]
        acts.clear()
        assert refresh_view(store, MODEL) == (number,)
        assert acts == []
        publish(store, tmp_path, number + 1, bulk_bytes=10)
        acts.clear()


@pytest.mark.slow
def test_the_view_follows_the_alias_both_ways_and_what_nobody_needs_goes_after_a_while(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, tmp_path, 1)
    keep_view(store, MODEL)
    publish(store, tmp_path, 2, OTHER)
    assert refresh_view(store, MODEL) == (2,)
    store.roll_back(MODEL)
    assert (refresh_view(store, MODEL), served(store)) == ((1,), [1])
    assert refresh_view(store, MODEL) == (1,)
    assert shown(store) == ["1/model.onnx", "2/model.onnx", CONFIG_FILE], "version 2 may be being read"
    monkeypatch.setattr(repository_view, "_GRACE_SECONDS", -1e6)
    refresh_view(store, MODEL)
    assert shown(store) == ["1/model.onnx", CONFIG_FILE]


@pytest.mark.slow
@IN_A_FOLDER
def test_what_neither_the_old_nor_the_new_configuration_names_goes_when_the_next_version_is_shown(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        publish(store, tmp_path, number, (INTERFACE, OTHER)[number % 2])
        keep_view(store, MODEL)
    assert shown(store) == ["1/model.onnx", "2/model.onnx", "3/model.onnx", CONFIG_FILE]
    publish(store, tmp_path, 4)
    monkeypatch.setattr(repository_view, "_GRACE_SECONDS", -1e6)
    assert refresh_view(store, MODEL) == (4,)
    assert shown(store) == ["3/model.onnx", "4/model.onnx", CONFIG_FILE], "version 3 may be being read"


@pytest.mark.slow
@IN_A_FOLDER
def test_a_file_from_the_future_holds_nothing_up(store: Store, tmp_path: Path) -> None:
    publish(store, tmp_path, 1)
    keep_view(store, MODEL)
    graph = Path(store.place, VIEW, MODEL, "1/model.onnx")
    os.utime(graph, (time.time() + 1e6,) * 2)
    publish(store, tmp_path, 2)
    assert refresh_view(store, MODEL) == (2,)
    assert graph.stat().st_mtime < (graph.parents[1] / CONFIG_FILE).stat().st_mtime < time.time() + 60


@IN_A_FOLDER
def test_a_clock_that_stands_still_is_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, tmp_path, 1)
    keep_view(store, MODEL)
    publish(store, tmp_path, 2)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(repository_view, "_CLOCK_STEP_SECONDS", 1e3)
    with pytest.raises(RepositoryError, match="does not go on") as told:
        refresh_view(store, MODEL)
    assert told.value.remedy


@IN_A_FOLDER
def test_a_configuration_that_another_process_wrote_meanwhile_is_no_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, tmp_path, 1)
    keep_view(store, MODEL)
    below = store.objects.below
    monkeypatch.setattr(
        store.objects, "below", lambda prefix: (held for held in below(prefix) if not held.key.endswith(CONFIG_FILE))
    )
    assert refresh_view(store, MODEL) == (1,)


@IN_A_FOLDER
def test_a_view_of_an_alias_that_is_none_is_refused(store: Store, tmp_path: Path) -> None:
    publish(store, tmp_path, 1)
    with pytest.raises(RepositoryError, match="no alias 'champion'") as refused:
        keep_view(store, MODEL, "champion")
    assert "plansmith promote" in refused.value.remedy


@pytest.mark.slow
def test_a_triton_that_reads_the_store_serves_what_is_promoted_and_rolled_back(
    store: Store, place: Location, tmp_path: Path, installation: Installation
) -> None:
    publish_python(store, tmp_path)
    keep_view(store, PYTHON_MODEL)
    where = f"s3://{place.endpoint_url}/{place.to.removeprefix('s3://')}" if place.is_s3 else place.to
    (tmp_path / "empty").mkdir()
    arguments = [f"--model-repository={where}/{VIEW}"]
    with TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[], arguments=arguments) as server:
        triton = RunningTriton(f"grpc://{server.grpc_url}")
        assert triton.load(Path(PYTHON_MODEL), version=1) == [1]
        publish_python(store, tmp_path)
        refresh_view(store, PYTHON_MODEL)
        assert triton.load(Path(PYTHON_MODEL), version=2) == [2]
        store.roll_back(PYTHON_MODEL)
        refresh_view(store, PYTHON_MODEL)
        assert triton.load(Path(PYTHON_MODEL), version=1) == [1]


def publish_python(store: Store, folder: Path) -> None:
    """Make a release that loads fast and have `current` stand for it."""
    repository = ModelRepository(folder / "python")
    made = python_release(repository, folder / "packages")
    manifest = repository.manifest(PYTHON_MODEL, made.version)
    publish_release(store, Path(made.release), manifest, Digester(folder / "digests"))
