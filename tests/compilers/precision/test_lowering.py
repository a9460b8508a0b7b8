"""Lowering as the steps of a compile see it: an overflow that is mended, and a search that finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.compilers.precision.lint.linter import Finding
from plansmith.config.engine_options import LoweringOptions
from plansmith.config.spec import ModelSpec
from plansmith.errors import ExportError, GateError, UsageError
from plansmith.records.model import EngineKind, Precision
from plansmith.records.validation import ToleranceChange
from plansmith.steps.compilation import Compilation, lower_model
from plansmith.steps.lower import require_lowered

from ...support.precision import hand_made, pipeline

HALF_END = 65504


def test_overflowing_squares_stay_high(tmp_path: Path) -> None:
    """Squares that overflow FP16 stay high by name, and the answers are right."""
    model = hand_made.normalising(tmp_path)
    assert hand_made.squares(hand_made.rows(), model).max() > HALF_END, "the plant is real"
    prepared = pipeline.prepare(model, hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("fp16", tmp_path / "lowered")
    assert lowered.record.precision is Precision.FP16
    assert {"square", "variance"} <= set(lowered.high_reasons)
    assert "65 504" in lowered.high_reasons["square"]
    assert {"first_product", "head_product"}.isdisjoint(lowered.high_reasons), "what is within range is lowered"
    report = prepared.judge(lowered, tmp_path / "engine")
    assert (report.verdict, report.failures()) == ("passed", [])
    assert report.evaluation is not None
    assert report.evaluation.agreements[0].min_cosine > 0.99999
    assert report.evaluation.samples == 128


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    """INT8 that is never good enough: no cosine but 1 is allowed."""
    return ModelSpec(
        source=f"onnx:{hand_made.products(tmp_path)}",
        precision=Precision.INT8,
        data=hand_made.write_rows(tmp_path),
        lowering=LoweringOptions(budget=1, quantisation="dynamic"),
        tolerances={"y": ToleranceChange(min_cosine=1.0, min_mean_cosine=1.0)},
        artifacts=str(tmp_path / "artifacts"),
        check_served=False,
    )


def refused(run: Callable[[], Any]) -> GateError:
    with pytest.raises(GateError) as caught:
        run()
    error = caught.value
    assert (error.exit_code, error.step, error.model) == (5, "lower", "products")
    assert error.log is not None
    assert error.log.suffix == ".html"
    return error


@pytest.mark.slow
def test_best_failed_trial_is_named(spec: ModelSpec, tmp_path: Path) -> None:
    """Where nothing is accurate enough, the best trial is named and there is a report."""
    out = tmp_path / "out"
    error = refused(lambda: lower_model(spec, out, relative_to=tmp_path))
    assert (
        "none of 2 int8 recipes is accurate enough on the calibration data; the nearest to FP32, INT8, dynamic"
        in error.message
    )
    assert "allowed 1.0" in error.message
    assert error.log is not None
    page = error.log.read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "INT8, dynamic, per channel, 1 more node in FP32" in page
    assert not out.exists()

    with Compilation(spec, relative_to=tmp_path) as compilation:
        again = refused(compilation.run)
        assert [record.cached for record in compilation.steps] == [True, True, True]
    assert again.message == error.message
    assert again.log != error.log, "every run has its own report"
    assert not list((tmp_path / "artifacts" / "repository").rglob("config.pbtxt"))


def test_failed_search_lists_trials(tmp_path: Path) -> None:
    """A search without result gives no graph but all that was tried."""
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    strict = {"y": ToleranceChange(min_cosine=1.0)}
    lowered = prepared.lower("int8", tmp_path / "lowered", tolerances=strict, quantisation="static", budget=2)
    assert (lowered.record.components, lowered.record.recipe) == ({}, None)
    assert len(lowered.record.trials) == 3
    assert {layer.node for layer in lowered.record.layers if layer.lowered} <= {
        "first_product",
        "second_product",
        "third_product",
    }
    assert lowered.record.layers, "where the errors are is told all the same"
    assert list(lowered.folder.iterdir()) == []
    with pytest.raises(GateError, match="none of 3 int8 recipes") as refused_search:
        require_lowered(lowered.record, budget=2)
    assert "`lowering: {keep: [third_product]}`" in refused_search.value.remedy
    assert "raise `lowering: budget`" in refused_search.value.remedy
    with pytest.raises(GateError) as unspent:
        require_lowered(lowered.record, budget=9)
    assert "budget" not in unspent.value.remedy, "more of what was not used up does nothing"


def test_graph_without_int8_nodes_refused(tmp_path: Path) -> None:
    """A graph without anything for INT8 is refused by name."""
    prepared = pipeline.prepare(hand_made.elementwise(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(ExportError, match="nothing can be lowered to INT8"):
        prepared.lower("int8", tmp_path / "lowered")


@pytest.mark.parametrize("precision", ["int8", "fp16", "auto"])
def test_unmatched_pattern_names_nearest(precision: str, tmp_path: Path) -> None:
    """A pattern that no node has is refused with the nearest names."""
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(UsageError, match="'secnd_product' matches no node") as refused:
        prepared.lower(precision, tmp_path / "lowered", keep=("first_.*", "secnd_product"))
    assert "the nearest are second_product, " in refused.value.remedy


def test_fp16_timed_on_its_inputs(tmp_path: Path) -> None:
    """FP16 with FP16 inputs is timed on what it takes."""
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("fp16", tmp_path / "lowered", lower_io=True)
    assert [tensor.dtype for tensor in lowered.record.components["model"].inputs] == ["float16"]
    (trial,) = [trial for trial in lowered.record.trials if trial.chosen]
    assert trial.speed is not None


def test_mistaken_graph_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowered graph with a mistake is passed over for the next."""
    calls: list[EngineKind] = []

    def mistaken(_: Any, *, engine: EngineKind, **__: Any) -> list[Finding]:
        calls.append(engine)
        return [Finding("some-id", "error", "a_Q", "is wrong", "mend it")] if len(calls) == 1 else []

    monkeypatch.setattr("plansmith.compilers.precision.lowering.lint", mistaken)
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("int8", tmp_path / "lowered", tolerances={"y": ToleranceChange(min_cosine=0.9)})
    first, *others = lowered.record.trials
    assert first.problem == "the lowered graph has 1 error: a_Q is wrong [some-id]"
    assert sum(trial.chosen for trial in others) == 1
    calls.clear()
    lowered = prepared.lower(
        "int8", tmp_path / "accepted", accept=("some-id",), tolerances={"y": ToleranceChange(min_cosine=0.9)}
    )
    assert lowered.record.trials[0].problem is None


def test_mistake_in_every_graph_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every accurate graph has a mistake, the mistake is named."""
    finding = Finding("some-id", "error", "a_Q", "is wrong", "mend it")
    monkeypatch.setattr("plansmith.compilers.precision.lowering.lint", lambda *_, **__: [finding])
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(ExportError, match=r"a_Q is wrong \[some-id\]") as refused:
        prepared.lower("fp16", tmp_path / "lowered", budget=1)
    assert "`lowering: {accept: [some-id]}`" in refused.value.remedy


def test_broken_engine_gets_no_int8(tmp_path: Path) -> None:
    """An engine that loads no graph gets no INT8."""
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(UsageError, match="no int8 for engine python"):
        prepared.lower("int8", tmp_path / "lowered", engine=EngineKind.PYTHON)


def test_person_kept_node_stays_high(tmp_path: Path) -> None:
    """A node that a person keeps stays high whatever the search finds."""
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("int8", tmp_path / "lowered", keep=("second_.*",))
    assert "second_product" in lowered.high_reasons
    assert np.all([trial.problem is None for trial in lowered.record.trials if trial.chosen])
