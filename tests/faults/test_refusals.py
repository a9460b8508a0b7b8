"""What a publication refuses, it refuses before it makes a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.model import Device
from plansmith.records.validation import ServedReport

from ..support.faults.packages import MODEL, draft_of, publish, write_package
from ..support.faults.wholeness import release_numbers, repository_problems, shown_versions, store_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(tmp_path / "package", "new")


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_foreign_model_left_alone(kind: str, root: Path, package: Path, tmp_path: Path) -> None:
    """A model of somebody else is left alone."""
    theirs = write_package(root / MODEL if kind == "folder" else tmp_path / "theirs", "theirs")
    if kind == "link":
        root.mkdir()
        (root / MODEL).symlink_to(theirs)
    with pytest.raises(RepositoryError, match="did not make"):
        publish(root, package, draft_of(package))
    assert (root / MODEL / "config.pbtxt").read_text() == "config.pbtxt of theirs"
    assert release_numbers(root, MODEL) == ()


def test_other_interface_refused(root: Path, package: Path, tmp_path: Path) -> None:
    """Another interface is refused and the old version stays."""
    publish(root, package, draft_of(package))
    replacement = write_package(tmp_path / "other", "other")
    with pytest.raises(RepositoryError, match="logits is gone; scores is new"):
        publish(root, replacement, draft_of(replacement, output="scores"))
    assert release_numbers(root, MODEL) == shown_versions(root, MODEL) == (1,)
    assert repository_problems(root) == []


def test_damaged_release_names_remedy(root: Path, package: Path, tmp_path: Path) -> None:
    """A damaged release is named with what to do about it."""
    release = Path(publish(root, package, draft_of(package)).release)
    (release / "manifest.json").write_text("{")
    with pytest.raises(RepositoryError, match=r"manifest\.json is damaged") as raised:
        publish(root, package, draft_of(package))
    assert str(release) in raised.value.remedy
    release.rename(tmp_path / "away")
    assert publish(root, package, draft_of(package)).version == 2, "the view showed a version 1"


def test_renamed_repository_shows_versions(root: Path, package: Path, tmp_path: Path) -> None:
    """A repository that was renamed shows its versions after the next publication."""
    publish(root, package, draft_of(package))
    renamed = tmp_path / "models"
    root.rename(renamed)
    store_of(root).rename(store_of(renamed))
    assert publish(renamed, package, draft_of(package)).unchanged
    assert shown_versions(renamed, MODEL) == (1,)
    assert repository_problems(renamed) == []


def test_cpu_check_does_not_cover_gpu(root: Path, package: Path) -> None:
    """A release checked on CPU instances does not stand for one checked on a GPU."""

    def checked_on(device: Device) -> ServedReport:
        return ServedReport(
            server_version="2.51.0",
            device=device,
            backend="real",
            backend_runtime="1.23.2",
            requests=1,
            concurrent_clients=1,
            median_seconds=0.1,
            worst_seconds=0.1,
            checks=(),
            completed={},
        )

    draft = draft_of(package)
    releases = [
        publish(root, package, draft.model_copy(update={"served": checked_on(device)}))
        for device in ("cpu", "gpu", "gpu")
    ]
    assert [(release.version, release.unchanged) for release in releases] == [(1, False), (2, False), (2, True)]


def test_changed_file_not_published(tmp_path: Path) -> None:
    """A file that is no longer what was checked is not published."""
    root, package = tmp_path / "repository", write_package(tmp_path / "package", "new")
    draft = draft_of(package)
    model = package / "model" / "model.onnx"
    model.write_text(model.read_text().swapcase())
    with pytest.raises(RepositoryError, match=r"model/model\.onnx was damaged on the disk after it was checked"):
        publish(root, package, draft)
    assert (release_numbers(root, MODEL), repository_problems(root)) == ((), [])
    assert publish(root, package, draft_of(package)).version == 1
