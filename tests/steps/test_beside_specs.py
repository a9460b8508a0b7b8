"""Models beside a spec's own: what may be said of them, what they take over, and what a release keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.compilers.python_backend.generation_parameters import GENERATES, STREAMS
from plansmith.config.loader import read_specs
from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import ModelSpec, make_spec
from plansmith.config.triton import TritonOptions
from plansmith.errors import UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind, Precision, SourceModel, Tensor
from plansmith.records.pipeline import Pipeline
from plansmith.records.release import ReleasedModel
from plansmith.steps.artifacts import companion_specs
from plansmith.steps.pipeline import require_compatible, require_joinable
from plansmith.steps.provenance.reproduction import reproduction
from plansmith.steps.release.environment import Packer
from plansmith.steps.release.package import _Writer
from plansmith.steps.runner import Listener, StageRunner, StepResult
from plansmith.steps.script import script_of

TOPICS: dict[str, Any] = {"source": "hf:topics"}


def spec_of(beside: dict[str, Any], *, script: str = "", **values: Any) -> ModelSpec:
    """A spec of a model named reader, with others beside it."""
    defaults = {"source": "hf:mood", "name": "reader", "pipeline": {"models": beside, "script": script}}
    return make_spec(defaults | values)


def source_of(folder: str, **fields: Any) -> SourceModel:
    """What a fetch found."""
    usual: dict[str, Any] = {"scheme": "hf", "location": folder, "revision": None, "licence": None, "digest": ""}
    return SourceModel(**usual | {"random_weights": False, "trust_remote_code": False} | fields)


@pytest.mark.parametrize("name", ["topics", "a", "topics_2", "x" * 32])
def test_neighbour_name_fits_outputs(name: str) -> None:
    """A model beside has a name that outputs can begin with."""
    assert list(companion_specs(spec_of({name: TOPICS}))) == [name]


@pytest.mark.parametrize("name", ["main", "model", "", "Topics", "2nd", "_a", "a-b", "a.b", "ä", "x" * 33])
def test_other_or_taken_names_refused(name: str) -> None:
    """Other names and those that are taken are refused."""
    with pytest.raises(UsageError, match="is no name for a further model: a-z, 0-9 and _, and none of main, model"):
        spec_of({name: TOPICS})


@pytest.mark.parametrize("key", ["target", "triton", "inputs", "name", "publish"])
def test_release_facts_refused_for_neighbour(key: str) -> None:
    """What belongs to the release cannot be said of a model beside."""
    with pytest.raises(UsageError, match=f"unknown key.*pipeline.models.topics.{key}"):
        spec_of({"topics": TOPICS | {key: "other"}})


def test_old_name_of_models(tmp_path: Path) -> None:
    """`beside` of a pipeline is read as `models`, with a notice; both at once are refused."""
    path = tmp_path / "spec.yaml"
    path.write_text("source: hf:mood\npipeline: {beside: {topics: {source: 'hf:topics'}}}\n")
    read = read_specs(path, {})
    pipeline = read.models[0].spec.pipeline
    assert pipeline is not None
    assert list(pipeline.models) == ["topics"]
    assert "is called `models` now" in read.notices[0]
    path.write_text("source: hf:mood\npipeline: {beside: {}, models: {}}\n")
    with pytest.raises(UsageError, match="is the old name of `models`"):
        read_specs(path, {})


@pytest.mark.parametrize("key", ["models", "script"])
def test_neighbours_have_no_neighbours(key: str) -> None:
    """Models beside have no models beside them and no scripts."""
    with pytest.raises(UsageError, match=f"unknown key.*pipeline.models.topics.pipeline.{key}"):
        spec_of({"topics": TOPICS | {"pipeline": {key: {}}}})


def test_unsaid_facts_follow_spec() -> None:
    """What is not said of a model beside is as the spec says it."""
    values: dict[str, Any] = {
        "precision": "fp16",
        "engine": "python",
        "target": "triton-26.03",
        "check_served": False,
        "force": True,
        "python": {"torch_compile": True},
    }
    spec = spec_of({"topics": TOPICS}, **values)
    topics = companion_specs(spec)["topics"]
    same = set(ModelSpec.model_fields) - {"source", "name", "pipeline"}
    assert {name for name in same if getattr(topics, name) != getattr(spec, name)} == set()
    assert (topics.name, topics.source, topics.engine) == ("reader.topics", "hf:topics", EngineKind.PYTHON)
    assert topics.pipeline is not None
    assert (topics.pipeline.models, topics.pipeline.script) == ({}, "")


def test_own_model_facts_stay_own() -> None:
    """What the spec says of its own model alone is not said of one beside."""
    own: dict[str, Any] = {
        "task": "fill-mask",
        "data": {"path": "own.csv"},
        "shapes": {"input_ids": "1x1:4x32:8x128"},
        "tolerances": {"logits": {"max_relative": 0.1}},
        "outputs": ["logits"],
        "inputs": {"x": {"low": 0, "high": 1}},
        "random_weights": True,
        "trust_remote_code": True,
        "allow_pickle": True,
        "lowering": {"budget": 3},
        "triton": {"max_batch_size": 4},
        "publish": ["store"],
        "load_into": ["grpc://localhost:8001"],
    }
    topics = companion_specs(spec_of({"topics": TOPICS}, **own))["topics"]
    plain = make_spec({"source": "hf:topics"})
    assert {name for name in own if getattr(topics, name) != getattr(plain, name)} == set()


def test_neighbour_facts_are_own() -> None:
    """What is said of a model beside is its own."""
    settings = {"precision": "int8", "task": "text-classification", "random_weights": True, "pipeline": {"top_k": 2}}
    topics = companion_specs(spec_of({"topics": TOPICS | settings, "tags": {"source": "hf:tags"}}))["topics"]
    assert (topics.precision, topics.task, topics.random_weights) == (Precision.INT8, "text-classification", True)
    assert topics.pipeline is not None
    assert topics.pipeline.top_k == 2


def test_plain_spec_has_no_neighbour() -> None:
    """A spec without any has none beside it."""
    assert companion_specs(make_spec({"source": "hf:mood"})) == {}
    assert companion_specs(make_spec({"source": "hf:mood", "pipeline": {}})) == {}


def test_onnx_file_stands_beside_nothing(tmp_path: Path) -> None:
    """An ONNX file has no pipeline, and so stands beside nothing."""
    (tmp_path / "topics.onnx").touch()
    topics = companion_specs(spec_of({"topics": {"source": "onnx:topics.onnx"}}))["topics"]
    with pytest.raises(UsageError, match="an ONNX file brings no tokenizer or processor"):
        require_joinable(topics, parse_reference(topics.source, relative_to=tmp_path).scheme, None)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("", {GENERATES: "text"}, "reader generates text by itself, and answers no requests beside another model"),
        ("writer", {GENERATES: "text", STREAMS: "true"}, "writer streams its text"),
    ],
)
def test_generators_beside_no_other(name: str, options: dict[str, str], words: str, tmp_path: Path) -> None:
    """What is known only once the source was fetched is refused before anything is written."""
    from ..support.made import made_model

    text = Tensor(name="text", dtype="string", dims=("batch", 1))
    alone: Any = {"input": "text", "output": "text", "before": (), "after": (), "cases": (), "source": ""}
    pipeline = Pipeline(**alone, inputs=(text,), outputs=(text,))
    engine = Engine(kind=EngineKind.PYTHON, components={}, precision=Precision.FP32, options=options, toolchain={})
    model = made_model(
        pipeline=StepResult(pipeline, tmp_path, "", cached=False), engine=StepResult(engine, tmp_path, "", cached=False)
    )
    stages = StageRunner("reader", tmp_path, listener=Listener(), force=False, dry=False)
    with pytest.raises(UsageError, match=words):
        _Writer(stages, "reader", "cpu", Packer(stages, {})).branch(name, model, TritonOptions(), tmp_path)


def _together(tmp_path: Path, *pipelines: dict[str, Any]) -> None:
    """See whether models of these sources, the spec's own first, are refused."""
    own, topics = pipelines
    pipeline = {"models": {"topics": topics}, "input": "text"}
    spec = make_spec({"source": own["source"], "name": "reader", "pipeline": pipeline})
    models = {"": spec, **companion_specs(spec)}
    require_compatible(
        {
            name: (model_spec, parse_reference(model_spec.source, relative_to=tmp_path))
            for name, model_spec in models.items()
        }
    )


@pytest.mark.parametrize("topics", [{"source": "timm:resnet10t"}, TOPICS | {"pipeline": {"input": "image"}}])
def test_differing_raw_inputs_refused_early(topics: dict[str, Any], tmp_path: Path) -> None:
    """Models that take other raw inputs are refused before any work."""
    with pytest.raises(UsageError, match="topics takes image where the spec's own takes text"):
        _together(tmp_path, {"source": "hf:org/mood"}, topics)


def test_unknown_facts_refuse_nothing(tmp_path: Path) -> None:
    """What nobody knows of a model yet refuses nothing."""
    _together(tmp_path, {"source": "hf:org/mood"}, {"source": "hf:org/topics"})


SCRIPTS = {
    "a syntax error": ("def answer(:", r"route.py is no Python: invalid syntax \(route.py, line 1\)"),
    "a null byte": ("x = 1\0", "route.py is no Python: source code string cannot contain null bytes"),
    "no function": ("def reply(inputs, models): ...", r"has no function answer\(inputs, models\)"),
    "nothing": ("", r"has no function answer\(inputs, models\)"),
}


@pytest.mark.parametrize(("text", "words"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_unanswering_script_refused_by_text(text: str, words: str, tmp_path: Path) -> None:
    """A script that cannot answer is refused by its text."""
    (tmp_path / "route.py").write_text(text)
    with pytest.raises(UsageError, match=words) as refused:
        script_of(spec_of({"topics": TOPICS}, script="route.py"), tmp_path)
    assert refused.value.remedy


@pytest.mark.parametrize("text", ["def answer(inputs, models): ...", "answer = print"])
def test_script_function_read_not_run(text: str, tmp_path: Path) -> None:
    """A script may come by its function in any way and is not run."""
    (tmp_path / "route.py").write_text(f"{text}\nraise SystemExit\n")
    assert script_of(spec_of({}, script="route.py"), tmp_path) == tmp_path / "route.py"
    assert script_of(spec_of({}), tmp_path) is None
    with pytest.raises(UsageError, match=r"elsewhere\.py: No such file or directory"):
        script_of(spec_of({}, script="elsewhere.py"), tmp_path)


def test_released_spec_holds_everything(tmp_path: Path) -> None:
    """The spec in a release has both sources, data and the script in full."""
    topics = {"source": "hf:org/topics", "data": {"path": "topics.csv"}}
    local = {"source": "hf:./tags", "data": {"entry_point": "mine:texts"}}
    (tmp_path / "tags").mkdir()
    spec = spec_of({"topics": topics, "tags": local}, script="route.py", source="hf:org/mood")
    commit = "0123456789" * 4
    companions: Any = {
        "topics": ReleasedModel.model_construct(source=source_of("org/topics", revision=commit), data=None),
        "tags": ReleasedModel.model_construct(source=source_of(str(tmp_path / "tags")), data=None),
    }
    reference = parse_reference(spec.source, relative_to=tmp_path)
    again = reproduction(spec, reference, source_of("org/mood"), relative_to=tmp_path, data=None, beside=companions)
    options = make_spec(yaml.safe_load(again["spec.yaml"])).pipeline
    assert options is not None
    assert options.script == str(tmp_path / "route.py")
    assert options.models["topics"].source == f"hf:org/topics@{commit}"
    assert options.models["tags"].source == f"hf:{tmp_path / 'tags'}"
    assert options.models["topics"].data is not None
    assert options.models["topics"].data.path == str(tmp_path / "topics.csv")
    assert "mine:texts" in again["reproduce.sh"]
    assert str(tmp_path) in again["reproduce.sh"]
