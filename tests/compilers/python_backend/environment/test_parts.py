"""The parts of a pipeline bring their environments: laid out with them, told of, and served from them alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from plansmith.cli.compile.outcomes import environment_lines
from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind, OnnxModel, Tensor
from plansmith.records.pipeline import Part, Pipeline
from plansmith.steps.release.environment import PARAMETER
from plansmith.steps.release.environment_choice import environments_of
from plansmith.steps.runner import Listener, StepResult
from plansmith.triton.client import Client
from plansmith.triton.config.model_config import parse_config

from ....support.cli.commands import compile_model, run, serve
from ....support.made import made_model
from ....support.pipelines.columns import column
from ....support.real_sentences import real_sentences
from .releases import IMAGE, look, release, spec_of
from .tiny import write_wheel

MODELS = Path(__file__).parents[4] / "configs" / "models"
CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
NEEDS = {"before": "ape==1.0\n", "behind": "# as before\nape == 1.0\n", "last": "ape==1.0\nzoo==2.0\n"}


class Told(Listener):
    """What was packed."""

    def __init__(self) -> None:
        self.packed: list[str] = []

    def progress(self, step: str, text: str) -> None:  # noqa: ARG002 - as the class has it
        self.packed += [text] if text.startswith("packing") else []


def tensor(name: str) -> Tensor:
    return Tensor(name=name, dtype="float32", dims=("batch", 3))


@pytest.fixture
def pipeline(tmp_path: Path, index: Path) -> StepResult[Pipeline]:
    """One part before the model and two behind it."""
    write_wheel(index, "ape")
    write_wheel(index, "zoo", "2.0")
    flow = {"before": ("raw", "x"), "behind": ("y", "z"), "last": ("z", "told")}
    for name, needs in NEEDS.items():
        folder = tmp_path / "pipeline" / name
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(CODE)
        (folder / "requirements.txt").write_text(needs)
    files = ("model.py", "requirements.txt")
    before, *after = (
        Part(name=name, backend="python", files=files, inputs=(tensor(takes),), outputs=(tensor(gives),))
        for name, (takes, gives) in flow.items()
    )
    record = Pipeline(
        input="text",
        output="tensors",
        before=(before,),
        after=tuple(after),
        inputs=(tensor("raw"),),
        outputs=(tensor("told"),),
        cases=(),
        source="nobody",
    )
    return StepResult(record, tmp_path / "pipeline", hashlib.sha256(CODE.encode()).hexdigest(), cached=False)


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
def test_every_python_part_brings_its_environment_and_parts_that_need_the_same_share_one(
    force: bool,
    engine: StepResult[Engine],
    reference: StepResult[OnnxModel],
    pipeline: StepResult[Pipeline],
    tmp_path: Path,
) -> None:
    told = Told()
    asked: dict[str, Any] = {"environment": "packed", "pipeline": pipeline}
    made = release(engine, reference, tmp_path / "artifacts", **asked, listener=told, force=force)
    members = {member.part: member for member in made.record.members}
    assert [*members] == ["before", "model", "behind", "last"]
    for part, member in members.items():
        assert member.environment is not None
        owed = ["ape", "zoo"] if part == "last" else ["ape"]
        assert [one.name for one in member.environment.distributions] == owed
        assert member.support_files == ("env.tar.gz",)
        assert (made.folder / member.folder / "env.tar.gz").stat().st_size == member.environment.bytes
        config = parse_config((made.folder / member.folder / "config.pbtxt").read_text())
        assert config.parameters[PARAMETER].string_value == "$$TRITON_MODEL_DIRECTORY/env.tar.gz"
        assert f"{member.folder}/env.tar.gz" in made.record.files
        assert member.alone().environment == member.environment
    assert made.record.environment is None
    assert len(told.packed) == 2
    archive, *others = (made.folder / members[part].folder / "env.tar.gz" for part in ("before", "model", "behind"))
    assert all(archive.samefile(other) for other in others)
    lines = [*environment_lines(made.record)]
    assert [line.split(" ")[0] for line in lines] == [member.model for member in members.values()]
    assert all(" brings its environment for Python 3.12: " in line for line in lines)
    assert not any(": 1 packages" in line for line in lines)


@pytest.mark.slow
def test_parts_that_leave_their_packages_to_the_image_bring_none_and_are_other_models(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], pipeline: StepResult[Pipeline], tmp_path: Path
) -> None:
    packed, left = (
        release(engine, reference, tmp_path / "artifacts", environment=choice, pipeline=pipeline)
        for choice in ("packed", "image")
    )
    for ours, theirs in zip(packed.record.members, left.record.members, strict=True):
        assert (theirs.environment, theirs.support_files) == (None, ())
        assert PARAMETER not in parse_config((left.folder / theirs.folder / "config.pbtxt").read_text()).parameters
        assert ours.model != theirs.model
    assert [*environment_lines(left.record)] == []


@pytest.mark.slow
def test_what_a_part_needs_counts_in_the_key_of_the_release(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], pipeline: StepResult[Pipeline], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"environment": "packed", "pipeline": pipeline}
    release(engine, reference, tmp_path / "artifacts", **asked)
    assert look(engine, reference, tmp_path / "artifacts", **asked) is not None
    (pipeline.folder / "last" / "requirements.txt").write_text(NEEDS["before"])
    assert look(engine, reference, tmp_path / "artifacts", **asked) is None
    assert release(engine, reference, tmp_path / "artifacts", **asked | {"environment": "image"}).record.members


@pytest.mark.parametrize("kind", [EngineKind.ONNXRUNTIME, EngineKind.TENSORRT])
def test_parts_bring_theirs_whatever_serves_the_model_and_dali_brings_none(
    kind: EngineKind, engine: StepResult[Engine], pipeline: StepResult[Pipeline]
) -> None:
    other = StepResult(engine.record.model_copy(update={"kind": kind}), engine.folder, "other", cached=False)
    before = pipeline.record.before[0].model_copy(update={"backend": "dali", "files": ("model.dali",)})
    record = pipeline.record.model_copy(update={"before": (before,)})
    (pipeline.folder / "before" / "requirements.txt").unlink()
    dali = StepResult(record, pipeline.folder, "dali", cached=False)
    found = environments_of(spec_of("packed"), made_model(engine=other, pipeline=dali), {}, IMAGE)
    assert [*found] == ["behind", "last"]
    assert environments_of(spec_of("packed"), made_model(engine=other), {}, IMAGE) == {}


@contextmanager
def served_parts(made: dict[str, Any], said: Path) -> Iterator[tuple[str, dict[str, psutil.Process]]]:
    """A server with a release; its URL, and the processes of the parts by their names."""
    with serve(made["repository"], made["name"], said) as (http, _):
        running = psutil.Process().children(recursive=True)
        stubs = [one for one in running if one.name().startswith("triton_python")]
        yield (
            http,
            {
                part: next(one for one in stubs if any(f"/{made['name']}.{part}." in word for word in one.cmdline()))
                for part in ("text", "tags")
            },
        )


@pytest.mark.slow
@pytest.mark.xdist_group("environments")
def test_the_parts_of_a_tagger_take_tokenizers_and_numpy_from_their_archives_alone(tmp_path: Path) -> None:
    spec = yaml.safe_load((MODELS / "bert-entities-random.yaml").read_text())
    places = {"source": f"hf:{MODELS / 'bert-entities-random'}", "name": "tagger"}
    (tmp_path / "tagger.yaml").write_text(yaml.safe_dump(spec | places | {"python": {"environment": "packed"}}))
    made = compile_model(tmp_path / "artifacts", str(tmp_path / "tagger.yaml"))
    assert made["served"]["backend"] in {"real", "stand-in"}
    assert json.loads(run("check", made["repository"], "--json"))["findings"] == []
    with served_parts(made, tmp_path / "said") as (http, processes):
        with Client(http, model="tagger") as client:
            asked = column(*(text.encode() for text in real_sentences()[:8]))
            found = [json.loads(text) for text in client.infer({"text": asked})["entities"].reshape(-1)]
        for part, process in processes.items():
            mapped = {one.path for one in process.memory_maps() if "site-packages" in one.path}
            sites = {path.partition("/site-packages/")[0] for path in mapped}
            names = {path.partition("/site-packages/")[2].partition("/")[0].partition(".")[0] for path in mapped}
            assert len(sites) == 1, (part, sites)
            assert "/python_env_" in sites.pop()
            assert {"numpy", "tokenizers"} <= names, (part, names)
    assert len({json.dumps(entities) for entities in found}) == len(found)
