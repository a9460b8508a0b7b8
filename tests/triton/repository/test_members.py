"""The parts of an ensemble lie in the repository for as long as a view names them, and never change there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plansmith.config.targets import load_target
from plansmith.errors import RepositoryError
from plansmith.fleet.maintenance.garbage import Collector, Limits
from plansmith.records.pipeline import MODEL_PART
from plansmith.stores.verify import verify_repository
from plansmith.triton.checker.checker import check_package, check_repository
from plansmith.triton.repository.ensembles import MEMBERS, is_part
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


def test_parts_are_models_ensemble_told_alone(
    repository: ModelRepository,
) -> None:
    """Triton finds each part as a model, and people are told of the ensemble alone."""
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
    assert repository.served_models() == repository.models() == repository.model_names() == [MODEL]
    assert not is_part(repository.root / MODEL)
    assert repository_problems(repository.root) == []


def test_shared_part_stays_others_go(repository: ModelRepository, tmp_path: Path) -> None:
    """A part that two versions share stays as it is, and others go once no view names them."""
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


def test_script_parts_stay_while_named(tmp_path: Path) -> None:
    """The parts that a script asks lie there for as long as its view names them."""
    repository = ModelRepository(tmp_path / "repository")
    for salt in ("", "", "other"):
        number = publish_scripted(repository, tmp_path, salt=salt).version
    assert shown_parts(repository.root) == sorted({*parts(repository, 2).values(), *parts(repository, number).values()})
    assert repository_problems(repository.root) == []
    collected = later(repository, days=3).collect(lambda _: None)
    assert {item.kind for item in collected} >= {"view", "part"}
    assert shown_parts(repository.root) == sorted(parts(repository, number).values())
    assert verify_repository(repository).damages == ()


def test_versions_coexist_with_same_parts(repository: ModelRepository, tmp_path: Path) -> None:
    """Versions stand beside each other only with the very same parts."""
    publish_pipeline(repository, tmp_path)
    first, second = repository.manifest(MODEL, 1), repository.manifest(MODEL, 2)
    assert misfit(first, second) == "other parts than version 2"
    assert repository.views(MODEL).shown() == [2]
    assert repository.why_hidden(MODEL, 1, second) == "other parts than version 2"
    same = write_pipeline(tmp_path / "same", 2).model_copy(update={"release_digest": "of other options"})
    publish_draft(repository, tmp_path / "same", same)
    assert repository.views(MODEL).shown() == [2, 3]


def test_model_becomes_ensemble_and_back(tmp_path: Path) -> None:
    """A model may become an ensemble and a model again."""
    repository = ModelRepository(tmp_path / "repository")
    release(repository, tmp_path)
    publish_pipeline(repository, tmp_path)
    assert (repository.views(MODEL).shown(), len(shown_parts(repository.root))) == ([2], 2)
    for _ in range(2):
        release(repository, tmp_path)
    assert (repository.views(MODEL).shown(), shown_parts(repository.root)) == ([1, 3, 4], [])
    assert not any((repository.store / MEMBERS / MODEL).iterdir())


def test_going_back_restores_parts(repository: ModelRepository, tmp_path: Path) -> None:
    """Going back brings the parts of the version before also where they had gone."""
    for _ in range(2):
        publish_pipeline(repository, tmp_path)
    first = set(parts(repository, 1).values())
    assert not first <= set(shown_parts(repository.root))
    for number in (3, 2):
        repository.withdraw(MODEL, number, "it answers wrongly")
        assert repository_problems(repository.root) == []
    assert first <= set(shown_parts(repository.root))
    assert repository.views(MODEL).shown() == [1]


def test_hidden_model_parts_collected(
    repository: ModelRepository,
) -> None:
    """Of a model that is hidden, the parts go when a collection takes the view before."""
    repository.withdraw(MODEL, 1, "nobody wants it")
    assert repository.served_models() == []
    assert len(shown_parts(repository.root)) == 2, "a Triton may be reading the view before"
    assert later(repository, days=0).collect(lambda _: None) == []
    listed = later(repository, days=3).find(lambda _: None)
    assert [item.kind for item in listed] == ["view", "part", "part"]
    assert {item.kind for item in later(repository, days=3).collect(lambda _: None)} == {"view", "part"}
    assert shown_parts(repository.root) == []
    assert not any((repository.store / MEMBERS / MODEL).iterdir())


def test_collection_spares_named_parts(repository: ModelRepository, tmp_path: Path) -> None:
    """A collection leaves the parts alone that a view names."""
    publish_pipeline(repository, tmp_path)
    collected = later(repository, days=3).collect(lambda _: None)
    assert {item.kind for item in collected} >= {"view", "part"}
    assert shown_parts(repository.root) == sorted(parts(repository, 2).values())
    assert repository_problems(repository.root) == []


def test_foreign_model_blocks_publication(repository: ModelRepository, tmp_path: Path) -> None:
    """A model of somebody else under a part's name is left alone, and nothing is published."""
    draft = write_pipeline(tmp_path / "next", 2)
    theirs = repository.root / draft.package.members[0].model
    theirs.mkdir()
    with pytest.raises(RepositoryError, match="a model that plansmith did not make for it") as refused:
        publish_draft(repository, tmp_path / "next", draft)
    assert "move it away" in refused.value.remedy
    assert (repository.versions(MODEL), [*theirs.iterdir()]) == ([1], [])
    assert theirs.name in repository.served_models(), "it is a model of its own"


@pytest.mark.parametrize("name", ["other.number.0123abcd", "../versioned.number.0123abcd", "versioned", "versioned.x"])
def test_part_named_after_ensemble_and_content(name: str, repository: ModelRepository, tmp_path: Path) -> None:
    """A part is named after its ensemble and its content."""
    draft = write_pipeline(tmp_path / "next", 2)
    members = (draft.package.members[0].model_copy(update={"model": name}), *draft.package.members[1:])
    draft = draft.model_copy(update={"package": draft.package.model_copy(update={"members": members})})
    with pytest.raises(RepositoryError, match="is no name of a part of versioned"):
        publish_draft(repository, tmp_path / "next", draft)
    assert repository.versions(MODEL) == [1]


def test_damaged_part_remade_in_step(repository: ModelRepository, tmp_path: Path) -> None:
    """A damaged part is told, and made anew in one step."""
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


def test_orphaned_part_goes_with_next_look(repository: ModelRepository) -> None:
    """A part that a kill left without a view goes with the next look."""
    repository.members(MODEL).show(repository.manifest(MODEL, 1))
    (repository.root / MODEL).unlink()  # as if it was killed before the view was exchanged
    for view in repository.views(MODEL).others():
        repository.remove(view)
    repository.settle_all()
    assert shown_parts(repository.root) == []


def test_check_compares_ensemble_with_parts(
    repository: ModelRepository,
) -> None:
    """The check of a repository and of a release compares an ensemble with its parts."""
    assert [remaining.message for remaining in check_repository(repository.root) if remaining.severity == "error"] == []
    manifest, folder = repository.manifest(MODEL, 1), repository.release(MODEL, 1)
    target = load_target(TARGET)
    assert [remaining.message for remaining in check_package(manifest.package, folder, target=target)] == []
    config = folder / "members" / NUMBER_PART / "config.pbtxt"
    text = config.read_text().replace("TYPE_FP32", "TYPE_INT8")
    config.unlink()
    config.write_text(text)
    remaining = check_package(manifest.package, folder, target=target)
    assert any(finding.severity == "error" and "TYPE_INT8" in finding.message for finding in remaining), remaining


def test_model_files_lie_in_part(repository: ModelRepository) -> None:
    """The files of the model itself lie in its part."""
    manifest, folder = repository.manifest(MODEL, 1), repository.release(MODEL, 1)
    inner = manifest.engine.inner_folder
    assert engine_folder(folder, manifest) == folder / "members" / MODEL_PART / "model" / inner
    plain = manifest.model_copy(update={"package": manifest.package.model_copy(update={"members": ()})})
    assert engine_folder(folder, plain) == folder / "model" / inner
