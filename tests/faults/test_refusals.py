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


@pytest.mark.parametrize("what", ["folder", "link"])
def test_a_model_of_somebody_else_is_left_alone(what: str, root: Path, package: Path, tmp_path: Path) -> None:
    theirs = write_package(root / MODEL if what == "folder" else tmp_path / "theirs", "theirs")
    if what == "link":
        root.mkdir()
        (root / MODEL).symlink_to(theirs)
    with pytest.raises(RepositoryError, match="did not make"):
        publish(root, package, draft_of(package))
    assert (root / MODEL / "config.pbtxt").read_text() == "config.pbtxt of theirs"
    assert release_numbers(root, MODEL) == ()


def test_another_interface_is_refused_and_the_old_version_stays(root: Path, package: Path, tmp_path: Path) -> None:
    publish(root, package, draft_of(package))
    other = write_package(tmp_path / "other", "other")
    with pytest.raises(RepositoryError, match="logits is gone; scores is new"):
        publish(root, other, draft_of(other, output="scores"))
    assert release_numbers(root, MODEL) == shown_versions(root, MODEL) == (1,)
    assert repository_problems(root) == []


def test_a_damaged_release_is_named_with_what_to_do_about_it(root: Path, package: Path, tmp_path: Path) -> None:
    release = Path(publish(root, package, draft_of(package)).release)
    (release / "manifest.json").write_text("{")
    with pytest.raises(RepositoryError, match=r"manifest\.json is damaged") as raised:
        publish(root, package, draft_of(package))
    assert str(release) in raised.value.remedy
    release.rename(tmp_path / "away")
    assert publish(root, package, draft_of(package)).version == 2, "the view showed a version 1"


def test_a_repository_that_was_renamed_shows_its_versions_after_the_next_publication(
    root: Path, package: Path, tmp_path: Path
) -> None:
    publish(root, package, draft_of(package))
    renamed = tmp_path / "models"
    root.rename(renamed)
    store_of(root).rename(store_of(renamed))
    assert publish(renamed, package, draft_of(package)).unchanged
    assert shown_versions(renamed, MODEL) == (1,)
    assert repository_problems(renamed) == []


def test_a_release_that_was_checked_on_cpu_instances_does_not_stand_for_one_checked_on_a_gpu(
    root: Path, package: Path
) -> None:
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
    made = [
        publish(root, package, draft.model_copy(update={"served": checked_on(device)}))
        for device in ("cpu", "gpu", "gpu")
    ]
    assert [(one.version, one.unchanged) for one in made] == [(1, False), (2, False), (2, True)]


def test_a_file_that_is_no_longer_what_was_checked_is_not_published(tmp_path: Path) -> None:
    root, package = tmp_path / "repository", write_package(tmp_path / "package", "new")
    draft = draft_of(package)
    model = package / "model" / "model.onnx"
    model.write_text(model.read_text().swapcase())
    with pytest.raises(RepositoryError, match=r"model/model\.onnx was damaged on the disk after it was checked"):
        publish(root, package, draft)
    assert (release_numbers(root, MODEL), repository_problems(root)) == ((), [])
    assert publish(root, package, draft_of(package)).version == 1
