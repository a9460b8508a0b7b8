"""What a report, an inspection and a summary tell of plans; all records here are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli.compile.outcomes import Compiled
from plansmith.cli.inspection import explain
from plansmith.records.engine import Plan
from plansmith.records.release import PublishedVersion
from plansmith.records.validation import ValidationReport
from plansmith.report import ReportFacts, as_json, render
from plansmith.report.text.plan import plan_lines

from ..support.report import planned
from ..support.report.examples import int8_release
from ..support.report.page import Page
from ..support.report.parts import judged

NOTHING_RAN = "Nothing here ran on TensorRT"


@pytest.fixture(scope="module")
def page(pages: dict[str, Page]) -> Page:
    return pages["plans"]


def test_a_release_without_plans_says_nothing_of_tensorrt(pages: dict[str, Page]) -> None:
    assert "tensorrt" not in [found.get("id") for found in pages["fp32"].all("section")]
    assert "#tensorrt" not in [found["href"] for found in pages["fp32"].all("a")]


def test_every_plan_says_what_built_it_how_long_and_with_how_much(page: Page) -> None:
    said = page.words("tensorrt")
    assert "Compute capability 8.9, NVIDIA L4 TensorRT 10.16.1.11 Size 43.2 MiB Built in 3 min 04 s" in said
    assert "by TensorRT's Python API Peak memory 3.8 GiB Peak on the GPU 2.2 GiB" in said
    assert "Timing cache 812 entries known, 44 new File model_8.9.plan Ran here yes" in said
    assert "Warning Make sure input input_ids has Int64 binding." in said
    assert "Peak on the GPU not told" in said
    assert "Built with 4.0 GiB for workspace, optimization level 4." in said


def test_what_another_library_made_of_the_graph_is_said_to_be_its(page: Page) -> None:
    said = page.words("tensorrt")
    judge = "TensorRT-RTX 1.7.1.116's parser and builder, not the target's"
    assert f"The graph was built for compute capability 8.9, 8.0 (in place of 9.0) in 1.9 s by {judge}" in said
    assert "33 layers, 1.25 ms together, of which 19 multiply or convolve: 18 in float16, 1 in float32" in said
    assert "Detected layernorm nodes in FP16." in said


def test_profiles_show_their_shapes_once_for_all_inputs_that_share_them(page: Page) -> None:
    said = page.words("tensorrt")
    assert "latency 9.0 MiB (8.9), 9.0 MiB (8.0) on the GPU input_ids, attention_mask 1 × 1 1 × 64 4 × 256" in said
    assert "throughput 96.0 MiB (8.9), 96.0 MiB (8.0) on the GPU input_ids, attention_mask 1 × 1 16 × 64" in said


def test_inputs_and_outputs_of_the_plan_are_listed_once(page: Page) -> None:
    said = page.words("tensorrt")
    assert "input_ids input int64 [any, any] linear" in said
    assert said.count("last_hidden_state output float32 [any, any, 384] linear") == 1


def test_every_corner_stands_beside_both_graphs_with_bars(page: Page) -> None:
    said = page.words("tensorrt")
    assert (
        "max of latency 4 × 256 × 384 beside the lowered graph 0.63 % 0.13 % 0.9999968 beside the FP32 graph 1.9 %"
        in said
    )
    assert said.count("384 beside the lowered graph") == 6
    assert len(page.classed("same")) == 6
    assert "Largest error at most 10 %" in said


def test_a_corner_that_failed_is_marked_with_its_reason(facts: dict[str, ReportFacts]) -> None:
    found = judged(facts["plans"])
    first, *others = found.at_corners
    broken = first.model_copy(update={"found": first.found.model_copy(update={"elements": 0, "failures": ("NaN",)})})
    failed = found.model_copy(update={"verdict": "failed", "at_corners": (broken, *others)})
    said = Page(render(facts["plans"].model_copy(update={"validation": failed})))
    assert "could not be compared NaN" in said.words("tensorrt")
    assert (
        "output 'last_hidden_state' at min of profile 'latency' against the lowered graph (1x1x384): NaN"
        in said.words("verdict")
    )


def test_the_corner_that_is_nearest_to_a_limit_counts_for_the_verdict(facts: dict[str, ReportFacts]) -> None:
    found = judged(facts["plans"])
    last = found.at_corners[-1]
    near = last.model_copy(update={"found": last.found.model_copy(update={"max_relative": 0.095})})
    told = facts["plans"].model_copy(update={"validation": found.model_copy(update={"at_corners": (near,)})})
    said = Page(render(told)).words("verdict")
    assert "largest error 9.5 %, at most 10 %" in said
    assert "last_hidden_state at max of profile 'throughput', 32 × 256 × 384, beside the FP32 graph" in said


def test_speeds_show_the_plan_what_stands_beside_it_and_what_could_not_be_measured(page: Page) -> None:
    said = page.words("tensorrt")
    assert "This plan, FP16 p95 0.431 ms, p99 0.502 ms, of 1,000 runs 0.412 ms" in said
    assert "PyTorch in FP32 2.64 ms 6.41× faster: 6.29× to 6.53×" in said
    assert "torch.compile in FP32 not measured: InvalidCxxCompiler: No working C++ compiler found" in said
    assert "The FP32 plan 0.705 ms 1.71×" in said
    assert "This plan: no CUDA graphs, no spin wait, transfers not counted" in said
    assert "Plan's median 0.412 ms latency on 8.9, 1.71× the speed of the next higher precision" in page.words(
        "verdict"
    )


def test_layers_are_counted_and_those_in_a_higher_precision_are_named(page: Page) -> None:
    said = page.words("tensorrt")
    assert "33 layers, 1.25 ms together; all of them stand in layers.json." in said
    assert "1 compute layer stays above FP16, as in the graph Layer Computes in /pooler/dense/Gemm" in said
    assert "gemm float16 18 1.06 ms kgen float16 13 0.143 ms" in said
    assert "__myl_FcAddGelu_myl0_11 gemm: sm80_xmma_gemm_f16f16" in said


def test_that_nothing_ran_on_tensorrt_is_never_hidden(facts: dict[str, ReportFacts], pages: dict[str, Page]) -> None:
    assert NOTHING_RAN in pages["unrun"].words("tensorrt")
    assert "no plan ran here" in pages["unrun"].words("verdict")
    assert "no plan ran here" in pages["unrun"].words("provenance")
    engine = facts["unrun"].engine
    assert engine is not None
    assert list(plan_lines(engine, judged(facts["unrun"])))[-1] == "nothing here ran on TensorRT"
    assert NOTHING_RAN not in pages["plans"].words()
    assert "compute capability 8.0 (NVIDIA A100-SXM4-40GB): it did not run here" in pages["plans"].words("verdict")


def test_what_a_plan_has_shown_is_not_said_to_be_untried(facts: dict[str, ReportFacts]) -> None:
    lowered = facts["int8"].lowered
    assert lowered is not None
    assert lowered.recipe is not None
    untried = lowered.recipe.model_copy(update={"not_validated": ("the kernels of a GPU",)})
    told = facts["plans"].model_copy(update={"lowered": lowered.model_copy(update={"recipe": untried})})
    assert "the kernels of a GPU" not in told.not_validated
    unrun = told.model_copy(update={"validation": judged(facts["unrun"])})
    assert "the kernels of a GPU" in unrun.not_validated


def test_tf32_is_named_where_it_decides_the_limits(facts: dict[str, ReportFacts]) -> None:
    found = judged(facts["plans"]).model_copy(update={"limits_of": "fp16"})
    said = Page(render(facts["plans"].model_copy(update={"validation": found}))).words("tensorrt")
    assert "computed in TF32, so that the limits are those of FP16" in said


def test_the_json_holds_all_of_it(facts: dict[str, ReportFacts]) -> None:
    told = json.loads(json.dumps(as_json(facts["plans"])))
    assert Plan.model_validate(told["engine"]["plans"]["8.9"]) == planned.engine().plans["8.9"]
    assert ValidationReport.model_validate(told["validation"]) == planned.validation()


def test_a_report_of_a_release_from_before_there_were_plans_still_loads() -> None:
    told = int8_release().validation.model_dump(mode="json")
    for field in ("ran", "at_corners", "speeds", "limits_of"):
        del told[field]
    assert ValidationReport.model_validate(told) == int8_release().validation


def test_inspect_tells_of_the_plans_of_a_release(tmp_path: Path) -> None:
    manifest = int8_release().model_copy(update={"engine": planned.engine(), "validation": planned.validation()})
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    told = explain(tmp_path)
    lines = "\n".join(told["plans"])
    assert "plan for compute capability 8.9: TensorRT 10.16.1.11 on NVIDIA L4, 43.2 MiB, built in 3 min 04 s" in lines
    assert "1 compute layer stays above fp16, as in the graph: /pooler/dense/Gemm_myl0_44" in lines
    assert "slowest: __myl_FcAddGelu_myl0_11 (gemm), 0.073 ms" in lines
    assert "at 6 corners of profiles beside the lowered graph: largest error 0.0063" in lines
    assert "profile 'latency' (input_ids 1x64, attention_mask 1x64): 0.412 ms, p95 0.431 ms, p99 0.502 ms" in lines
    assert "1.71 times as fast as the FP32 plan (95 % interval 1.68 to 1.74)" in lines
    assert "not measured beside torch.compile in FP32: InvalidCxxCompiler" in lines
    assert told["profiles"]["latency"] == dict.fromkeys(planned.INPUTS, "1x1:1x64:4x256")
    (tmp_path / "manifest.json").write_text(int8_release().model_dump_json())
    assert "plans" not in explain(tmp_path)


def test_answers_that_are_too_far_off_are_counted_in_the_summary(facts: dict[str, ReportFacts]) -> None:
    found = judged(facts["plans"])
    broken = tuple(
        c.model_copy(update={"found": c.found.model_copy(update={"failures": ("wrong",)})}) for c in found.at_corners
    )
    lines = "\n".join(plan_lines(planned.engine(), found.model_copy(update={"at_corners": broken})))
    assert "!! at 6 corners of profiles beside the FP32 graph: 6 of 6 answers too far off" in lines


def test_the_summary_of_a_compile_tells_of_its_plans(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stands: dict[str, Any] = {"repository": str(tmp_path), "release": str(tmp_path), "manifest_digest": ""}
    published = PublishedVersion(name="tiny", version=1, published="", unchanged=False, **stands)
    manifest = int8_release().model_copy(update={"engine": planned.engine(), "validation": planned.validation()})
    ran = Compiled(published, manifest, [])
    ran.show()
    said = capsys.readouterr().out
    assert "  plan for compute capability 8.9: TensorRT 10.16.1.11 on NVIDIA L4, 43.2 MiB, built in 3 min 04 s" in said
    assert "nothing here ran on TensorRT" not in said
    document = json.loads(json.dumps(ran.document(), default=str))
    assert (set(document["plans"]), document["ran"]) == ({"8.9", "8.0"}, ["8.9"])
    assert (len(document["at_corners"]), len(document["speeds"])) == (12, 2)
    validation = planned.validation().model_copy(update={"ran": (), "at_corners": (), "speeds": ()})
    Compiled(published, manifest.model_copy(update={"validation": validation}), []).show()
    assert "  nothing here ran on TensorRT\n" in capsys.readouterr().out
