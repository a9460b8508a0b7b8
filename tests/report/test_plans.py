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
from plansmith.report.render import as_json, render
from plansmith.report.text import plan_lines
from plansmith.report.verdict import ReportFacts

from ..support.report import planned
from ..support.report.examples import int8_release
from ..support.report.page import Page
from ..support.report.parts import judged

NOTHING_RAN = "Nothing here ran on TensorRT"


@pytest.fixture(scope="module")
def page(pages: dict[str, Page]) -> Page:
    return pages["plans"]


def test_planless_release_omits_tensorrt(pages: dict[str, Page]) -> None:
    """A release without plans says nothing of TensorRT."""
    assert "tensorrt" not in [attributes.get("id") for attributes in pages["fp32"].all("section")]
    assert "#tensorrt" not in [attributes["href"] for attributes in pages["fp32"].all("a")]


def test_plan_says_builder_time_and_memory(page: Page) -> None:
    """Every plan says what built it, how long and with how much."""
    text = page.text("tensorrt")
    assert "Compute capability 8.9, NVIDIA L4 TensorRT 10.16.1.11 Size 43.2 MiB Built in 3 min 04 s" in text
    assert "by TensorRT's Python API Peak memory 3.8 GiB Peak on the GPU 2.2 GiB" in text
    assert "Timing cache 812 entries known, 44 new File model_8.9.plan Ran here yes" in text
    assert "Warning Make sure input input_ids has Int64 binding." in text
    assert "Peak on the GPU not told" in text
    assert "Built with 4.0 GiB for workspace, optimization level 4." in text


def test_foreign_graph_named_after_library(page: Page) -> None:
    """What another library made of the graph is said to be that library's."""
    text = page.text("tensorrt")
    judge = "TensorRT-RTX 1.7.1.116's parser and builder, not the target's"
    assert f"The graph was built for compute capability 8.9, 8.0 (in place of 9.0) in 1.9 s by {judge}" in text
    assert "33 layers, 1.25 ms together, of which 19 multiply or convolve: 18 in float16, 1 in float32" in text
    assert "Detected layernorm nodes in FP16." in text


def test_shared_profile_shapes_shown_once(page: Page) -> None:
    """Profiles show their shapes once for all inputs that share them."""
    text = page.text("tensorrt")
    assert "latency 9.0 MiB (8.9), 9.0 MiB (8.0) on the GPU input_ids, attention_mask 1 × 1 1 × 64 4 × 256" in text
    assert "throughput 96.0 MiB (8.9), 96.0 MiB (8.0) on the GPU input_ids, attention_mask 1 × 1 16 × 64" in text


def test_plan_inputs_and_outputs_listed_once(page: Page) -> None:
    """Inputs and outputs of the plan are listed once."""
    text = page.text("tensorrt")
    assert "input_ids input int64 [any, any] linear" in text
    assert text.count("last_hidden_state output float32 [any, any, 384] linear") == 1


def test_corners_beside_both_graphs(page: Page) -> None:
    """Every corner stands beside both graphs with bars."""
    text = page.text("tensorrt")
    assert (
        "max of latency 4 × 256 × 384 beside the lowered graph 0.63 % 0.13 % 0.9999968 beside the FP32 graph 1.9 %"
        in text
    )
    assert text.count("384 beside the lowered graph") == 6
    assert len(page.classed("same")) == 6
    assert "Largest error at most 10 %" in text


def test_failed_corner_marked_with_reason(facts: dict[str, ReportFacts]) -> None:
    """A corner that failed is marked with its reason."""
    report = judged(facts["plans"])
    first, *others = report.at_corners
    broken = first.model_copy(update={"found": first.found.model_copy(update={"elements": 0, "failures": ("NaN",)})})
    failed = report.model_copy(update={"verdict": "failed", "at_corners": (broken, *others)})
    page = Page(render(facts["plans"].model_copy(update={"validation": failed})))
    assert "could not be compared NaN" in page.text("tensorrt")
    assert (
        "output 'last_hidden_state' at min of profile 'latency' against the lowered graph (1x1x384): NaN"
        in page.text("verdict")
    )


def test_nearest_corner_counts_for_verdict(facts: dict[str, ReportFacts]) -> None:
    """The corner that is nearest to a limit counts for the verdict."""
    report = judged(facts["plans"])
    last = report.at_corners[-1]
    near = last.model_copy(update={"found": last.found.model_copy(update={"max_relative": 0.095})})
    report_facts = facts["plans"].model_copy(update={"validation": report.model_copy(update={"at_corners": (near,)})})
    text = Page(render(report_facts)).text("verdict")
    assert "largest error 9.5 %, at most 10 %" in text
    assert "last_hidden_state at max of profile 'throughput', 32 × 256 × 384, beside the FP32 graph" in text


def test_speeds_show_plan_and_rivals(page: Page) -> None:
    """Speeds show the plan, what stands beside it and what could not be measured."""
    text = page.text("tensorrt")
    assert "This plan, FP16 p95 0.431 ms, p99 0.502 ms, of 1,000 runs 0.412 ms" in text
    assert "PyTorch in FP32 2.64 ms 6.41× faster: 6.29× to 6.53×" in text
    assert "torch.compile in FP32 not measured: InvalidCxxCompiler: No working C++ compiler found" in text
    assert "The FP32 plan 0.705 ms 1.71×" in text
    assert "This plan: no CUDA graphs, no spin wait, transfers not counted" in text
    assert "Plan's median 0.412 ms latency on 8.9, 1.71× the speed of the next higher precision" in page.text("verdict")


def test_layers_counted_by_precision(page: Page) -> None:
    """Layers are counted and those in a higher precision are named."""
    text = page.text("tensorrt")
    assert "33 layers, 1.25 ms together; all of them stand in layers.json." in text
    assert "1 compute layer stays above FP16, as in the graph Layer Computes in /pooler/dense/Gemm" in text
    assert "gemm float16 18 1.06 ms kgen float16 13 0.143 ms" in text
    assert "__myl_FcAddGelu_myl0_11 gemm: sm80_xmma_gemm_f16f16" in text


def test_untried_plan_never_hidden(facts: dict[str, ReportFacts], pages: dict[str, Page]) -> None:
    """That nothing ran on TensorRT is never hidden."""
    assert NOTHING_RAN in pages["unrun"].text("tensorrt")
    assert "no plan ran here" in pages["unrun"].text("verdict")
    assert "no plan ran here" in pages["unrun"].text("provenance")
    engine = facts["unrun"].engine
    assert engine is not None
    assert list(plan_lines(engine, judged(facts["unrun"])))[-1] == "nothing here ran on TensorRT"
    assert NOTHING_RAN not in pages["plans"].text()
    assert "compute capability 8.0 (NVIDIA A100-SXM4-40GB): it did not run here" in pages["plans"].text("verdict")


def test_shown_plan_not_called_untried(facts: dict[str, ReportFacts]) -> None:
    """What a plan has shown is not said to be untried."""
    lowered = facts["int8"].lowered
    assert lowered is not None
    assert lowered.recipe is not None
    untried = lowered.recipe.model_copy(update={"not_validated": ("the kernels of a GPU",)})
    report_facts = facts["plans"].model_copy(update={"lowered": lowered.model_copy(update={"recipe": untried})})
    assert "the kernels of a GPU" not in report_facts.not_validated
    unrun = report_facts.model_copy(update={"validation": judged(facts["unrun"])})
    assert "the kernels of a GPU" in unrun.not_validated


def test_tf32_named_where_deciding(facts: dict[str, ReportFacts]) -> None:
    """TF32 is named where it decides the limits."""
    report = judged(facts["plans"]).model_copy(update={"limits_of": "fp16"})
    text = Page(render(facts["plans"].model_copy(update={"validation": report}))).text("tensorrt")
    assert "computed in TF32, so that the limits are those of FP16" in text


def test_json_holds_plan_facts(facts: dict[str, ReportFacts]) -> None:
    """The JSON document holds all of it."""
    document = json.loads(json.dumps(as_json(facts["plans"])))
    assert Plan.model_validate(document["engine"]["plans"]["8.9"]) == planned.engine().plans["8.9"]
    assert ValidationReport.model_validate(document["validation"]) == planned.validation()


def test_old_report_without_plans_loads() -> None:
    """A report of a release from before there were plans still loads."""
    document = int8_release().validation.model_dump(mode="json")
    for field in ("ran", "at_corners", "speeds", "limits_of"):
        del document[field]
    assert ValidationReport.model_validate(document) == int8_release().validation


def test_inspect_tells_plans(tmp_path: Path) -> None:
    """Inspect tells of the plans of a release."""
    manifest = int8_release().model_copy(update={"engine": planned.engine(), "validation": planned.validation()})
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    explanation = explain(tmp_path)
    lines = "\n".join(explanation["plans"])
    assert "plan for compute capability 8.9: TensorRT 10.16.1.11 on NVIDIA L4, 43.2 MiB, built in 3 min 04 s" in lines
    assert "1 compute layer stays above fp16, as in the graph: /pooler/dense/Gemm_myl0_44" in lines
    assert "slowest: __myl_FcAddGelu_myl0_11 (gemm), 0.073 ms" in lines
    assert "at 6 corners of profiles beside the lowered graph: largest error 0.0063" in lines
    assert "profile 'latency' (input_ids 1x64, attention_mask 1x64): 0.412 ms, p95 0.431 ms, p99 0.502 ms" in lines
    assert "1.71 times as fast as the FP32 plan (95 % interval 1.68 to 1.74)" in lines
    assert "not measured beside torch.compile in FP32: InvalidCxxCompiler" in lines
    assert explanation["profiles"]["latency"] == dict.fromkeys(planned.INPUTS, "1x1:1x64:4x256")
    (tmp_path / "manifest.json").write_text(int8_release().model_dump_json())
    assert "plans" not in explain(tmp_path)


def test_far_off_answers_counted(facts: dict[str, ReportFacts]) -> None:
    """Answers that are too far off are counted in the summary."""
    report = judged(facts["plans"])
    broken = tuple(
        c.model_copy(update={"found": c.found.model_copy(update={"failures": ("wrong",)})}) for c in report.at_corners
    )
    lines = "\n".join(plan_lines(planned.engine(), report.model_copy(update={"at_corners": broken})))
    assert "!! at 6 corners of profiles beside the FP32 graph: 6 of 6 answers too far off" in lines


def test_compile_summary_tells_plans(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The summary of a compile tells of its plans."""
    stands: dict[str, Any] = {"repository": str(tmp_path), "release": str(tmp_path), "manifest_digest": ""}
    published = PublishedVersion(name="tiny", version=1, published="", unchanged=False, **stands)
    manifest = int8_release().model_copy(update={"engine": planned.engine(), "validation": planned.validation()})
    ran = Compiled(published, manifest, [])
    ran.show()
    output = capsys.readouterr().out
    assert (
        "  plan for compute capability 8.9: TensorRT 10.16.1.11 on NVIDIA L4, 43.2 MiB, built in 3 min 04 s" in output
    )
    assert "nothing here ran on TensorRT" not in output
    document = json.loads(json.dumps(ran.document(), default=str))
    assert (set(document["plans"]), document["ran"]) == ({"8.9", "8.0"}, ["8.9"])
    assert (len(document["at_corners"]), len(document["speeds"])) == (12, 2)
    validation = planned.validation().model_copy(update={"ran": (), "at_corners": (), "speeds": ()})
    Compiled(published, manifest.model_copy(update={"validation": validation}), []).show()
    assert "  nothing here ran on TensorRT\n" in capsys.readouterr().out
