"""A store that machines share their work through takes the target of its first release."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.initialize import require_store
from plansmith.stores.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(FolderObjects(tmp_path / "store"))


def test_a_store_without_releases_is_of_no_target_and_takes_the_first_one(store: Store) -> None:
    assert require_store(store).target == ""
    made = store.marker()
    assert require_store(store, "local-cpu").target == "local-cpu"
    marker = store.marker()
    assert made is not None
    assert marker is not None
    assert (marker.target, marker.created) == ("local-cpu", made.created)
    assert require_store(store) == marker


def test_a_target_stays(store: Store) -> None:
    require_store(store)
    require_store(store, "local-cpu")
    with pytest.raises(RepositoryError, match=r"belongs to target local-cpu, not triton-26\.05") as refused:
        require_store(store, "triton-26.05")
    assert refused.value.remedy
    assert require_store(store, "local-cpu").target == "local-cpu"


def test_of_two_first_releases_one_gives_the_target(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    require_store(store)
    behind = store.marker()
    require_store(Store(FolderObjects(Path(store.place))), "local-cpu")
    monkeypatch.setattr(store, "marker", lambda: behind)  # as it was read a moment before
    with pytest.raises(RepositoryError, match="belongs to target local-cpu"):
        require_store(store, "triton-26.05")


def test_what_is_not_ours_is_not_made_a_store(store: Store) -> None:
    Path(store.place).mkdir()
    (Path(store.place) / "thesis.tex").write_text("mine")
    with pytest.raises(RepositoryError, match="not plansmith's"):
        require_store(store)
    assert [path.name for path in Path(store.place).iterdir()] == ["thesis.tex"]
