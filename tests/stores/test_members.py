"""An ensemble goes through a store with its parts: to mirrors, to a Triton that reads the store, and away again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.destination import Location
from plansmith.stores import repository_view
from plansmith.stores.diff import differences, side_of_folder, side_of_stored
from plansmith.stores.layout import OBJECTS, VIEW
from plansmith.stores.prune import Pruner, Retention
from plansmith.stores.publication import publish_release
from plansmith.stores.repository_view import keep_view, refresh_view
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror, Pulled, pull
from plansmith.stores.verify import verify_repository, verify_store
from plansmith.system.digest import Digester
from plansmith.triton.repository.ensembles import MEMBERS
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.live import RunningTriton
from plansmith.triton.server.server import TritonServer

from ..support.faults.wholeness import repository_problems, shown_parts
from ..support.stores.filled import prune_day_before
from ..support.stores.followed import MirrorTriton, Site
from ..support.stores.places import IN_A_FOLDER
from ..support.triton.clients import Clients
from ..support.triton.installed import installation
from ..support.triton.pipelines import BROKEN, NUMBER_PART, SUPPORT_FILE, publish_pipeline, write_pipeline
from ..support.triton.versions import MODEL

__all__ = ["installation"]

pytestmark = pytest.mark.xdist_group("stored-members")

Publish = Callable[[], set[str]]


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """Where ensembles are compiled into."""
    return ModelRepository(tmp_path / "repository")


@pytest.fixture
def publish(store: Store, repository: ModelRepository, tmp_path: Path) -> Publish:
    """Publish the next version of an ensemble, and have `current` stand for it; the names of its parts."""
    return lambda: publish_into(store, repository, tmp_path)


def publish_into(
    store: Store, repository: ModelRepository, folder: Path, *, initialize: str = "pass", salt: str = ""
) -> set[str]:
    """The same, with each a place of its own."""
    publication = publish_pipeline(repository, folder / "packages", initialize=initialize, salt=salt)
    manifest = repository.manifest(MODEL, publication.version)
    publish_release(store, Path(publication.release), manifest, Digester(folder / "digests"))
    return {member.model for member in manifest.package.members}


def bring(store: Store, mirror: Mirror, text: str = MODEL) -> Pulled:
    """As `plansmith pull`."""
    catalogue, version = store.find(text)
    with mirror.lock(store, alone=False):
        return pull(store, mirror, catalogue, version)


@pytest.mark.slow
def test_mirror_shows_ensemble_parts(store: Store, publish: Publish, tmp_path: Path) -> None:
    """A mirror shows an ensemble with its parts, and takes those away that no view names."""
    mirror = Mirror(tmp_path / "mirror")
    named = {}
    for number in (1, 2, 3):
        named[number] = publish()
        assert bring(store, mirror).shown == (number,)
        assert shown_parts(mirror.repository.root) == sorted(named[number] | named.get(number - 1, set()))
        assert repository_problems(mirror.repository.root) == []
    assert bring(store, mirror, f"{MODEL}@1").shown == (1,)
    assert shown_parts(mirror.repository.root) == sorted(named[1] | named[3])
    assert verify_store(store).damages == verify_repository(mirror.repository).damages == ()
    assert not (mirror.repository.store / "incoming" / MODEL).exists()


@IN_A_FOLDER
def test_escaping_part_names_refused(store: Store, repository: ModelRepository, tmp_path: Path) -> None:
    """A release whose parts have names that lead elsewhere is not brought."""
    package = tmp_path / "package"
    draft = write_pipeline(package, 1).model_copy(update={"version": 1})
    members = (draft.package.members[0].model_copy(update={"model": "../elsewhere"}), *draft.package.members[1:])
    draft = draft.model_copy(update={"package": draft.package.model_copy(update={"members": members})})
    (package / "manifest.json").write_text(draft.model_dump_json())
    publish_release(store, package, draft, Digester(tmp_path / "digests"))
    mirror = Mirror(tmp_path / "mirror")
    with pytest.raises(RepositoryError, match=r"'\.\./elsewhere' is no name of a part of versioned"):
        bring(store, mirror)
    assert mirror.repository.versions(MODEL) == []
    assert not any(mirror.repository.root.iterdir())
    assert not (tmp_path / "elsewhere").exists()
    del repository


@IN_A_FOLDER
def test_ensemble_diff_names_parts(store: Store, repository: ModelRepository, publish: Publish) -> None:
    """The differences of two ensembles name the parts that differ."""
    publish()
    publish()
    old, new = (side_of_stored(store, f"{MODEL}@{number}") for number in (1, 2))
    (part,) = differences(old, new).sections["parts"]
    assert part.what == NUMBER_PART
    assert str(part.old).startswith(f"{MODEL}.{NUMBER_PART}.")
    assert part.old != part.new
    again = differences(old, side_of_folder(repository.release(MODEL, 1), "here"))
    assert again.sections["parts"] == ()


@IN_A_FOLDER
def test_prune_removes_unused_part_contents(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prune takes the contents of parts that no version has any more."""
    publish()
    own = {
        file.sha256
        for file in store.release(MODEL, store.find(f"{MODEL}@1")[1]).files
        if file.path.startswith(f"members/{NUMBER_PART}/model/")
    }
    publish()
    publish()
    prune_day_before(monkeypatch, store)
    Pruner(store, Retention(keep=1, seconds=0), dry=False, settle_seconds=0).prune()
    keys = {item.key.rpartition("/")[2] for item in store.objects.below(OBJECTS)}
    assert own
    assert not any(sha256 in key for sha256 in own for key in keys)
    assert verify_store(store).damages == ()


def viewed(store: Store) -> dict[str, set[str]]:
    """What lies in the store's repository: files by model."""
    by_model: dict[str, set[str]] = {}
    for item in store.objects.below(VIEW):
        model, _, name = item.key.removeprefix(VIEW).partition("/")
        by_model.setdefault(model, set()).add(name)
    return by_model


@pytest.mark.slow
def test_parts_precede_naming_configuration(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are there before the configuration that names them, and each one's own comes last."""
    named = publish()
    acts: list[str] = []
    copy, put = store.objects.copy, store.objects.put

    def copied(source: str, key: str) -> None:
        acts.append(key.removeprefix(VIEW))
        copy(source, key)

    def written(key: str, content: bytes) -> None:
        acts.append(key.removeprefix(VIEW))
        put(key, content)

    monkeypatch.setattr(store.objects, "copy", copied)
    monkeypatch.setattr(store.objects, "put", written)
    assert keep_view(store, MODEL) == (1,)
    configuration = acts.index(f"{MODEL}/config.pbtxt")
    for part in named:
        assert acts.index(f"{part}/1/model.py") < acts.index(f"{part}/config.pbtxt") < configuration
    whole = {part: {"config.pbtxt", "1/model.py", SUPPORT_FILE} for part in named}
    assert viewed(store) == whole | {MODEL: {"config.pbtxt", "1/pipeline.json"}}
    before = len(acts)
    refresh_view(store, MODEL)
    assert len(acts) == before


@pytest.mark.slow
@IN_A_FOLDER
def test_unnamed_parts_leave_repository(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that no configuration names go from the store's repository after a while."""
    named = {}
    for number in (1, 2):
        named[number] = publish()
        keep_view(store, MODEL)
    theirs = f"{VIEW}{MODEL}.theirs/1/model.py"
    store.objects.put(theirs, b"no part of ours")
    assert set(viewed(store)) == {MODEL, f"{MODEL}.theirs", *named[1], *named[2]}
    monkeypatch.setattr(repository_view, "_GRACE_SECONDS", -1e6)
    named[3] = publish()
    assert refresh_view(store, MODEL) == (3,)
    assert set(viewed(store)) == {MODEL, f"{MODEL}.theirs", *named[2], *named[3]}, "version 2 may be being read"
    refresh_view(store, MODEL)
    assert set(viewed(store)) == {MODEL, f"{MODEL}.theirs", *named[3]}


@pytest.mark.slow
def test_triton_on_store_serves_ensemble(
    store: Store, place: Location, publish: Publish, tmp_path: Path, installation: Installation
) -> None:
    """A Triton that reads the store serves an ensemble with its parts and loses no request."""
    publish()
    keep_view(store, MODEL)
    where = f"s3://{place.endpoint_url}/{place.to.removeprefix('s3://')}" if place.is_s3 else place.to
    (tmp_path / "empty").mkdir()
    arguments = [f"--model-repository={where}/{VIEW}"]
    with TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[], arguments=arguments) as server:
        triton = RunningTriton(f"grpc://{server.grpc_url}")
        assert triton.load(Path(MODEL), version=1) == [1]
        with Clients(server.http_url, server.grpc_url, count=2) as clients:
            clients.wait_for(1)
            publish()
            refresh_view(store, MODEL)
            assert triton.load(Path(MODEL), version=2) == [2]
            clients.wait_for(2)
            store.roll_back(MODEL)
            refresh_view(store, MODEL)
            assert triton.load(Path(MODEL), version=1) == [1]
            clients.wait_for(1)
        assert clients.lost == clients.torn == []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def mirror_triton(site: Site, installation: Installation) -> Iterator[MirrorTriton]:
    """A Triton that reads the site's mirror."""
    with MirrorTriton(site.mirror.repository.root, installation) as mirror_triton:
        yield mirror_triton


@pytest.mark.slow
def test_triton_on_mirror_follows_ensemble(
    site: Site, mirror_triton: MirrorTriton, repository: ModelRepository, tmp_path: Path
) -> None:
    """A Triton beside a mirror follows an ensemble, and goes back where a part does not load."""

    def parts_ready() -> set[str]:
        rows = RunningTriton(mirror_triton.url).index()
        return {row["name"] for row in rows if row["state"] == "READY" and row["name"] != MODEL}

    root = site.mirror.repository.root
    publish_into(site.store, repository, tmp_path)
    with site.sync(mirror_triton.url) as sync:
        assert (sync.look(), mirror_triton.ready()) == ([], [1])
        with Clients(mirror_triton.server.http_url, mirror_triton.server.grpc_url, count=2) as clients:
            clients.wait_for(1)
            second = publish_into(site.store, repository, tmp_path)
            assert (sync.look(), mirror_triton.ready()) == ([], [2])
            clients.wait_for(2)
            assert parts_ready() == second
            publish_into(site.store, repository, tmp_path, initialize=BROKEN, salt="sound")
            (fault,) = sync.look()
            assert "there are no words" in fault.message
            assert (mirror_triton.ready(), parts_ready()) == ([2], second)
            assert site.mirror.repository.views(MODEL).shown() == [2]
        assert clients.lost == clients.torn == []
    assert second <= set(shown_parts(root))
    assert repository_problems(root) == []
    assert (site.mirror.repository.store / MEMBERS / MODEL).is_dir()
