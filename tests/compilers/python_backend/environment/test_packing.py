"""An environment is packed once for its requirements, and a model's configuration names it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from plansmith.config.targets import load_target
from plansmith.records.release import PackedEnvironment
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
class RecordingListener(Listener):
    """What was said."""

    lines: list[str] = field(default_factory=list)

    def progress(self, step: str, text: str) -> None:  # noqa: ARG002 - as the class has it
        self.lines.append(text)


def pack(
    tmp_path: Path, environment: WantedEnvironment, told: RecordingListener | None = None
) -> StepResult[PackedEnvironment]:
    """With the cache of the test."""
    stages = StageRunner("tiny", tmp_path / "artifacts", listener=told or RecordingListener(), force=False, dry=False)
    try:
        return environment.pack(stages)
    finally:
        stages.close()


@pytest.fixture(autouse=True)
def _wheels(index: Path) -> None:
    write_wheel(index, "ape", needs=["zoo"])
    write_wheel(index, "zoo", "2.0")


@pytest.mark.slow
def test_environment_packed_once(tmp_path: Path) -> None:
    """An environment is packed once and says what is in it and what it takes."""
    listener = RecordingListener()
    package = pack(tmp_path, wanted_environment(REQUIREMENTS, IMAGE), listener)
    again = pack(tmp_path, wanted_environment("# the same\nape == 1.0", IMAGE))
    assert (package.cached, again.cached) == (False, True)
    assert package.digest == again.digest
    archive = package.folder / package.record.file
    assert package.record.bytes == archive.stat().st_size
    assert package.record.unpacked_bytes > 0
    assert package.record.python == "3.12"
    assert [(distribution.name, distribution.version) for distribution in package.record.distributions] == [
        ("ape", "1.0"),
        ("zoo", "2.0"),
    ]
    assert {path.name for path in package.folder.iterdir()} == {ENVIRONMENT_FILE, "entry.json"}
    assert any("takes" in line and "for Python 3.12" in line for line in listener.lines)


@pytest.mark.slow
def test_same_requirements_same_bytes(tmp_path: Path) -> None:
    """The same requirements give the same bytes on another machine."""
    environment = wanted_environment(REQUIREMENTS, IMAGE)
    first, two = (pack(tmp_path / name, environment) for name in ("one", "two"))
    assert first.folder != two.folder
    assert first.digest == two.digest


def test_changed_requirements_change_environment() -> None:
    """Another Python, other requirements or other held versions are other environments."""
    environment = wanted_environment(REQUIREMENTS, IMAGE)
    others = [
        WantedEnvironment(environment.requirements, ELEVEN, environment.installed_versions),
        WantedEnvironment(environment.requirements, TWELVE, {"zoo": "1.0"}),
        wanted_environment("ape==2.0", IMAGE),
    ]
    assert all(variant.parameters != environment.parameters for variant in others)


def test_own_code_counts_in_environment() -> None:
    """The code of plansmith counts where it goes into the environment."""
    assert wanted_environment("plansmith", IMAGE).parameters["own"]
    assert wanted_environment(REQUIREMENTS, IMAGE).parameters["own"] == ""


@pytest.mark.slow
def test_packed_model_passes_check(tmp_path: Path) -> None:
    """A model with its environment passes the check of repositories."""
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
    assert [finding.rule for finding in without if finding.severity == "error"] == ["python.environment"]
    assert place_environment(packed, model) == "env.tar.gz"
    assert [
        finding for finding in check_repository(tmp_path / "repository", target=IMAGE) if finding.severity == "error"
    ] == []
