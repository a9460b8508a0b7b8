"""What plansmith published is passed, and its manifests tell what nobody else can of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plansmith.config.target.targets import load_target
from plansmith.records.release import MODEL_FOLDER
from plansmith.system.digest import digest_of_files
from plansmith.triton.checker.checker import check_package, check_repository
from plansmith.triton.config.model_config import text_of
from plansmith.triton.config.plan_config import make_plan_config, plan_package

from ...support.faults.packages import draft_of, file_entries, publish
from ...support.tensorrt.engines import engine
from ...support.tensorrt.plan_files import plan

if TYPE_CHECKING:
    from plansmith.records.engine import Engine

TARGET = "triton-26.03"


def published(folder: Path, of: Engine) -> Path:
    """A repository with a release of plans in it, published as a compile does it."""
    package = plan_package("tiny", of)
    files = folder / "package"
    (files / MODEL_FOLDER).mkdir(parents=True)
    (files / "config.pbtxt").write_text(text_of(make_plan_config(package, of, "gpu")))
    for name in package.model_files:
        (files / MODEL_FOLDER / name).write_bytes(plan("10.16.0.72"))
    entries = file_entries(files)
    told = {"engine": of, "package": package, "files": entries, "release_digest": digest_of_files(entries)}
    publish(folder / "repository", files, draft_of(files, target=TARGET).model_copy(update=told))
    return folder / "repository"


@pytest.mark.parametrize("gpus", [("L4",), ("L4", "A10G")], ids=["one GPU", "two GPUs"])
def test_a_repository_of_ours_is_passed(gpus: tuple[str, ...], tmp_path: Path) -> None:
    assert check_repository(published(tmp_path, engine(*gpus))) == []


def test_a_release_in_the_making_is_held_against_the_rules(tmp_path: Path) -> None:
    of = engine()
    published(tmp_path, of)
    package, files, target = plan_package("tiny", of), tmp_path / "package", load_target(TARGET)
    assert check_package(package, files, target=target) == []
    config = files / "config.pbtxt"
    config.write_text(config.read_text() + "model_warmup { batch_size: 99 }\n")
    found = check_package(package, files, target=target)
    assert {"warmup.batch-size", "warmup.missing-input"} <= {one.rule for one in found}
    assert {(one.model, one.place) for one in found} == {("tiny", "tiny/config.pbtxt")}
    (files / MODEL_FOLDER / "model.plan").unlink()
    missing = check_package(package, files, target=target)
    assert [(one.rule, one.place) for one in missing if one.place.endswith("plan")] == [
        ("files.model", "tiny/1/model.plan")
    ]


def test_a_configuration_that_was_changed_by_hand_is_held_against_the_manifest(tmp_path: Path) -> None:
    root = published(tmp_path, engine())
    config = root / "tiny" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_INT64", "TYPE_INT32"))
    assert {(one.model, one.rule) for one in check_repository(root)} == {("tiny", "tensorrt.plan-dtype")}


def test_a_plan_that_was_exchanged_by_hand_is_held_against_the_repositorys_target(tmp_path: Path) -> None:
    root = published(tmp_path, engine())
    (root / "tiny" / "1" / "model.plan").write_bytes(plan("10.9.0.34"))
    assert {(one.rule, one.place) for one in check_repository(root)} == {("tensorrt.version", "tiny/1/model.plan")}


def test_what_the_server_has_to_be_told_is_known_from_the_manifest(tmp_path: Path) -> None:
    root = published(tmp_path, engine(version_compatible=True))
    assert check_repository(root) == []
    assert {one.rule for one in check_repository(root, sagemaker=True)} == {"tensorrt.server-argument"}
    named = ["--backend-config=tensorrt,version-compatible=true"]
    assert check_repository(root, sagemaker=True, arguments=named) == []
