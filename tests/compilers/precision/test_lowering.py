"""Lowering as the steps of a compile see it: an overflow that is mended, and a search that finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.compilers.precision.lint.linter import Finding
from plansmith.config.precision import LoweringOptions
from plansmith.config.spec import ModelSpec
from plansmith.errors import ExportError, GateError, UsageError
from plansmith.records.model import EngineKind, Precision
from plansmith.records.validation import ToleranceChange
from plansmith.steps.compilation import Compilation
from plansmith.steps.lower import require_lowered
from plansmith.steps.lower_only import lower_model

from ...support.precision import hand_made, pipeline

HALF_END = 65504


def test_squares_that_overflow_fp16_stay_high_by_name_and_the_answers_are_right(tmp_path: Path) -> None:
    model = hand_made.normalising(tmp_path)
    assert hand_made.squares(hand_made.rows(), model).max() > HALF_END, "the plant is real"
    prepared = pipeline.prepare(model, hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("fp16", tmp_path / "lowered")
    assert lowered.record.precision is Precision.FP16
    assert {"square", "variance"} <= set(lowered.kept)
    assert "65 504" in lowered.kept["square"]
    assert {"first_product", "head_product"}.isdisjoint(lowered.kept), "what is within range is lowered"
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
def test_where_nothing_is_accurate_enough_the_best_trial_is_named_and_a_report_lies_there(
    spec: ModelSpec, tmp_path: Path
) -> None:
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
    assert "INT8, dynamic, per channel, 1 more node(s) in FP32" in page
    assert not out.exists()

    with Compilation(spec, relative_to=tmp_path) as compilation:
        again = refused(compilation.run)
        assert [record.cached for record in compilation.steps] == [True, True, True]
    assert again.message == error.message
    assert again.log != error.log, "every run has its own report"
    assert not list((tmp_path / "artifacts" / "repository").rglob("config.pbtxt"))


def test_a_search_without_result_gives_no_graph_but_all_that_was_tried(tmp_path: Path) -> None:
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
    with pytest.raises(GateError, match="none of 3 int8 recipes"):
        require_lowered(lowered.record)


def test_a_graph_without_anything_for_int8_is_refused_by_name(tmp_path: Path) -> None:
    prepared = pipeline.prepare(hand_made.elementwise(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(ExportError, match="nothing can be lowered to INT8"):
        prepared.lower("int8", tmp_path / "lowered")


@pytest.mark.parametrize("precision", ["int8", "fp16", "auto"])
def test_a_pattern_that_no_node_has_is_refused_with_the_nearest_names(precision: str, tmp_path: Path) -> None:
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(UsageError, match="'secnd_product' matches no node") as refused:
        prepared.lower(precision, tmp_path / "lowered", keep=("first_.*", "secnd_product"))
    assert "the nearest are second_product, " in refused.value.remedy


def test_fp16_with_fp16_inputs_is_timed_on_what_it_takes(tmp_path: Path) -> None:
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("fp16", tmp_path / "lowered", lower_io=True)
    assert [tensor.dtype for tensor in lowered.record.components["model"].inputs] == ["float16"]
    (trial,) = [trial for trial in lowered.record.trials if trial.chosen]
    assert trial.speed is not None


def test_a_lowered_graph_with_a_mistake_is_passed_over_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EngineKind] = []

    def mistaken(_: Any, *, engine: EngineKind, **__: Any) -> list[Finding]:
        asked.append(engine)
        return [Finding("some-id", "error", "a_Q", "is wrong", "mend it")] if len(asked) == 1 else []

    monkeypatch.setattr("plansmith.compilers.precision.lowered_graph.lint", mistaken)
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("int8", tmp_path / "lowered", tolerances={"y": ToleranceChange(min_cosine=0.9)})
    first, *others = lowered.record.trials
    assert first.problem == "the lowered graph has 1 error(s): a_Q is wrong [some-id]"
    assert sum(trial.chosen for trial in others) == 1
    asked.clear()
    lowered = prepared.lower(
        "int8", tmp_path / "accepted", accept=("some-id",), tolerances={"y": ToleranceChange(min_cosine=0.9)}
    )
    assert lowered.record.trials[0].problem is None


def test_where_every_accurate_graph_has_a_mistake_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("some-id", "error", "a_Q", "is wrong", "mend it")
    monkeypatch.setattr("plansmith.compilers.precision.lowered_graph.lint", lambda *_, **__: [finding])
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(ExportError, match=r"a_Q is wrong \[some-id\]") as refused:
        prepared.lower("fp16", tmp_path / "lowered", budget=1)
    assert "`lowering: {accept: [some-id]}`" in refused.value.remedy


def test_an_engine_that_loads_no_graph_gets_no_int8(tmp_path: Path) -> None:
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    with pytest.raises(UsageError, match="no int8 for engine python"):
        prepared.lower("int8", tmp_path / "lowered", engine=EngineKind.PYTHON)


def test_a_node_that_a_person_keeps_stays_high_whatever_the_search_finds(tmp_path: Path) -> None:
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("int8", tmp_path / "lowered", keep=("second_.*",))
    assert "second_product" in lowered.kept
    assert np.all([trial.problem is None for trial in lowered.record.trials if trial.chosen])
