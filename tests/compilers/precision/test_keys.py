"""What a cached set of samples, or a cached lowering, goes by: all that decides it, and nothing that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.config.spec import ModelSpec, make_spec
from plansmith.records.model import (
    AxisRange,
    DataSet,
    LoweredModel,
    OnnxModel,
    Precision,
    Record,
    ReferenceSet,
    SampleSet,
    SourceModel,
)
from plansmith.steps import sample
from plansmith.steps.lower import lower_graph
from plansmith.steps.runner import Listener, StageRunner, StepResult
from plansmith.steps.sample import take_samples
from plansmith.system.digest import Digester

_NONE = SampleSet(cases=(), rows=(), digests=(), labelled=False)
DATA = DataSet(
    words="a.txt",
    digest="",
    revision=None,
    available=1,
    seed=0,
    real=True,
    guessed=False,
    metric="none",
    pooling="none",
    calibration=_NONE,
    evaluation=None,
)
LOWERED = LoweredModel(components={}, precision=Precision.FP16, recipe=None, trials=(), layers=())
ONNX = OnnxModel(
    components={},
    axes={"batch": AxisRange(min=1, opt=1, max=1)},
    mask_input=None,
    exporter="none",
    attempts=(),
    precision=Precision.FP32,
    reference=ReferenceSet(runtime="", data="", cases=()),
)


class _Steps(StageRunner):
    """Does no work; `built` has the names of what a cache did not hold."""

    def __init__(self, artifacts: Path) -> None:
        digester = Digester(artifacts / "digests.sqlite")
        super().__init__("m", artifacts, listener=Listener(), force=False, dry=False, digester=digester)
        self.built: list[str] = []

    def run_in_worker(self, task: Any, request: Record) -> Any:
        """Note it; the request has to be JSON."""
        request.model_dump_json()
        self.built.append(task.name)
        return {"sample": DATA, "lower": LOWERED}[task.name]


def _finished(record: Any, folder: Path) -> StepResult[Any]:
    assert isinstance(record, Record)
    return StepResult(record, folder, "digest", cached=True)


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Steps:
    monkeypatch.setattr(sample, "require_unchanged", lambda *_: None)
    return _Steps(tmp_path / "artifacts")


def _sample(steps: _Steps, folder: Path, **data: Any) -> int:
    """Take samples of the file in a folder; how often the model has been asked so far."""
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("one\ntwo\n")
    source = SourceModel(
        scheme="hf",
        location=str(folder / "bert"),
        revision=None,
        licence=None,
        digest="",
        random_weights=False,
        trust_remote_code=False,
    )
    spec = make_spec({"source": "hf:bert", "data": {"path": "a.txt"} | data})
    take_samples(steps, spec, folder, _finished(source, folder), _finished(ONNX, folder))
    return steps.built.count("sample")


def test_limit_change_reuses_source_answers(steps: _Steps, tmp_path: Path) -> None:
    """A limit or another place asks the source model nothing again."""
    assert _sample(steps, tmp_path / "here") == 1
    assert _sample(steps, tmp_path / "here", max_metric_drop=0.5) == 1
    assert _sample(steps, tmp_path / "there") == 1
    assert _sample(steps, tmp_path / "there", path=str(tmp_path / "here" / "a.txt")) == 1


@pytest.mark.parametrize("data", [{"seed": 1}, {"calibration": 7}, {"metric": "none"}, {"columns": {"text": "text"}}])
def test_other_samples_ask_again(data: dict[str, Any], steps: _Steps, tmp_path: Path) -> None:
    """What makes other samples asks again."""
    assert _sample(steps, tmp_path / "here") == 1
    assert _sample(steps, tmp_path / "here", **data) == 2


def _lower(steps: _Steps, folder: Path, spec: ModelSpec) -> int:
    onnx, data = _finished(ONNX, folder), _finished(DATA, folder)
    lower_graph(steps, spec, onnx, data, device="cpu", require=lambda _: None)
    return steps.built.count("lower")


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        ({"precision": "int8"}, 2),
        ({"precision": "auto"}, 2),
        ({"precision": "fp16"}, 1),
        ({"precision": "int8", "engine": "tensorrt"}, 1),
    ],
)
def test_processor_dependent_work_lowered_again(
    asked: dict[str, str], times: int, steps: _Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what a processor decides is lowered again on another one."""
    spec = make_spec({"source": "hf:bert", **asked})
    for machine in ("x86_64, avx512_vnni", "aarch64"):
        monkeypatch.setattr("plansmith.compilers.precision.benchmark.machine", lambda machine=machine: machine)
        count = _lower(steps, tmp_path, spec)
    assert count == times
