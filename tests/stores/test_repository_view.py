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
from plansmith.stores.publication import Terms, publish_release
from plansmith.stores.repository_view import keep_view, refresh_view
from plansmith.stores.store import Store
from plansmith.system.digest import Digester
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.live import RunningTriton
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
    release = make_release(folder / "repository", answer, interface=interface, bulk_bytes=bulk_bytes)
    terms = Terms(allow_interface_change=True)
    return publish_release(store, release.folder, release.manifest, Digester(folder / "digests"), terms=terms).version


def shown(store: Store) -> list[str]:
    """The keys of the model in the view."""
    root = f"{VIEW}{MODEL}/"
    return [item.key.removeprefix(root) for item in store.objects.below(root)]


def served(store: Store) -> list[int]:
    """The versions that the configuration in the view names."""
    document = store.objects.read(f"{VIEW}{MODEL}/{CONFIG_FILE}")
    assert document is not None
    return list(parse_config(document.content.decode()).version_policy.specific.versions)


@pytest.fixture
def acts(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is copied and written to the view, in turn."""
    keys: list[str] = []
    copy, put = store.objects.copy, store.objects.put

    def note(key: str) -> None:
        if key.startswith(VIEW):
            keys.append(key.removeprefix(f"{VIEW}{MODEL}/"))

    def copied(source: str, key: str) -> None:
        note(key)
        copy(source, key)

    def written(key: str, content: bytes) -> None:
        note(key)
        put(key, content)

    monkeypatch.setattr(store.objects, "copy", copied)
    monkeypatch.setattr(store.objects, "put", written)
    return keys


@pytest.mark.slow
def test_version_precedes_configuration(store: Store, tmp_path: Path, acts: list[str]) -> None:
    """A version is there before the configuration names it."""
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
def test_view_follows_alias_both_ways(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view follows the alias both ways, and what nobody needs goes after a while."""
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
def test_unnamed_version_goes_at_next(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What neither the old nor the new configuration names goes when the next version is shown."""
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
def test_future_file_holds_nothing_up(store: Store, tmp_path: Path) -> None:
    """A file from the future holds nothing up."""
    publish(store, tmp_path, 1)
    keep_view(store, MODEL)
    graph = Path(store.place, VIEW, MODEL, "1/model.onnx")
    os.utime(graph, (time.time() + 1e6,) * 2)
    publish(store, tmp_path, 2)
    assert refresh_view(store, MODEL) == (2,)
    assert graph.stat().st_mtime < (graph.parents[1] / CONFIG_FILE).stat().st_mtime < time.time() + 60


@IN_A_FOLDER
def test_stopped_clock_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still is told."""
    publish(store, tmp_path, 1)
    keep_view(store, MODEL)
    publish(store, tmp_path, 2)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(repository_view, "_CLOCK_STEP_SECONDS", 1e3)
    with pytest.raises(RepositoryError, match="does not go on") as error:
        refresh_view(store, MODEL)
    assert error.value.remedy


@IN_A_FOLDER
def test_concurrent_configuration_is_no_error(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that another process wrote meanwhile is no error."""
    publish(store, tmp_path, 1)
    keep_view(store, MODEL)
    below = store.objects.below
    monkeypatch.setattr(
        store.objects, "below", lambda prefix: (item for item in below(prefix) if not item.key.endswith(CONFIG_FILE))
    )
    assert refresh_view(store, MODEL) == (1,)


@IN_A_FOLDER
def test_invalid_alias_view_refused(store: Store, tmp_path: Path) -> None:
    """A view of an alias that does not exist is refused."""
    publish(store, tmp_path, 1)
    with pytest.raises(RepositoryError, match="no alias 'champion'") as refused:
        keep_view(store, MODEL, "champion")
    assert "plansmith promote" in refused.value.remedy


@pytest.mark.slow
def test_triton_serves_promotions_and_rollbacks(
    store: Store, place: Location, tmp_path: Path, installation: Installation
) -> None:
    """A Triton that reads the store serves what is promoted and rolled back."""
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
    publication = python_release(repository, folder / "packages")
    manifest = repository.manifest(PYTHON_MODEL, publication.version)
    publish_release(store, Path(publication.release), manifest, Digester(folder / "digests"))
