"""The parts of an ensemble lie in the repository for as long as a view names them, and never change there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plansmith.config.target.targets import load_target
from plansmith.errors import RepositoryError
from plansmith.fleet.maintenance.garbage import Collector, Limits
from plansmith.records.pipeline import MODEL_PART
from plansmith.stores.maintenance.verify import verify_repository
from plansmith.triton.checker.checker import check_package, check_repository
from plansmith.triton.repository.ensemble_members import MEMBERS, is_part
from plansmith.triton.repository.release import engine_folder, misfit
from plansmith.triton.repository.repository import ModelRepository

from ...support.faults.packages import TARGET
from ...support.faults.wholeness import repository_problems, shown_parts
from ...support.triton.pipelines import NUMBER_PART, SUPPORT_FILE, publish_draft, publish_pipeline, write_pipeline
from ...support.triton.scripted import publish_scripted
from ...support.triton.versions import MODEL, release


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """With version 1 of an ensemble."""
    opened = ModelRepository(tmp_path / "repository")
    publish_pipeline(opened, tmp_path)
    return opened


def parts(repository: ModelRepository, version: int) -> dict[str, str]:
    """The names of a release's parts on Triton, by what they are in it."""
    return {member.part: member.model for member in repository.manifest(MODEL, version).package.members}


def later(repository: ModelRepository, *, days: float) -> Collector:
    """What collects so many days from now, with nothing too young."""
    limits = Limits(older_than=86400, now=time.time() + days * 86400, scratch=(), staging=())
    return Collector(repository.root.parent, repository.root, limits)


def test_triton_finds_each_part_as_a_model_and_people_are_told_of_the_ensemble_alone(
    repository: ModelRepository,
) -> None:
    assert shown_parts(repository.root) == sorted(parts(repository, 1).values())
    for name in parts(repository, 1).values():
        link = repository.root / name
        assert sorted(p.relative_to(link).as_posix() for p in link.rglob("*") if p.is_file()) == [
            "1/__pycache__",
            "1/model.py",
            "config.pbtxt",
            SUPPORT_FILE,
        ]
        assert is_part(link)
    released = repository.release(MODEL, 1) / "members" / NUMBER_PART / "model" / "model.py"
    assert (repository.root / parts(repository, 1)[NUMBER_PART] / "1" / "model.py").samefile(released)
    assert repository.served_models() == repository.models() == repository.known() == [MODEL]
    assert not is_part(repository.root / MODEL)
    assert repository_problems(repository.root) == []


def test_a_part_that_two_versions_share_stays_as_it_is_and_others_go_once_no_view_names_them(
    repository: ModelRepository, tmp_path: Path
) -> None:
    shared = repository.root / parts(repository, 1)[MODEL_PART]
    before = (shared.lstat().st_ino, shared.resolve(), shared.stat().st_mtime_ns)
    publish_pipeline(repository, tmp_path)
    first, second = parts(repository, 1), parts(repository, 2)
    assert first[MODEL_PART] == second[MODEL_PART]
    assert shown_parts(repository.root) == sorted({*first.values(), *second.values()}), "of the view before, too"
    publish_pipeline(repository, tmp_path)
    assert shown_parts(repository.root) == sorted({*second.values(), *parts(repository, 3).values()})
    assert (shared.lstat().st_ino, shared.resolve(), shared.stat().st_mtime_ns) == before
    folders = sorted(path.name for path in (repository.store / MEMBERS / MODEL).iterdir())
    assert folders == shown_parts(repository.root)
    assert repository_problems(repository.root) == []


def test_the_parts_that_a_script_asks_lie_there_for_as_long_as_its_view_names_them(tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "repository")
    for salt in ("", "", "other"):
        number = publish_scripted(repository, tmp_path, salt=salt).version
    assert shown_parts(repository.root) == sorted({*parts(repository, 2).values(), *parts(repository, number).values()})
    assert repository_problems(repository.root) == []
    collected = later(repository, days=3).collect(lambda _: None)
    assert {one.kind for one in collected} >= {"view", "part"}
    assert shown_parts(repository.root) == sorted(parts(repository, number).values())
    assert verify_repository(repository).damages == ()


def test_versions_stand_beside_each_other_only_with_the_very_same_parts(
    repository: ModelRepository, tmp_path: Path
) -> None:
    publish_pipeline(repository, tmp_path)
    first, second = repository.manifest(MODEL, 1), repository.manifest(MODEL, 2)
    assert misfit(first, second) == "other parts than version 2"
    assert repository.views(MODEL).shown() == [2]
    assert repository.why_hidden(MODEL, 1, second) == "other parts than version 2"
    same = write_pipeline(tmp_path / "same", 2).model_copy(update={"release_digest": "of other options"})
    publish_draft(repository, tmp_path / "same", same)
    assert repository.views(MODEL).shown() == [2, 3]


def test_a_model_may_become_an_ensemble_and_a_model_again(tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "repository")
    release(repository, tmp_path)
    publish_pipeline(repository, tmp_path)
    assert (repository.views(MODEL).shown(), len(shown_parts(repository.root))) == ([2], 2)
    for _ in range(2):
        release(repository, tmp_path)
    assert (repository.views(MODEL).shown(), shown_parts(repository.root)) == ([1, 3, 4], [])
    assert not any((repository.store / MEMBERS / MODEL).iterdir())


def test_going_back_brings_the_parts_of_the_version_before_also_where_they_had_gone(
    repository: ModelRepository, tmp_path: Path
) -> None:
    for _ in range(2):
        publish_pipeline(repository, tmp_path)
    first = set(parts(repository, 1).values())
    assert not first <= set(shown_parts(repository.root))
    for number in (3, 2):
        repository.withdraw(MODEL, number, "it answers wrongly")
        assert repository_problems(repository.root) == []
    assert first <= set(shown_parts(repository.root))
    assert repository.views(MODEL).shown() == [1]


def test_of_a_model_that_is_hidden_the_parts_go_when_a_collection_takes_the_view_before(
    repository: ModelRepository,
) -> None:
    repository.withdraw(MODEL, 1, "nobody wants it")
    assert repository.served_models() == []
    assert len(shown_parts(repository.root)) == 2, "a Triton may be reading the view before"
    assert later(repository, days=0).collect(lambda _: None) == []
    listed = later(repository, days=3).found(lambda _: None)
    assert [one.kind for one in listed] == ["view", "part", "part"]
    assert {one.kind for one in later(repository, days=3).collect(lambda _: None)} == {"view", "part"}
    assert shown_parts(repository.root) == []
    assert not any((repository.store / MEMBERS / MODEL).iterdir())


def test_a_collection_leaves_the_parts_alone_that_a_view_names(repository: ModelRepository, tmp_path: Path) -> None:
    publish_pipeline(repository, tmp_path)
    collected = later(repository, days=3).collect(lambda _: None)
    assert {one.kind for one in collected} >= {"view", "part"}
    assert shown_parts(repository.root) == sorted(parts(repository, 2).values())
    assert repository_problems(repository.root) == []


def test_a_model_of_somebody_else_under_a_parts_name_is_left_alone_and_nothing_is_published(
    repository: ModelRepository, tmp_path: Path
) -> None:
    draft = write_pipeline(tmp_path / "next", 2)
    theirs = repository.root / draft.package.members[0].model
    theirs.mkdir()
    with pytest.raises(RepositoryError, match="a model that plansmith did not make for it") as refused:
        publish_draft(repository, tmp_path / "next", draft)
    assert "move it away" in refused.value.remedy
    assert (repository.versions(MODEL), [*theirs.iterdir()]) == ([1], [])
    assert theirs.name in repository.served_models(), "it is a model of its own"


@pytest.mark.parametrize("name", ["other.number.0123abcd", "../versioned.number.0123abcd", "versioned", "versioned.x"])
def test_a_part_is_named_after_its_ensemble_and_its_content(
    name: str, repository: ModelRepository, tmp_path: Path
) -> None:
    draft = write_pipeline(tmp_path / "next", 2)
    members = (draft.package.members[0].model_copy(update={"model": name}), *draft.package.members[1:])
    draft = draft.model_copy(update={"package": draft.package.model_copy(update={"members": members})})
    with pytest.raises(RepositoryError, match="is no name of a part of versioned"):
        publish_draft(repository, tmp_path / "next", draft)
    assert repository.versions(MODEL) == [1]


def test_a_damaged_part_is_told_and_made_anew_in_one_step(repository: ModelRepository, tmp_path: Path) -> None:
    part = repository.root / parts(repository, 1)[NUMBER_PART]
    harmed = part.resolve()
    (harmed / "1" / "model.py").unlink()
    (harmed / "1" / "model.py").write_text("no code")
    (damage,) = verify_repository(repository).damages
    assert (damage.path, damage.key) == (f"members/{NUMBER_PART}/model/model.py", str(part / "1" / "model.py"))
    publish_draft(repository, tmp_path / f"{MODEL}-1", write_pipeline(tmp_path / "again", 1))
    assert repository.versions(MODEL) == [1], "it is the same version"
    assert part.resolve() != harmed
    assert part.stat().st_mtime_ns > max(path.stat().st_mtime_ns for path in repository.release(MODEL, 1).rglob("*"))
    assert not harmed.exists()
    assert verify_repository(repository).damages == ()
    assert repository_problems(repository.root) == []


def test_a_part_that_a_kill_left_without_a_view_goes_with_the_next_look(repository: ModelRepository) -> None:
    repository.members(MODEL).show(repository.manifest(MODEL, 1))
    (repository.root / MODEL).unlink()  # as if it was killed before the view was exchanged
    for view in repository.views(MODEL).others():
        repository.remove(view)
    repository.settle_all()
    assert shown_parts(repository.root) == []


def test_the_check_of_a_repository_and_of_a_release_compares_an_ensemble_with_its_parts(
    repository: ModelRepository,
) -> None:
    assert [found.message for found in check_repository(repository.root) if found.severity == "error"] == []
    manifest, folder = repository.manifest(MODEL, 1), repository.release(MODEL, 1)
    target = load_target(TARGET)
    assert [found.message for found in check_package(manifest.package, folder, target=target)] == []
    config = folder / "members" / NUMBER_PART / "config.pbtxt"
    text = config.read_text().replace("TYPE_FP32", "TYPE_INT8")
    config.unlink()
    config.write_text(text)
    found = check_package(manifest.package, folder, target=target)
    assert any(one.severity == "error" and "TYPE_INT8" in one.message for one in found), found


def test_the_files_of_the_model_itself_lie_in_its_part(repository: ModelRepository) -> None:
    manifest, folder = repository.manifest(MODEL, 1), repository.release(MODEL, 1)
    inner = manifest.engine.inner_folder
    assert engine_folder(folder, manifest) == folder / "members" / MODEL_PART / "model" / inner
    plain = manifest.model_copy(update={"package": manifest.package.model_copy(update={"members": ()})})
    assert engine_folder(folder, plain) == folder / "model" / inner
