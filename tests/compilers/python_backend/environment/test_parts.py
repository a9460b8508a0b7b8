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
from plansmith.steps.release.environment import PARAMETER, environments_of
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


class RecordingListener(Listener):
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
def test_parts_share_same_environment(
    force: bool,
    engine: StepResult[Engine],
    reference: StepResult[OnnxModel],
    pipeline: StepResult[Pipeline],
    tmp_path: Path,
) -> None:
    """Every Python part brings its environment, and parts that need the same share one."""
    recorder = RecordingListener()
    options: dict[str, Any] = {"environment": "packed", "pipeline": pipeline}
    package = release(engine, reference, tmp_path / "artifacts", **options, listener=recorder, force=force)
    members = {member.part: member for member in package.record.members}
    assert [*members] == ["before", "model", "behind", "last"]
    for part, member in members.items():
        assert member.environment is not None
        owed = ["ape", "zoo"] if part == "last" else ["ape"]
        assert [distribution.name for distribution in member.environment.distributions] == owed
        assert member.support_files == ("env.tar.gz",)
        assert (package.folder / member.folder / "env.tar.gz").stat().st_size == member.environment.bytes
        config = parse_config((package.folder / member.folder / "config.pbtxt").read_text())
        assert config.parameters[PARAMETER].string_value == "$$TRITON_MODEL_DIRECTORY/env.tar.gz"
        assert f"{member.folder}/env.tar.gz" in package.record.files
        assert member.alone().environment == member.environment
    assert package.record.environment is None
    assert len(recorder.packed) == 2
    archive, *others = (package.folder / members[part].folder / "env.tar.gz" for part in ("before", "model", "behind"))
    assert all(archive.samefile(copy) for copy in others)
    lines = [*environment_lines(package.record)]
    assert [line.split(" ")[0] for line in lines] == [member.model for member in members.values()]
    assert all(" brings its environment for Python 3.12: " in line for line in lines)
    assert not any(": 1 packages" in line for line in lines)


@pytest.mark.slow
def test_parts_of_image_bring_none(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], pipeline: StepResult[Pipeline], tmp_path: Path
) -> None:
    """Parts that leave their packages to the image bring none and are other models."""
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
def test_part_requirements_count_in_key(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], pipeline: StepResult[Pipeline], tmp_path: Path
) -> None:
    """What a part needs counts in the key of the release."""
    options: dict[str, Any] = {"environment": "packed", "pipeline": pipeline}
    release(engine, reference, tmp_path / "artifacts", **options)
    assert look(engine, reference, tmp_path / "artifacts", **options) is not None
    (pipeline.folder / "last" / "requirements.txt").write_text(NEEDS["before"])
    assert look(engine, reference, tmp_path / "artifacts", **options) is None
    assert release(engine, reference, tmp_path / "artifacts", **options | {"environment": "image"}).record.members


@pytest.mark.parametrize("kind", [EngineKind.ONNXRUNTIME, EngineKind.TENSORRT])
def test_dali_brings_no_environment(
    kind: EngineKind, engine: StepResult[Engine], pipeline: StepResult[Pipeline]
) -> None:
    """Parts bring theirs whatever serves the model, and DALI brings none."""
    other_engine = StepResult(engine.record.model_copy(update={"kind": kind}), engine.folder, "other", cached=False)
    before = pipeline.record.before[0].model_copy(update={"backend": "dali", "files": ("model.dali",)})
    record = pipeline.record.model_copy(update={"before": (before,)})
    (pipeline.folder / "before" / "requirements.txt").unlink()
    dali = StepResult(record, pipeline.folder, "dali", cached=False)
    environments = environments_of(spec_of("packed"), made_model(engine=other_engine, pipeline=dali), {}, IMAGE)
    assert [*environments] == ["behind", "last"]
    assert environments_of(spec_of("packed"), made_model(engine=other_engine), {}, IMAGE) == {}


@contextmanager
def served_parts(made: dict[str, Any], said: Path) -> Iterator[tuple[str, dict[str, psutil.Process]]]:
    """A server with a release; its URL, and the processes of the parts by their names."""
    with serve(made["repository"], made["name"], said) as (http, _):
        running = psutil.Process().children(recursive=True)
        stubs = [process for process in running if process.name().startswith("triton_python")]
        yield (
            http,
            {
                part: next(
                    process
                    for process in stubs
                    if any(f"/{made['name']}.{part}." in word for word in process.cmdline())
                )
                for part in ("text", "tags")
            },
        )


@pytest.mark.slow
@pytest.mark.xdist_group("environments")
def test_tagger_parts_use_archives(tmp_path: Path) -> None:
    """The parts of a tagger take tokenizers and NumPy from their archives alone."""
    spec = yaml.safe_load((MODELS / "bert-entities-random.yaml").read_text())
    places = {"source": f"hf:{MODELS / 'bert-entities-random'}", "name": "tagger"}
    (tmp_path / "tagger.yaml").write_text(yaml.safe_dump(spec | places | {"python": {"environment": "packed"}}))
    document = compile_model(tmp_path / "artifacts", str(tmp_path / "tagger.yaml"))
    assert document["served"]["backend"] in {"real", "stand-in"}
    assert json.loads(run("check", document["repository"], "--json"))["findings"] == []
    with served_parts(document, tmp_path / "said") as (http, processes):
        with Client(http, model="tagger") as client:
            texts = column(*(text.encode() for text in real_sentences()[:8]))
            answers = [json.loads(text) for text in client.infer({"text": texts})["entities"].reshape(-1)]
        for part, process in processes.items():
            mapped = {mapping.path for mapping in process.memory_maps() if "site-packages" in mapping.path}
            sites = {path.partition("/site-packages/")[0] for path in mapped}
            names = {path.partition("/site-packages/")[2].partition("/")[0].partition(".")[0] for path in mapped}
            assert len(sites) == 1, (part, sites)
            assert "/python_env_" in sites.pop()
            assert {"numpy", "tokenizers"} <= names, (part, names)
    assert len({json.dumps(entities) for entities in answers}) == len(answers)
