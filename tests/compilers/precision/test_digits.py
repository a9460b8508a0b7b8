"""A CNN and a ViT trained on digits keep their accuracy in INT8, FP8 and FP16, on 800 images that nothing looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.records.model import EngineKind, Precision
from plansmith.records.validation import Evaluation, ValidationReport

from ...support.precision import digits
from ...support.precision.pipeline import Lowered, Prepared

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("digits")]

POINT = 0.01
MOST_DISAGREEMENT = 0.01


@pytest.fixture(params=["cnn", "vit"])
def model(request: pytest.FixtureRequest) -> Prepared:
    value = request.getfixturevalue(request.param)
    assert isinstance(value, Prepared)
    return value


def held_out(report: ValidationReport) -> Evaluation:
    assert (report.verdict, report.failures()) == ("passed", [])
    assert report.evidence == "given"
    assert report.evaluation is not None
    assert report.evaluation.samples == digits.EVALUATION
    return report.evaluation


def require_within_a_point(evaluation: Evaluation) -> None:
    top1 = next(metric for metric in evaluation.metrics if metric.name == "top-1 accuracy")
    assert top1.reference > 0.95
    assert top1.change.value >= -POINT
    assert top1.change.low >= -POINT, top1.summary()
    assert top1.proven


@pytest.mark.parametrize("engine", [EngineKind.ONNXRUNTIME, EngineKind.TENSORRT])
def test_int8_accuracy_within_one_point(model: Prepared, engine: EngineKind, tmp_path: Path) -> None:
    """INT8 is within one point of top-1, and the samples prove it."""
    lowered = model.lower("int8", tmp_path / "lowered", engine=engine)
    assert lowered.record.precision is Precision.INT8
    evaluation = held_out(model.judge(lowered, tmp_path / "engine"))
    require_within_a_point(evaluation)
    (logits,) = evaluation.agreements
    assert logits.mean_cosine > 0.999
    assert logits.same_first is not None
    assert logits.same_first >= 1 - MOST_DISAGREEMENT


def test_fp8_within_limits(model: Prepared, tmp_path: Path) -> None:
    """FP8 for TensorRT stays within its limits."""
    lowered = model.lower("fp8", tmp_path / "lowered", engine=EngineKind.TENSORRT)
    assert lowered.record.precision is Precision.FP8
    assert lowered.record.components["model"].opset == 19, "exported in 18, which has no FP8"
    assert lowered.record.recipe is not None
    assert lowered.record.recipe.lowered in ({"Conv": 15}, {"MatMul": 8})
    (logits,) = held_out(model.judge(lowered, tmp_path / "engine")).agreements
    assert logits.mean_cosine > 0.99


def test_cnn_convolutions_nearly_all_int8(cnn: Prepared, tmp_path: Path) -> None:
    """Nearly all convolutions of the CNN are INT8, and its file is a third."""
    lowered = cnn.lower("int8", tmp_path / "lowered")
    assert lowered.record.recipe is not None
    assert lowered.record.recipe.lowered["Conv"] >= 14
    assert lowered.share < 0.34


def test_vit_products_all_int8(vit: Prepared, tmp_path: Path) -> None:
    """All products with weights of the ViT are INT8."""
    lowered = vit.lower("int8", tmp_path / "lowered")
    assert lowered.record.recipe is not None
    assert lowered.record.recipe.lowered == {"MatMul": 8}, "four in each of the two blocks"
    assert {
        reason for node, reason in lowered.high_reasons.items() if node.endswith(("attn/MatMul", "attn/MatMul_1"))
    } == {"both operands are computed, as in attention"}
    assert lowered.share < 0.6, "what the graph itself takes counts in a model of half a megabyte"


def test_fp16_changes_no_digit(model: Prepared, tmp_path: Path) -> None:
    """FP16 changes no digit and halves the file."""
    lowered = model.lower("fp16", tmp_path / "lowered")
    evaluation = held_out(model.judge(lowered, tmp_path / "engine"))
    require_within_a_point(evaluation)
    (logits,) = evaluation.agreements
    assert (logits.same_first, lowered.high_reasons) == (1.0, {})
    assert logits.min_cosine > 0.99999
    assert lowered.share <= 0.52


def test_calibration_and_judging_are_disjoint(cnn: Prepared) -> None:
    """The samples that calibrate are none of those that judge."""
    calibration, evaluation = cnn.data.calibration, cnn.data.evaluation
    assert evaluation is not None
    assert (calibration.count, evaluation.count) == (digits.CALIBRATION, digits.EVALUATION)
    assert not set(calibration.digests) & set(evaluation.digests)


def test_recipe_ignores_held_out_images(planted: Prepared, tmp_path: Path) -> None:
    """The recipe is found without the held-out images."""
    blind = planted.without_held_out(tmp_path / "blind")
    reference, unseen = (
        prepared.lower("int8", tmp_path / name) for prepared, name in ((planted, "seen"), (blind, "unseen"))
    )
    assert _reproducible_parts(reference) == _reproducible_parts(unseen)


def test_same_samples_make_same_file(cnn: Prepared, tmp_path: Path) -> None:
    """The same samples make the same file."""
    first, second = (cnn.lower("int8", tmp_path / name) for name in ("one", "other"))
    assert _reproducible_parts(first) == _reproducible_parts(second)


def _reproducible_parts(lowered: Lowered) -> tuple[object, ...]:
    """All that does not depend on how fast this machine was."""
    record = lowered.record
    files = {path.name: path.read_bytes() for path in lowered.folder.iterdir()}
    return record.recipe, record.layers, [trial.model_copy(update={"speed": None}) for trial in record.trials], files
