"""A version that is pulled is all there, checked, or not there at all; what is here already is not fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.release import REPORT_FILE
from plansmith.report.render import render
from plansmith.report.verdict import facts_of
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.layout import object_key
from plansmith.stores.publication import publish_release
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror, Pulled, pull
from plansmith.system.digest import Digester
from plansmith.triton.repository.release import damaged_file
from plansmith.triton.repository.repository import ModelRepository

from ...support.faults.packages import draft_of, write_package
from ...support.faults.packages import publish as compile_into
from ...support.faults.wholeness import repository_problems
from ...support.stores.places import IN_A_FOLDER
from ...support.stores.releases import BULK_FILE, MODEL, make_release

BULK_BYTES = 300_000

Publish = Callable[..., int]


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "mirror")


@pytest.fixture
def publish(store: Store, tmp_path: Path) -> Publish:
    """Make a release that answers with a number and publish it; its number in the store."""

    def make_version(answer: int, repository: str = "repository") -> int:
        release = make_release(tmp_path / repository, answer, bulk_bytes=BULK_BYTES)
        return publish_release(store, release.folder, release.manifest, Digester(tmp_path / "digests")).version

    return make_version


def bring(store: Store, mirror: Mirror, text: str = MODEL, moved: Moved = untold) -> Pulled:
    """As `plansmith pull`."""
    catalogue, version = store.find(text)
    with mirror.lock(store, alone=False):
        return pull(store, mirror, catalogue, version, moved=moved)


@pytest.mark.slow
def test_pulled_version_equals_published(store: Store, mirror: Mirror, publish: Publish, tmp_path: Path) -> None:
    """A pulled version is what was published under the number of the store."""
    publish(1)
    assert publish(2, "elsewhere") == 2, "where it was version 1"
    pulled = bring(store, mirror)
    opened, release = ModelRepository(mirror.repository.root), Path(pulled.release)
    manifest = opened.manifest(MODEL, 2)
    assert (manifest.version, pulled.shown, opened.views(MODEL).shown()) == (2, (2,), [2])
    assert damaged_file(release, manifest, Digester(tmp_path / "others")) is None
    release_folder = tmp_path / "elsewhere.plansmith" / "releases" / MODEL / "1"
    names = {path.relative_to(release_folder) for path in release_folder.rglob("*")}
    assert {path.relative_to(release) for path in release.rglob("*")} == names
    assert (release / REPORT_FILE).read_text(encoding="utf-8") == render(facts_of(manifest))
    modes = {path.name: path.stat().st_mode & 0o7777 for path in release.rglob("*") if path.is_file()}
    assert modes.pop("reproduce.sh") == 0o755
    assert set(modes.values()) == {0o644}
    assert repository_problems(opened.root) == []


@IN_A_FOLDER
def test_mirrored_content_linked_not_fetched(store: Store, mirror: Mirror, publish: Publish) -> None:
    """What another release of the mirror has is linked and not fetched."""
    publish(1)
    publish(2)
    first = bring(store, mirror, f"{MODEL}@1")
    assert first.fetched_bytes == first.total_bytes > BULK_BYTES
    second = bring(store, mirror)
    assert second.fetched_bytes < 0.1 * BULK_BYTES
    bulk = [Path(pulled.release) / "model" / BULK_FILE for pulled in (first, second)]
    assert bulk[0].samefile(bulk[1])
    again = bring(store, mirror)
    assert (again.unchanged, again.fetched_bytes) == (True, 0)


@pytest.mark.slow
def test_broken_pull_resumes_after_file(store: Store, mirror: Mirror, publish: Publish) -> None:
    """A pull that broke off goes on after the last whole file."""
    publish(1)
    fetched = 0

    def broken(count: int) -> None:
        nonlocal fetched
        fetched += count
        if fetched > BULK_BYTES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring(store, mirror, moved=broken)
    assert mirror.repository.versions(MODEL) == mirror.repository.views(MODEL).shown() == []
    pulled = bring(store, mirror)
    assert 0 < pulled.fetched_bytes < pulled.total_bytes
    assert repository_problems(mirror.repository.root) == []


@pytest.mark.slow
def test_damaged_content_refused(store: Store, mirror: Mirror, publish: Publish) -> None:
    """A damaged content is refused and what was shown stays."""
    publish(1)
    bring(store, mirror)
    publish(2)
    catalogue, version = store.find(MODEL)
    graph = next(file for file in store.release(MODEL, version).files if file.path == "model/model.onnx")
    store.objects.put(object_key(graph.sha256), b"x" * graph.bytes)
    with pytest.raises(RepositoryError, match=r"damaged|not that of") as refused:
        bring(store, mirror)
    assert refused.value.remedy
    assert (catalogue.model, mirror.shown(MODEL), mirror.repository.versions(MODEL)) == (MODEL, 1, [1])


@IN_A_FOLDER
def test_damaged_local_release_mended(store: Store, mirror: Mirror, publish: Publish, tmp_path: Path) -> None:
    """A release that was damaged here is made whole again."""
    publish(1)
    graph = Path(bring(store, mirror).release) / "model" / "model.onnx"
    graph.write_bytes(b"x" * graph.stat().st_size)
    pulled = bring(store, mirror)
    assert (pulled.unchanged, pulled.fetched_bytes < BULK_BYTES) == (False, True)
    manifest = mirror.repository.manifest(MODEL, 1)
    assert damaged_file(Path(pulled.release), manifest, Digester(tmp_path / "others")) is None
    assert graph.samefile(mirror.repository.root / MODEL / "1" / "model.onnx")


@IN_A_FOLDER
def test_shown_and_previous_versions_stay(store: Store, mirror: Mirror, publish: Publish) -> None:
    """Only what is shown and what was shown before it stays."""
    for answer in (1, 2, 3):
        publish(answer)
        bring(store, mirror)
    assert mirror.repository.versions(MODEL) == [2, 3]
    bring(store, mirror, f"{MODEL}@1")
    assert (mirror.repository.versions(MODEL), mirror.shown(MODEL)) == ([1, 3], 1)
    assert repository_problems(mirror.repository.root) == []


@IN_A_FOLDER
def test_policy_brings_earlier_versions(store: Store, mirror: Mirror, tmp_path: Path) -> None:
    """Earlier versions that the policy has Triton serve come along."""
    policy = {"triton": {"version_policy": {"latest": {"num_versions": 2}}}}
    for number, content in enumerate("abc", 1):
        package = write_package(tmp_path / content, content)
        draft = draft_of(package).model_copy(update={"spec": policy})
        result = compile_into(tmp_path / "repository", package, draft)
        manifest = ModelRepository(tmp_path / "repository").manifest(draft.name, number)
        publish_release(store, Path(result.release), manifest, Digester(tmp_path / "digests"))
    catalogue, version = store.find("tiny")
    with mirror.lock(store, alone=False):
        pulled = pull(store, mirror, catalogue, version, line=catalogue.aliases["current"].line)
    assert pulled.shown == (2, 3)


@IN_A_FOLDER
def test_non_store_has_nothing_to_pull(store: Store, mirror: Mirror) -> None:
    """A place that is no store has nothing to pull."""
    with pytest.raises(RepositoryError, match="is no store") as refused:
        bring_held(store, mirror)
    assert "plansmith publish" in refused.value.remedy


@IN_A_FOLDER
def test_foreign_folder_refused(store: Store, mirror: Mirror, publish: Publish, tmp_path: Path) -> None:
    """A folder of something else is refused."""
    publish(1)
    with pytest.raises(RepositoryError, match="holds releases that were made here") as made_here:
        bring(store, Mirror(tmp_path / "repository"))
    assert "--into" in made_here.value.remedy
    bring(store, mirror)
    package = write_package(tmp_path / "package", "new")
    with pytest.raises(RepositoryError, match="nothing else may come into it") as shows:
        compile_into(mirror.repository.root, package, draft_of(package))
    assert "--repository" in shows.value.remedy
    with pytest.raises(RepositoryError, match="rollback"):
        withdraw(mirror)
    with mirror.lock(store, alone=True), pytest.raises(RepositoryError, match="another plansmith") as busy:
        bring(store, Mirror(mirror.repository.root))
    assert busy.value.remedy


def bring_held(store: Store, mirror: Mirror) -> None:
    """Begin to use a mirror."""
    with mirror.lock(store, alone=False):
        pass


def withdraw(mirror: Mirror) -> None:
    """As for a repository that models are compiled into."""
    try:
        mirror.repository.withdraw(MODEL, 1, "it answers too slowly")
    except RepositoryError as error:
        raise RepositoryError(error.remedy) from error
