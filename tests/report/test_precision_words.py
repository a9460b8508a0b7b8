"""What a terminal says of a lowered graph: short, with as many digits as matter, and nothing twice."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from plansmith.records.model import EngineKind, HighPrecisionNode, LoweredModel, Precision, Recipe, SpeedRatio, Trial
from plansmith.records.validation import Evaluation, Interval, OutputAgreement, TaskMetric, ValidationReport
from plansmith.report.text import describe_choice, doubts, evaluation_lines, format_cosine, format_speedup, recipe_lines


def _agreement(**values: Any) -> OutputAgreement:
    defaults = {"same_first": None, "same_neighbour": None, "kl": None, "failures": ()}
    return OutputAgreement(output="y", samples=9, mean_cosine=0.998, min_cosine=0.97, sqnr_db=24, **(defaults | values))


def _metric(name: str, *failures: str) -> TaskMetric:
    change = Interval(value=-0.01, low=-0.02, high=0.0)
    return TaskMetric(
        name=name,
        samples=9,
        reference=0.9,
        candidate=0.89,
        change=change,
        max_drop=0.05,
        proven=True,
        failures=failures,
    )


def _lines(agreement: OutputAgreement, *metrics: TaskMetric) -> list[str]:
    evaluation = Evaluation(data="a.txt", samples=9, agreements=(agreement,), metrics=metrics, worst=())
    return [line for line, _ in evaluation_lines(evaluation)]


@pytest.mark.parametrize(
    ("cosine", "words"),
    [
        (1.0, "1.000000000"),
        (0.99999999, "0.999999990"),
        (0.99986, "0.99986"),
        (0.9931, "0.9931"),
        (0.9979977, "0.9979"),
        (-1.0, "-1.0000"),
    ],
)
def test_cosine_digits_tell_from_one(cosine: float, words: str) -> None:
    """A cosine has as many digits as tell it from one."""
    assert format_cosine(cosine) == words


def test_interval_measure_told_once() -> None:
    """What a measure tells with an interval is not told again."""
    agreement = _agreement(same_first=0.75, same_neighbour=0.5)
    prefix = "y: mean cosine 0.9980, worst 0.9700, SQNR 24.0 dB"
    assert _lines(agreement)[0] == f"{prefix}, the same first class in 75.0%, the same nearest neighbour in 50.0%"
    assert _lines(agreement, _metric("same nearest neighbour"))[0] == f"{prefix}, the same first class in 75.0%"
    assert _lines(agreement, _metric("same class of a token"))[0] == f"{prefix}, the same nearest neighbour in 50.0%"
    assert "first class" in _lines(agreement, _metric("top-1 accuracy"))[0]


def test_breaching_output_and_measure_marked() -> None:
    """An output and a measure beyond the limits are marked."""
    agreement = _agreement(failures=("too far",))
    evaluation = Evaluation(data="a", samples=9, agreements=(agreement,), metrics=(_metric("F1"),), worst=())
    assert [good for _, good in evaluation_lines(evaluation)] == [False, True]


@pytest.mark.parametrize(("verdict", "end"), [("faster", "1.30)"), ("undecided", "1.30: undecided)")])
def test_speed_says_when_unproven(verdict: Literal["faster", "undecided"], end: str) -> None:
    """A speed says when it proves nothing."""
    speed = SpeedRatio(ratio=1.1, low=0.9, high=1.3, repeats=9, setting="here", verdict=verdict)
    assert format_speedup(speed) == f"1.10 times as fast as FP32 (95 % interval 0.90 to {end}"


def test_speed_choice_names_alternatives() -> None:
    """A choice by speed says what it was weighed against."""
    (trial,) = _lowered({"MatMul": 1}).trials
    timed = [
        trial.model_copy(update={"precision": precision, "speed": _speed(ratio), "problem": problem})
        for precision, ratio, problem in (
            (Precision.INT8, 2.4, None),
            (Precision.INT8, 9.0, "not accurate enough"),
            (Precision.FP16, 0.93, None),
            (Precision.BF16, 1.2, "every node has to stay FP32"),
        )
    ]
    chosen = _lowered({"MatMul": 1}).model_copy(update={"precision": Precision.INT8, "trials": tuple(timed)})
    assert describe_choice(chosen) == (
        "auto took int8: int8 2.40 times as fast as fp32, fp16 0.93 times as fast as fp32, no bf16 that can be taken"
    )


@pytest.mark.parametrize(("reference", "is_told"), [(0.0, True), (0.2, False)])
def test_measure_empty_in_fp32_untold(reference: float, *, is_told: bool) -> None:
    """A measure that FP32 itself gets nothing of tells nothing."""
    metric = _metric("top-1 accuracy").model_copy(update={"reference": reference})
    assert ("tells nothing: FP32 gets none right" in metric.summary()) is is_told


def _speed(ratio: float) -> SpeedRatio:
    return SpeedRatio(ratio=ratio, low=ratio, high=ratio, repeats=9, setting="here", verdict="undecided")


def _lowered(operators: dict[str, int], *node_names: str, precision: Precision = Precision.FP16) -> LoweredModel:
    recipe = Recipe(
        precision=precision,
        method="FP16",
        engine=EngineKind.ONNXRUNTIME,
        lowered=operators,
        kept=tuple(HighPrecisionNode(node=name, op_type="Pow", reason="overflows") for name in node_names),
        settings={},
        calibration="",
        calibration_samples=1,
        not_validated=(),
    )
    trial = Trial(
        name="FP16",
        precision=Precision.FP16,
        lowered=9,
        kept=0,
        file_bytes=512,
        score=1,
        worst=1,
        problem=None,
        speed=None,
        chosen=True,
    )
    return LoweredModel(
        components={}, precision=Precision.FP16, fp32_bytes=1024, recipe=recipe, trials=(trial,), layers=()
    )


def test_recipe_names_frequent_operators() -> None:
    """A recipe names the most frequent operators and counts the others."""
    few, size = recipe_lines(_lowered({"MatMul": 9}, "a"))
    assert (few, size) == ("FP16: 9 MatMul lowered; 1 node stays higher", "512 B, 0.50 of FP32")
    many, _ = recipe_lines(_lowered(dict.fromkeys("ABCDEFG", 2), "a", "b"))
    assert many == "FP16: 2 A, 2 B, 2 C, 2 D, 2 E, 4 other nodes lowered; 2 nodes stay higher"
    assert next(iter(recipe_lines(_lowered({})))) == "FP16"


def test_measure_fits_screen_line() -> None:
    """A measure is told in a line of a screen, and an agreement without the 1 of FP32."""
    accuracy = _metric("Spearman correlation")
    assert accuracy.summary() == (
        "Spearman correlation 0.8900, FP32 0.9000: -0.0100 (95 % -0.0200 to +0.0000), allowed -0.05"
    )
    doubtful = accuracy.model_copy(update={"proven": False, "samples": 256})
    assert doubtful.summary().endswith("; not proven by 256 samples")
    change = Interval(value=-0.05, low=-0.08, high=-0.03)
    changed = {"agreement": True, "reference": 1.0, "candidate": 0.95, "change": change}
    same = _metric("same nearest neighbour").model_copy(update=changed)
    assert same.summary() == "same nearest neighbour 0.9500 (95 % 0.9200 to 0.9700), allowed 0.95"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_records_hold_json_values_only(value: float) -> None:
    """No record holds what JSON cannot."""
    with pytest.raises(ValueError, match="finite number"):
        Interval(value=value, low=0, high=0)


@pytest.mark.parametrize(
    ("precision", "evidence", "said"),
    [("fp32", "drawn", 0), ("int8", "given", 0), ("int8", "drawn", 1), (None, None, 0)],
)
def test_lowering_without_real_input_told(
    precision: Precision | None, evidence: Literal["given", "drawn"] | None, said: int
) -> None:
    """A lowering that no real input was tried on is told so."""
    report = ValidationReport(
        verdict="passed",
        reference="PyTorch",
        candidate="x",
        precision=precision,
        data="d",
        evidence=evidence,
        tolerances={},
        comparisons=(),
        not_validated=("a GPU",),
    )
    lines = list(doubts(report))
    assert len(lines) == said + 1
    assert lines[-1] == "not validated: a GPU"
    assert all("--data" in line and "the search for its recipe had looked at" in line for line in lines[:-1])
