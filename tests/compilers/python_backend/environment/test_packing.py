"""An environment is packed once for its requirements, and a model's configuration names it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from plansmith.config.target.targets import load_target
from plansmith.records.environment import PackedEnvironment
from plansmith.steps.release.environment import (
    ENVIRONMENT_FILE,
    WantedEnvironment,
    add_environment,
    place_environment,
    wanted_environment,
)
from plansmith.steps.runner import Listener, StageRunner, StepResult
from plansmith.triton.checker.checker import check_repository
from plansmith.triton.config.model_config import text_of

from .tiny import ELEVEN, TWELVE, write_wheel

IMAGE = load_target("triton-26.08")
REQUIREMENTS = "ape==1.0\n"


@dataclass
class Told(Listener):
    """What was said."""

    lines: list[str] = field(default_factory=list)

    def progress(self, step: str, text: str) -> None:  # noqa: ARG002 - as the class has it
        self.lines.append(text)


def pack(tmp_path: Path, wanted: WantedEnvironment, told: Told | None = None) -> StepResult[PackedEnvironment]:
    """With the cache of the test."""
    stages = StageRunner("tiny", tmp_path / "artifacts", listener=told or Told(), force=False, dry=False)
    try:
        return wanted.pack(stages)
    finally:
        stages.close()


@pytest.fixture(autouse=True)
def _wheels(index: Path) -> None:
    write_wheel(index, "ape", needs=["zoo"])
    write_wheel(index, "zoo", "2.0")


@pytest.mark.slow
def test_an_environment_is_packed_once_and_says_what_is_in_it_and_what_it_takes(tmp_path: Path) -> None:
    told = Told()
    made = pack(tmp_path, wanted_environment(REQUIREMENTS, IMAGE), told)
    again = pack(tmp_path, wanted_environment("# the same\nape == 1.0", IMAGE))
    assert (made.cached, again.cached) == (False, True)
    assert made.digest == again.digest
    archive = made.folder / made.record.file
    assert made.record.bytes == archive.stat().st_size
    assert made.record.unpacked_bytes > 0
    assert made.record.python == "3.12"
    assert [(one.name, one.version) for one in made.record.distributions] == [("ape", "1.0"), ("zoo", "2.0")]
    assert {path.name for path in made.folder.iterdir()} == {ENVIRONMENT_FILE, "entry.json"}
    assert any("takes" in line and "for Python 3.12" in line for line in told.lines)


@pytest.mark.slow
def test_the_same_requirements_give_the_same_bytes_on_another_machine(tmp_path: Path) -> None:
    wanted = wanted_environment(REQUIREMENTS, IMAGE)
    one, two = (pack(tmp_path / name, wanted) for name in ("one", "two"))
    assert one.folder != two.folder
    assert one.digest == two.digest


def test_another_python_other_requirements_and_other_versions_that_are_held_are_other_environments() -> None:
    wanted = wanted_environment(REQUIREMENTS, IMAGE)
    others = [
        WantedEnvironment(wanted.requirements, ELEVEN, wanted.held),
        WantedEnvironment(wanted.requirements, TWELVE, {"zoo": "1.0"}),
        wanted_environment("ape==2.0", IMAGE),
    ]
    assert all(one.parameters != wanted.parameters for one in others)


def test_the_code_of_plansmith_counts_where_it_goes_into_the_environment() -> None:
    assert wanted_environment("plansmith", IMAGE).parameters["own"]
    assert wanted_environment(REQUIREMENTS, IMAGE).parameters["own"] == ""


@pytest.mark.slow
def test_a_model_with_its_environment_passes_the_check_of_repositories(tmp_path: Path) -> None:
    packed = pack(tmp_path, wanted_environment(REQUIREMENTS, IMAGE))
    model = tmp_path / "repository" / "tiny"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    config = pb.ModelConfig(name="tiny", backend="python")
    config.input.add(name="x", data_type="TYPE_FP32", dims=[1])
    config.output.add(name="y", data_type="TYPE_FP32", dims=[1])
    add_environment(config)
    (model / "config.pbtxt").write_text(text_of(config))
    without = check_repository(tmp_path / "repository", target=IMAGE)
    assert [found.rule for found in without if found.severity == "error"] == ["python.environment"]
    assert place_environment(packed, model) == "env.tar.gz"
    assert [
        found for found in check_repository(tmp_path / "repository", target=IMAGE) if found.severity == "error"
    ] == []
