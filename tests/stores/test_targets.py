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


def test_empty_store_takes_first_target(store: Store) -> None:
    """A store without releases is of no target and takes the first one."""
    assert require_store(store).target == ""
    before = store.marker()
    assert require_store(store, "local-cpu").target == "local-cpu"
    marker = store.marker()
    assert before is not None
    assert marker is not None
    assert (marker.target, marker.created) == ("local-cpu", before.created)
    assert require_store(store) == marker


def test_a_target_stays(store: Store) -> None:
    require_store(store)
    require_store(store, "local-cpu")
    with pytest.raises(RepositoryError, match=r"belongs to target local-cpu, not triton-26\.05") as refused:
        require_store(store, "triton-26.05")
    assert refused.value.remedy
    assert require_store(store, "local-cpu").target == "local-cpu"


def test_one_first_release_sets_target(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two first releases, one gives the target."""
    require_store(store)
    behind = store.marker()
    require_store(Store(FolderObjects(Path(store.place))), "local-cpu")
    monkeypatch.setattr(store, "marker", lambda: behind)  # as it was read a moment before
    with pytest.raises(RepositoryError, match="belongs to target local-cpu"):
        require_store(store, "triton-26.05")
