"""`precision: auto`: the fastest that is accurate enough, mixed where need be, and never one that is surely slower."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.records.model import EngineKind, Precision

from ...support.precision import hand_made, pipeline
from ...support.precision.costs import give_costs
from ...support.precision.pipeline import Lowered, Prepared

pytestmark = pytest.mark.xdist_group("digits")

PLANTED = "/model/layer3/layer3.0/conv2/Conv"
BEFORE_IT = "/model/layer3/layer3.0/conv1/Conv"
STEADY = (1.0,)
SWAYING = (0.9, 1.0, 1.1, 1.05, 0.95)


def chosen(lowered: Lowered) -> str:
    (name,) = [trial.name for trial in lowered.record.trials if trial.chosen]
    return name


def verdicts(lowered: Lowered) -> dict[str, str]:
    return {t.precision: t.speed.verdict for t in lowered.record.trials if t.speed is not None}


@pytest.mark.slow
def test_planted_outlier_stays_high(planted: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mix that keeps a planted outlier high is found and right."""
    measured = give_costs(monkeypatch, fp32=(2.0,), int8=STEADY, fp16=(3.0,))
    lowered = planted.lower("auto", tmp_path / "lowered")
    plain, *mixed, half = lowered.record.trials
    assert (plain.name, plain.chosen) == ("INT8, static Q/DQ", False)
    assert plain.problem is not None
    assert "calibration samples" in plain.problem
    assert (half.precision, half.problem, half.speed and half.speed.verdict) == (Precision.FP16, None, "slower")
    (best,) = [trial for trial in mixed if trial.chosen]
    assert (best.problem, best.speed and best.speed.verdict) == (None, "faster")
    assert best.lowered == max(trial.lowered for trial in mixed if trial.problem is None)
    assert best.lowered >= 12, "of the 15 convolutions that INT8 could have"
    assert "brought too much error in: from" in lowered.high_reasons[PLANTED]
    assert f"at {PLANTED}, which takes what it makes" in lowered.high_reasons[BEFORE_IT], (
        "its output was stored in 8 bits"
    )
    assert measured == ["fp32", "int8", "fp16"], "graphs that are not accurate enough are not worth their time"
    report = planted.judge(lowered, tmp_path / "engine")
    assert report.verdict == "passed"
    assert report.evaluation is not None
    assert report.evaluation.metrics[0].change.low >= -0.01


@pytest.mark.slow
@pytest.mark.parametrize("engine", [EngineKind.ONNXRUNTIME, EngineKind.TENSORRT])
def test_outlier_migrated_before_product(
    planted_vit: Prepared, vit: Prepared, engine: EngineKind, tmp_path: Path
) -> None:
    """An outlier before a product is migrated, and nothing has to stay high for it."""
    lowered = planted_vit.lower("int8", tmp_path / "lowered", engine=engine)
    assert lowered.high_reasons == vit.lower("int8", tmp_path / "plain", engine=engine).high_reasons
    assert lowered.record.recipe is not None
    assert "the normalisation before it" in lowered.record.recipe.settings["smoothing"]
    report = planted_vit.judge(lowered, tmp_path / "engine")
    assert report.evaluation is not None
    assert report.evaluation.agreements[0].mean_cosine > 0.999


@pytest.mark.slow
def test_planted_node_alone_stays_high(planted: Prepared, tmp_path: Path) -> None:
    """For TensorRT, the planted node alone stays high."""
    lowered = planted.lower("int8", tmp_path / "lowered", engine=EngineKind.TENSORRT)
    assert {node for node, reason in lowered.high_reasons.items() if "error" in reason} == {PLANTED}
    assert [trial.problem is None for trial in lowered.record.trials] == [False, True]


@pytest.mark.slow
def test_fastest_passing_is_taken(vit: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of those that pass is taken."""
    give_costs(monkeypatch, fp32=(2.0,), int8=(1.5,), fp16=STEADY)
    lowered = vit.lower("auto", tmp_path / "fp16")
    assert (lowered.record.precision, chosen(lowered)) == (Precision.FP16, "FP16, mixed by measured ranges")
    give_costs(monkeypatch, fp32=(2.0,), int8=STEADY, fp16=(1.5,))
    assert vit.lower("auto", tmp_path / "int8").record.precision is Precision.INT8


@pytest.mark.slow
def test_noise_decides_nothing(vit: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP16 has the better median here, and is not faster in every round: the best guess, which comes first, stays."""
    give_costs(monkeypatch, fp32=(2.0,), int8=SWAYING, fp16=(1.1, 0.95, 0.9, 0.95, 0.94))
    lowered = vit.lower("auto", tmp_path / "lowered")
    assert lowered.record.precision is Precision.INT8
    ratios = {t.precision: t.speed.ratio for t in lowered.record.trials if t.speed is not None}
    assert ratios[Precision.FP16] > ratios[Precision.INT8] > 1


@pytest.mark.slow
def test_slower_precision_refused(vit: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A precision that is surely slower is refused, and the exported graph stays."""
    give_costs(monkeypatch, fp32=STEADY, int8=(1.1,), fp16=(1.3,))
    lowered = vit.lower("auto", tmp_path / "lowered")
    assert lowered.record.precision is Precision.FP32
    assert verdicts(lowered) == {"int8": "slower", "fp16": "slower"}
    assert all(trial.problem is None and not trial.chosen for trial in lowered.record.trials)
    assert lowered.record.recipe is not None
    assert "0.91 times as fast" in lowered.record.recipe.method
    assert (lowered.folder / "model.onnx").read_bytes() == (vit.onnx_folder / "model.onnx").read_bytes()
    assert vit.judge(lowered, tmp_path / "engine").verdict == "passed"


@pytest.mark.slow
def test_parity_is_undecided(vit: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be told from parity is undecided, and the lower precision stays."""
    give_costs(monkeypatch, fp32=STEADY, int8=SWAYING, fp16=(1.3,))
    lowered = vit.lower("auto", tmp_path / "lowered")
    assert lowered.record.precision is Precision.INT8
    assert verdicts(lowered) == {"int8": "undecided", "fp16": "slower"}
    (trial,) = [trial for trial in lowered.record.trials if trial.chosen]
    assert trial.speed is not None
    assert trial.speed.low < 1 < trial.speed.high


@pytest.mark.slow
def test_requested_slower_precision_is_made(vit: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A precision that a person asks for is made though it is slower."""
    measured = give_costs(monkeypatch, fp32=STEADY, fp16=(1.5,))
    lowered = vit.lower("fp16", tmp_path / "lowered")
    assert (lowered.record.precision, verdicts(lowered)) == (Precision.FP16, {"fp16": "slower"})
    assert measured == ["fp32", "fp16"], "the graph that is served, not the twin in FP32 that showed its accuracy"


@pytest.mark.slow
def test_gpu_plan_not_timed_on_cpu(vit: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU will run is not timed on this CPU."""
    measured = give_costs(monkeypatch)
    lowered = vit.lower("fp16", tmp_path / "lowered", device="gpu")
    assert (lowered.record.precision, verdicts(lowered), measured) == (Precision.FP16, {}, [])


@pytest.mark.slow
def test_fp32_stays_without_compromise(planted: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP32 stays where what is accurate is slow and what is fast is not accurate."""
    give_costs(monkeypatch, fp32=STEADY, fp16=(1.5,))
    lowered = planted.lower("auto", tmp_path / "lowered", budget=0)
    int8, fp16 = lowered.record.trials
    assert int8.problem is not None
    assert int8.speed is None
    assert fp16.speed is not None
    assert (fp16.problem, fp16.speed.verdict) == (None, "slower")
    assert lowered.record.precision is Precision.FP32


def test_impossible_precision_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and products of elements hold nothing that INT8 gains from."""
    give_costs(monkeypatch, fp32=(2.0,), fp16=STEADY)
    prepared = pipeline.prepare(hand_made.elementwise(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    lowered = prepared.lower("auto", tmp_path / "lowered")
    assert lowered.record.precision is Precision.FP16
    (int8,) = [trial for trial in lowered.record.trials if trial.precision is Precision.INT8]
    assert int8.lowered == 0
    assert int8.problem is not None
    assert int8.problem.startswith("nothing can be lowered to INT8")
