"""The gate for plans: answers at every corner of every profile, beside the lowered graph and beside FP32."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plansmith.data.reference import store_case
from plansmith.errors import GateError
from plansmith.records.model import DataSet, Precision, SampleSet
from plansmith.records.validation import ToleranceChange, ValidationReport
from plansmith.validation.coverage import UNTRIED_KERNELS, never_ran
from plansmith.validation.gate import Candidate, validate
from plansmith.validation.plan_gate import limits_of
from plansmith.validation.verdict import HeldOut, require_passed

from ..support.validation.graphs import silent
from ..support.validation.plans import L4, WHOLE, Bench, answer_of, make_feed, plan_record, profile, write_network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

SHORT = profile("short", (1, 2), (2, 3), (6, 5))
LONG = profile("long", (1, 4), (4, 10), (4, 12))


def changed(answer: Arrays, name: str, array: NDArray[Any]) -> Arrays:
    return answer | {name: array.astype(answer[name].dtype)}


def scaled(answer: Arrays, _: int) -> Arrays:
    return changed(answer, "hidden", 1.3 * answer["hidden"])


def nan_at_max(answer: Arrays, _: int) -> Arrays:
    spoilt = answer["hidden"].copy()
    if spoilt.shape[:2] == (6, 12):
        spoilt[-1, 0, 0] = np.nan
    return changed(answer, "hidden", spoilt)


def traced_length_only(answer: Arrays, _: int) -> Arrays:
    return changed(answer, "hidden", np.where(np.arange(answer["hidden"].shape[1])[:, None] < 6, answer["hidden"], 0))


def batch_ignored(answer: Arrays, _: int) -> Arrays:
    return changed(answer, "hidden", np.repeat(answer["hidden"][:1], len(answer["hidden"]), axis=0))


def length_cut_in_the_second_profile(answer: Arrays, place: int) -> Arrays:
    return changed(answer, "hidden", answer["hidden"][:, :4] if place == 1 else answer["hidden"])


def constant(answer: Arrays, _: int) -> Arrays:
    return changed(answer, "pooled", np.full_like(answer["pooled"], 0.5))


def places(report: ValidationReport) -> list[str]:
    """Where answers at corners failed."""
    return [f"{c.found.output} {c.where}" for c in report.at_corners if c.found.failures]


def test_matching_plan_passes_every_corner(tmp_path: Path) -> None:
    """A plan that answers as its graph does passes at every corner."""
    bench = Bench(tmp_path)
    report = bench.judge()
    require_passed(report)
    corners = [(c.corner, c.against, c.found.output, c.found.shape) for c in report.at_corners]
    shapes = {"min": (1, 2), "opt": (3, 6), "max": (6, 12)}
    assert corners == [
        (corner, against, output, rest)
        for corner, (batch, length) in shapes.items()
        for against in ("lowered", "fp32")
        for output, rest in (("hidden", (batch, length, 8)), ("pooled", (batch, 8)))
    ]
    exact = [c.found.max_relative for c in report.at_corners if c.against == "lowered"]
    lowered = [c.found.max_relative for c in report.at_corners if c.against == "fp32"]
    assert exact == [0.0] * 6
    assert all(0 < error < 0.01 for error in lowered)


def test_stored_cases_judged_and_plan_named(tmp_path: Path) -> None:
    """The stored cases are judged too and the report says which plan ran."""
    report = Bench(tmp_path).judge()
    assert [c.case for c in report.comparisons if c.output == "pooled"] == ["single", "traced", "min", "opt", "max"]
    assert report.ran == ("8.9",)
    assert report.candidate == "TensorRT 10.16.1.11 on NVIDIA L4, fp16"
    assert report.not_validated == ("inputs that nobody has seen",)  # FP16's kernels were
    assert ValidationReport.model_validate_json(report.model_dump_json()) == report


def test_wrong_scale_refused_with_corner(tmp_path: Path) -> None:
    """A wrong scale is refused with profile, corner and graph."""
    report = Bench(tmp_path).judge(change=scaled)
    assert len(places(report)) == 6
    assert "hidden max of profile 'default' against the lowered graph" in places(report)
    with pytest.raises(GateError, match="output 'hidden' at traced"):
        require_passed(report)
    prefix = "output 'hidden' at opt of profile 'default' against the FP32 graph (3x6x8): maximum error"
    assert any(line.startswith(prefix) for line in report.failures())


def test_nan_at_max_refused(tmp_path: Path) -> None:
    """A NaN at max alone is refused."""
    report = Bench(tmp_path).judge(change=nan_at_max)
    assert places(report) == [
        "hidden max of profile 'default' against the lowered graph",
        "hidden max of profile 'default' against the FP32 graph",
    ]
    assert report.verdict == "failed"


@pytest.mark.parametrize("defect", [traced_length_only, batch_ignored])
def test_ignored_dimension_found(tmp_path: Path, defect: Any) -> None:
    """A dimension that is ignored is found where it shows."""
    report = Bench(tmp_path).judge(change=defect)
    assert report.verdict == "failed"
    assert {c.corner for c in report.at_corners if c.found.failures} in ({"max"}, {"opt", "max"})


def test_profile_with_other_shape_named(tmp_path: Path) -> None:
    """A profile that gives another shape is named."""
    bench = Bench(tmp_path, profiles=(SHORT, LONG))
    report = bench.judge(change=length_cut_in_the_second_profile)
    assert {re.findall("profile '(.*)'", place)[0] for place in places(report)} == {"long"}
    assert "shape is 4x4x8, expected 4x12x8" in str(report.failures())


def test_unvarying_output_fails(tmp_path: Path) -> None:
    """An output that never varies fails though it agrees."""
    bench = Bench(tmp_path, precision=Precision.FP32)
    for path in (bench.lowered, tmp_path / "model.onnx"):
        write_network(path, gain=0)
    report = bench.judge()
    assert {c.found.failures for c in report.at_corners} == {("does not vary between different samples",)}


def test_wrong_lowering_fails_beside_fp32(tmp_path: Path) -> None:
    """A lowering that is wrong fails beside FP32, and not beside its own graph."""
    report = Bench(tmp_path, gain=0.3).judge()
    assert report.verdict == "failed"
    assert {c.against for c in report.at_corners if c.found.failures} == {"fp32"}


def test_tensorrt_error_fails_beside_lowered(tmp_path: Path) -> None:
    """What TensorRT made wrong fails beside the lowered graph."""
    report = Bench(tmp_path, gain=0.3).judge(path=tmp_path / "model.onnx")
    assert {c.against for c in report.at_corners if c.found.failures} == {"lowered"}


def test_unlowered_graph_compared_once(tmp_path: Path) -> None:
    """Without a lowering, both graphs are one, and it is compared once."""
    report = Bench(tmp_path, precision=Precision.FP32).judge()
    assert {c.against for c in report.at_corners} == {"fp32"}
    assert len(report.at_corners) == 6


def test_case_takes_nearest_opt_profile(tmp_path: Path) -> None:
    """Every case is asked through the profile whose opt is nearest."""
    bench = Bench(tmp_path, profiles=(SHORT, LONG))
    report = bench.judge()
    require_passed(report)
    stored, corners = bench.requests[:4], bench.requests[4:]
    assert stored == [(0, (1, 5)), (1, (2, 7)), (0, (1, 2)), (1, (3, 6))]  # (6, 12) is in neither
    assert corners == [(0, (1, 2)), (0, (2, 3)), (0, (6, 5)), (1, (1, 4)), (1, (4, 10)), (1, (4, 12))]


def test_outer_corner_repeats_real_inputs(tmp_path: Path) -> None:
    """A corner beyond the stored cases repeats real inputs."""
    bench = Bench(tmp_path, profiles=(profile("large", (1, 2), (9, 20), (16, 31)),))
    require_passed(bench.judge())
    assert (0, (16, 31)) in bench.requests


def test_failing_plan_refused_with_place(tmp_path: Path) -> None:
    """A plan that breaks down is refused with the place and what it said."""

    def breaks(_: Arrays, __: int) -> Arrays:
        raise RuntimeError("out of memory on the device\nand more")

    with pytest.raises(GateError, match=r"the plan fails at single: out of memory on the device\nNext:") as raised:
        Bench(tmp_path).judge(change=breaks)
    assert "--force" in raised.value.remedy


def test_missing_output_refused(tmp_path: Path) -> None:
    """An output that is missing is refused."""
    with pytest.raises(GateError, match="the plan has no output pooled"):
        Bench(tmp_path).judge(change=lambda answer, _: {"hidden": answer["hidden"]})


def test_own_tolerances_hold_at_corners(tmp_path: Path) -> None:
    """Tolerances of a person hold at the corners too."""
    loose = ToleranceChange(max_relative=9, quantile_relative=9, min_cosine=0.5)
    require_passed(Bench(tmp_path).judge(change=scaled, overrides={"hidden": loose}))


def test_tf32_held_to_fp16_limits(tmp_path: Path) -> None:
    """FP32 that is computed in TF32 is held to the limits of FP16."""

    def ten_bits(answer: Arrays, _: int) -> Arrays:
        return {k: v.astype(np.float16).astype(v.dtype) for k, v in answer.items()}

    bench = Bench(tmp_path, precision=Precision.FP32)
    assert bench.judge(change=ten_bits, build={"tf32": False}).verdict == "failed"
    report = bench.judge(change=ten_bits)
    require_passed(report)
    assert report.limits_of is Precision.FP16
    assert report.candidate.endswith("fp32 computed in TF32")
    assert bench.judge(build={"tf32": False}).limits_of is None


@pytest.mark.parametrize(
    ("precision", "tf32", "capability", "expected"),
    [
        ("fp32", True, "8.0", "fp16"),
        ("fp32", True, "12.0", "fp16"),
        ("fp32", True, "7.5", "fp32"),
        ("fp32", False, "9.0", "fp32"),
        ("int8", True, "8.9", "int8"),
    ],
)
def test_whose_limits_hold(precision: str, tf32: bool, capability: str, expected: str, tmp_path: Path) -> None:
    build = Bench(tmp_path).engine(tf32=tf32).build
    assert build is not None
    gpu = L4.model_copy(update={"compute_capability": capability})
    assert limits_of(Precision(precision), build, gpu) == expected


def test_unrunnable_plan_graph_judged(tmp_path: Path) -> None:
    """Where no plan can run, its graph is judged and the report says so."""
    bench = Bench(tmp_path)
    candidate = Candidate(bench.engine(), tmp_path, recipe=bench.recipe(), runnable=bench.lowered)
    report = validate(candidate, bench.onnx(), tmp_path, overrides={}, progress=silent)
    require_passed(report)
    assert (report.ran, report.at_corners) == ((), ())
    assert report.candidate == "the fp16 graph of TensorRT plans, run by ONNX Runtime on the CPU"
    assert UNTRIED_KERNELS[Precision.FP16] in report.not_validated
    assert never_ran(bench.engine(), ())[0] in report.not_validated


def test_idle_plans_named(tmp_path: Path) -> None:
    """Plans that did not run are named."""
    engine = Bench(tmp_path).engine()
    two = engine.model_copy(update={"plans": {"8.9": plan_record(), "9.0": plan_record(L4)}})
    assert never_ran(two, {"8.9"}) == ("the plan for compute capability 9.0 (NVIDIA L4): it did not run here",)
    assert "no plan ran here" in never_ran(two, ())[0]
    assert never_ran(engine.model_copy(update={"plans": {}}), ()) == ()


def held_out(folder: Path, *shapes: tuple[int, int]) -> HeldOut:
    """Samples at these shapes, with the FP32 graph's answers."""
    cases = []
    for place, (batch, length) in enumerate(shapes):
        feed = make_feed(batch, length)
        answer = answer_of(folder / "model.onnx", feed)
        cases.append(store_case(f"batch-{place}", {"batch": batch, "sequence": length}, feed, answer, folder / "held"))
    count = sum(batch for batch, _ in shapes)
    evaluation = SampleSet(
        cases=tuple(cases),
        rows=tuple(range(count)),
        digests=tuple(f"{n:064x}" for n in range(count)),
        labelled=False,
    )
    data = DataSet(
        words="texts",
        digest="0",
        revision=None,
        available=count,
        seed=0,
        real=True,
        guessed=False,
        metric="none",
        pooling="none",
        calibration=SampleSet(cases=(), rows=(), digests=(), labelled=False),
        evaluation=evaluation,
    )
    return HeldOut(data=data, folder=folder)


def test_held_out_samples_judged_by_profile(tmp_path: Path) -> None:
    """Held-out samples are judged where a profile takes them."""
    bench = Bench(tmp_path, profiles=(SHORT, LONG))
    bench.onnx()
    report = bench.judge(held_out=held_out(tmp_path, (3, 4), (6, 9), (2, 11)))
    require_passed(report)
    assert report.evaluation is not None
    assert (report.evaluation.samples, report.evaluation.left_out) == (5, 6)
    assert report.evidence == "given"
    assert report.not_validated[1:] == (
        "6 of 11 held-out samples: no optimization profile takes inputs of their shapes",
    )


def test_profileless_held_out_proves_nothing(tmp_path: Path) -> None:
    """Held-out samples that no profile takes prove nothing."""
    bench = Bench(tmp_path, profiles=(WHOLE,))
    report = bench.judge(held_out=held_out(tmp_path, (3, 13)))
    assert report.evaluation is None
    assert report.evidence == "shipped"
    assert "3 of 3 held-out samples" in report.not_validated[-1]


def test_held_out_defect_fails_plan(tmp_path: Path) -> None:
    """A defect that only held-out samples show fails the plan."""

    def wrong_at_four(answer: Arrays, _: int) -> Arrays:
        spoilt = answer["pooled"] * (-1 if answer["hidden"].shape[1] == 4 else 1)
        return changed(answer, "pooled", spoilt)

    report = Bench(tmp_path).judge(change=wrong_at_four, held_out=held_out(tmp_path, (3, 4)))
    assert report.verdict == "failed"
    assert not places(report)
    assert "held-out samples" in report.failures()[0]
