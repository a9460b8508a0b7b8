"""What plansmith published is passed, and its manifests tell what nobody else can of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plansmith.config.targets import load_target
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
    fields = {"engine": of, "package": package, "files": entries, "release_digest": digest_of_files(entries)}
    publish(folder / "repository", files, draft_of(files, target=TARGET).model_copy(update=fields))
    return folder / "repository"


@pytest.mark.parametrize("gpus", [("L4",), ("L4", "A10G")], ids=["one GPU", "two GPUs"])
def test_own_repository_passes(gpus: tuple[str, ...], tmp_path: Path) -> None:
    """A repository of ours is passed."""
    assert check_repository(published(tmp_path, engine(*gpus))) == []


def test_unfinished_release_held_against_rules(tmp_path: Path) -> None:
    """A release in the making is held against the rules."""
    of = engine()
    published(tmp_path, of)
    package, files, target = plan_package("tiny", of), tmp_path / "package", load_target(TARGET)
    assert check_package(package, files, target=target) == []
    config = files / "config.pbtxt"
    config.write_text(config.read_text() + "model_warmup { batch_size: 99 }\n")
    results = check_package(package, files, target=target)
    assert {"warmup.batch-size", "warmup.missing-input"} <= {finding.rule for finding in results}
    assert {(finding.model, finding.place) for finding in results} == {("tiny", "tiny/config.pbtxt")}
    (files / MODEL_FOLDER / "model.plan").unlink()
    missing = check_package(package, files, target=target)
    assert [(finding.rule, finding.place) for finding in missing if finding.place.endswith("plan")] == [
        ("files.model", "tiny/1/model.plan")
    ]


def test_edited_configuration_held_against_manifest(tmp_path: Path) -> None:
    """A configuration that was changed by hand is held against the manifest."""
    root = published(tmp_path, engine())
    config = root / "tiny" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_INT64", "TYPE_INT32"))
    assert {(finding.model, finding.rule) for finding in check_repository(root)} == {("tiny", "tensorrt.plan-dtype")}


def test_exchanged_plan_held_against_target(tmp_path: Path) -> None:
    """A plan that was exchanged by hand is held against the repository's target."""
    root = published(tmp_path, engine())
    (root / "tiny" / "1" / "model.plan").write_bytes(plan("10.9.0.34"))
    assert {(finding.rule, finding.place) for finding in check_repository(root)} == {
        ("tensorrt.version", "tiny/1/model.plan")
    }


def test_server_options_known_from_manifest(tmp_path: Path) -> None:
    """What the server has to be told is known from the manifest."""
    root = published(tmp_path, engine(version_compatible=True))
    assert check_repository(root) == []
    assert {finding.rule for finding in check_repository(root, sagemaker=True)} == {"tensorrt.server-argument"}
    named = ["--backend-config=tensorrt,version-compatible=true"]
    assert check_repository(root, sagemaker=True, arguments=named) == []
