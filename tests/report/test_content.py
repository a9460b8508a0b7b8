"""What a report says, of a release and of a compile that was refused."""

from __future__ import annotations

import re

import pytest

from plansmith.errors import RepositoryError
from plansmith.report.render import render, renumber
from plansmith.report.verdict import ReportFacts

from ..support.report.page import Page
from ..support.report.parts import judged


def test_verdict_comes_first(pages: dict[str, Page]) -> None:
    """The verdict comes first in plain words."""
    text = pages["int8"].text("verdict")
    assert text.startswith("all-MiniLM-L6-v2 version 3 local-cpu 2026-11-20 13:05 UTC Passed")
    assert "in INT8 with ONNX Runtime answers as the FP32 model does" in text
    assert "Nearest to a limit largest error 69 %, at most 80 % last_hidden_state at max, 32 × 256 × 384" in text
    assert "86 % of what is allowed" in text


def test_key_figures_beside_verdict(pages: dict[str, Page]) -> None:
    """The figures that people ask for stand beside the verdict."""
    text = pages["int8"].text("verdict")
    assert "Lowered 34 of 50 nodes" in text
    assert "Size 22.6 MiB 26.1 % of FP32's 86.7 MiB" in text
    assert "Speed beside FP32 2.31× 2.22× to 2.38× at 95 %" in text
    assert "Mean cosine 0.9941 of 256 held-out samples, smallest 0.9843" in text
    assert "Change of Spearman's rank correlation −0.0023 0.8671 before, 0.8648 now" in text


def test_refused_compile_names_limit(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    """A refused compile says what was beyond which limit and that nothing was published."""
    text = pages["fp16"].text("verdict")
    assert "not published" in text
    assert "in FP16 with ONNX Runtime was refused: 4 figures are beyond what is allowed. Nothing was published." in text
    assert "Farthest beyond a limit smallest cosine 0.9712, at least 0.9999 logits on 72 held-out samples" in text
    assert "288× the allowed distance from 1" in text
    assert not [line for line in judged(facts["fp16"]).failures() if line not in text]


def test_surplus_breaches_folded_not_lost(facts: dict[str, ReportFacts]) -> None:
    """More breaches than fit are folded away, and none is lost."""
    validation = judged(facts["fp16"])
    broken = tuple(c.model_copy(update={"failures": (f"broken at {c.case}",)}) for c in validation.comparisons)
    report_facts = facts["fp16"].model_copy(
        update={"validation": validation.model_copy(update={"comparisons": broken})}
    )
    text = Page(render(report_facts)).text("verdict")
    assert "7 figures are beyond" in text
    assert "2 more" in text
    assert not [line for line in judged(report_facts).failures() if line not in text]


def test_failed_lowering_shows_tries(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    """A lowering that found no recipe shows what it tried and why none would do."""
    page, trials = pages["trials"], facts["trials"].trials
    text = page.text("verdict")
    assert "in INT8 with ONNX Runtime was refused: of 6 recipes that were tried, none is accurate enough." in text
    first, *others = facts["trials"].failures()
    assert first.startswith("dynamic, per channel: mean cosine 0.9897")  # the best one
    assert not [line for line in (first, *others) if line not in text]
    assert [attributes["id"] for attributes in page.all("section")] == ["frontier", "provenance"]
    assert not [trial for trial in trials if f"{trial.name} {trial.problem}" not in page.text("frontier")]


def test_outputs_and_shapes_have_rows(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    """Every output and shape has a row with bars against its limits."""
    text = pages["int8"].text("shapes")
    for comparison in judged(facts["int8"]).comparisons:
        assert f"{comparison.case} {' × '.join(map(str, comparison.shape))}" in text
    assert text.count("outside of the ranges") == 2  # the case that the ranges do not hold, of two outputs
    bars = pages["int8"].classed("bar")
    assert len(bars) == 3 * len(judged(facts["int8"]).comparisons)
    assert "max 32 × 384 69 % 29 % 0.9833" in text


def test_bar_length_shows_limit_share(pages: dict[str, Page]) -> None:
    """A bar is as long as the part of the limit that is used."""
    page = pages["fp16"]
    inside = [
        attributes
        for tag, attributes in page.elements
        if tag == "i" and attributes.get("style", "").startswith("width:")
    ]
    widths = [attributes["style"] for attributes in inside]
    assert "width:42.0%" in widths  # 0.42 % of at most 1 %
    assert "width:26.0%" in widths  # 1 - 0.999974 of 1 - 0.9999
    over = page.classed("over")
    assert [attributes["class"] for attributes in over] == ["nearest over", "bar over"]


def test_incomparable_answers_show_why(pages: dict[str, Page]) -> None:
    """Answers that could not be compared show why instead of figures."""
    text = pages["fp16"].text("shapes")
    assert "max 32 × 256 × 30522 could not be compared NaN or Inf in the candidate's answer" in text
    assert "e+308" not in pages["fp16"].source


def test_held_out_columns_follow_outputs(pages: dict[str, Page]) -> None:
    """Held-out agreement shows the columns that the outputs have."""
    vectors, scores = pages["int8"].text("held-out"), pages["fp16"].text("held-out")
    assert "256 samples of 1,024 sentences of stsb-validation.csv, which no recipe has seen" in vectors
    assert "sentence_embedding 256 0.9953 at least 0.99 0.9864 19.7 dB 96.5 %" in vectors
    assert "Same neighbour" in vectors
    assert "Kullback-Leibler" not in vectors
    assert "logits 72 0.99910 0.9712 27.4 dB 0.0031 nats 97.1 % 99.9 %" in scores
    assert "Same neighbour" not in scores


def test_task_metric_drawn_with_interval(pages: dict[str, Page]) -> None:
    """A task metric is drawn with its interval beside zero and the limit."""
    page = pages["int8"]
    text = page.text("held-out")
    assert "0.8671 of the reference, 0.8648 of the candidate, on the same 256 samples." in text
    assert "change −0.0023 −0.0061 to +0.0016 (95 %, paired) limit −0.0100 no change" in text
    assert "The whole interval is within what is allowed" in text
    places = {name: _place(page, name) for name in ("limit", "interval", "value", "zero")}
    assert places["limit"] < places["interval"] < places["value"] < places["zero"]
    assert "The loss is more than is allowed." in pages["fp16"].text("held-out")


def test_interval_beyond_limit_proves_nothing(facts: dict[str, ReportFacts]) -> None:
    """An interval beyond the limit is said to prove nothing."""
    evaluation = judged(facts["int8"]).evaluation
    assert evaluation is not None
    metrics = tuple(m.model_copy(update={"proven": False}) for m in evaluation.metrics)
    report_facts = _with_evaluation(facts["int8"], metrics=metrics)
    assert "more samples would be needed to tell" in Page(render(report_facts)).text("held-out")


def test_worst_samples_named_by_place(pages: dict[str, Page]) -> None:
    """The worst samples are named by their place."""
    text = pages["int8"].text("held-out")
    assert "881 sentence_embedding 0.9864 173 sentence_embedding 0.9870" in text


def test_layers_charted_in_order(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    """Every layer stands in the chart in order and the worst are named."""
    page, lowered = pages["int8"], facts["int8"].lowered
    assert lowered is not None
    paths = {attributes["class"]: attributes["d"] for attributes in page.all("path") if "class" in attributes}
    assert paths["lowered"].count("M") == sum(layer.lowered for layer in lowered.layers)
    assert paths["kept"].count("M") == sum(not layer.lowered for layer in lowered.layers)
    across = [float(x) for x in re.findall(r"[ML]([\d.]+) ", paths["line"])]
    assert len(across) == len(lowered.layers)
    assert across == sorted(across)
    text = page.text("layers")
    worst = min(lowered.layers, key=lambda layer: layer.sqnr_db)
    assert f"1 {worst.node} MatMul, lowered {worst.sqnr_db:.1f} dB" in text
    assert not [layer.node for layer in lowered.layers if layer.node not in text]


def test_errorless_layers_called_exact(facts: dict[str, ReportFacts]) -> None:
    """Layers without any error are called exact."""
    lowered = facts["fp16"].lowered
    assert lowered is not None
    exact = tuple(layer.model_copy(update={"sqnr_db": float("inf")}) for layer in lowered.layers)
    report_facts = facts["fp16"].model_copy(update={"lowered": lowered.model_copy(update={"layers": exact})})
    page = Page(render(report_facts))
    assert page.text("layers").count("exact") == 5 + len(exact)
    assert "inf" not in re.sub(r"[a-z]*info[a-z]*", "", page.text("layers"))


def test_kept_nodes_listed_by_reason(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    """Every kept node is listed under its reason."""
    text, lowered = pages["int8"].text("kept"), facts["int8"].lowered
    assert lowered is not None
    assert lowered.recipe is not None
    assert "INT8, dynamic, per channel. Lowered: 31 MatMul, 3 Gather." in text
    assert "12 both inputs are activations: no weights to store MatMul" in text
    assert not [node.node for node in lowered.recipe.kept if f"{node.node} {node.op_type}" not in text]


def test_trials_drawn_and_chosen_marked(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    """All trials are drawn and tabled, and the chosen one is marked."""
    page, trials = pages["int8"], facts["int8"].trials
    dots = [attributes["class"] for attributes in page.all("circle") if attributes.get("class", "").startswith("dot ")]
    assert len(dots) == 2 * len(trials)  # against the nodes and against the speed
    assert dots.count("dot chosen") == 2
    assert dots.count("dot refused") == 2 * sum(trial.problem is not None for trial in trials)
    text = page.text("frontier")
    assert "11 dynamic, per channel, three FFN-down kept chosen INT8, 34 of 50 lowered 0.9953 0.9864 2.31×" in text
    for number, trial in enumerate(trials, 1):
        assert f"{number} {trial.name}" in text
        assert trial.problem is None or f"{number} {trial.name} {trial.problem}" in text


def test_better_trials_higher_and_right(pages: dict[str, Page]) -> None:
    """Better is higher, and more is farther to the right."""
    dots = [attributes for attributes in pages["int8"].all("circle") if attributes.get("class", "").startswith("dot ")][
        :12
    ]
    places = sorted((float(dot["cx"]), float(dot["cy"]), float(dot["r"])) for dot in dots)
    assert (places[0][1], places[0][2]) == (min(y for _, y, _ in places), max(r for _, _, r in places))  # FP32
    assert places[-1][1] == max(y for _, y, _ in places)  # all operators


def test_provenance_names_rebuild_needs(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    """Provenance names all that would be needed to do it again."""
    text, report_facts = pages["int8"].text("provenance"), facts["int8"]
    assert report_facts.source is not None
    assert report_facts.data is not None
    assert report_facts.data.evaluation is not None
    assert report_facts.release_digest is not None
    fragments = [
        *(
            report_facts.release_digest,
            report_facts.source.digest,
            str(report_facts.source.revision),
            report_facts.data.digest,
        ),
        *(file.sha256 for file in report_facts.files),
        *("hf:sentence-transformers/all-MiniLM-L6-v2", "apache-2.0", "1,024 different samples", "drawn with seed 0"),
        *("128 samples in 16 batches, with labels", "onnxruntime 1.31.1", "Weight type QInt8"),
        *("TensorRT, whose libraries are not installed here", "lower 3 min 04 s", "export from the cache"),
        *("median 6.2 ms, slowest 48 ms", "precision: int8", "a size of 16 is baked into /Reshape_3"),
        ", ".join(map(str, report_facts.data.evaluation.rows)),
    ]
    assert not [fragment for fragment in fragments if fragment not in text]


def test_page_is_renumbered(facts: dict[str, ReportFacts]) -> None:
    """A page shows the number that a store gave its version; one that does not show its own is refused."""
    numbered = facts["int8"].model_copy(update={"version": 3})
    assert renumber(render(numbered), 3, 7) == render(numbered.model_copy(update={"version": 7}))
    with pytest.raises(RepositoryError, match="cannot be renumbered"):
        renumber(render(numbered), 4, 7)


def test_bare_release_has_no_empty_sections(pages: dict[str, Page]) -> None:
    """A release without data or recipe has no empty sections."""
    page = pages["fp32"]
    assert [attributes["id"] for attributes in page.all("section")] == ["shapes", "provenance"]
    assert [attributes["href"] for attributes in page.all("a")] == ["#shapes", "#provenance"]
    text = page.text("verdict")
    assert "answers as the original model does" in text
    assert "Largest error 1.2 × 10⁻⁵ of the magnitude, at max Smallest cosine 0.999999999" in text
    assert "The weights were drawn at random" in text
    assert "Not checked on a running Triton." in text


def _place(page: Page, name: str) -> float:
    (style, *_) = [result["style"] for result in page.classed(name) if "style" in result]
    result = re.match(r"left:([\d.]+)%", style)
    assert result is not None
    return float(result[1])


def _with_evaluation(facts: ReportFacts, **changed: object) -> ReportFacts:
    evaluation = judged(facts).evaluation
    assert evaluation is not None
    validation = judged(facts).model_copy(update={"evaluation": evaluation.model_copy(update=changed)})
    return facts.model_copy(update={"validation": validation})
