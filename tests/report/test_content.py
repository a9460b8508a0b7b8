"""What a report says, of a release and of a compile that was refused."""

from __future__ import annotations

import re

from plansmith.report import ReportFacts, render

from ..support.report.page import Page
from ..support.report.parts import judged


def test_the_verdict_comes_first_in_plain_words(pages: dict[str, Page]) -> None:
    said = pages["int8"].words("verdict")
    assert said.startswith("all-MiniLM-L6-v2 version 3 local-cpu 2026-11-20 13:05 UTC Passed")
    assert "in INT8 with ONNX Runtime answers as the FP32 model does" in said
    assert "Nearest to a limit largest error 69 %, at most 80 % last_hidden_state at max, 32 × 256 × 384" in said
    assert "86 % of what is allowed" in said


def test_the_figures_that_people_ask_for_stand_beside_the_verdict(pages: dict[str, Page]) -> None:
    said = pages["int8"].words("verdict")
    assert "Lowered 34 of 50 nodes" in said
    assert "Size 22.6 MiB 26.1 % of FP32's 86.7 MiB" in said
    assert "Speed beside FP32 2.31× 2.22× to 2.38× at 95 %" in said
    assert "Mean cosine 0.9941 of 256 held-out samples, smallest 0.9843" in said
    assert "Change of Spearman's rank correlation −0.0023 0.8671 before, 0.8648 now" in said


def test_a_refused_compile_says_what_was_beyond_which_limit_and_that_nothing_was_published(
    pages: dict[str, Page], facts: dict[str, ReportFacts]
) -> None:
    said = pages["fp16"].words("verdict")
    assert "not published" in said
    assert "in FP16 with ONNX Runtime was refused: 4 figures are beyond what is allowed. Nothing was published." in said
    assert "Farthest beyond a limit smallest cosine 0.9712, at least 0.9999 logits on 72 held-out samples" in said
    assert "288× the allowed distance from 1" in said
    assert not [line for line in judged(facts["fp16"]).failures() if line not in said]


def test_more_breaches_than_fit_are_folded_away_and_none_is_lost(facts: dict[str, ReportFacts]) -> None:
    validation = judged(facts["fp16"])
    broken = tuple(c.model_copy(update={"failures": (f"broken at {c.case}",)}) for c in validation.comparisons)
    told = facts["fp16"].model_copy(update={"validation": validation.model_copy(update={"comparisons": broken})})
    said = Page(render(told)).words("verdict")
    assert "7 figures are beyond" in said
    assert "2 more" in said
    assert not [line for line in judged(told).failures() if line not in said]


def test_a_lowering_that_found_no_recipe_shows_what_it_tried_and_why_none_would_do(
    pages: dict[str, Page], facts: dict[str, ReportFacts]
) -> None:
    page, trials = pages["trials"], facts["trials"].trials
    said = page.words("verdict")
    assert "in INT8 with ONNX Runtime was refused: of 6 recipes that were tried, none is accurate enough." in said
    first, *others = facts["trials"].failures()
    assert first.startswith("dynamic, per channel: mean cosine 0.9897")  # the best one
    assert not [line for line in (first, *others) if line not in said]
    assert [found["id"] for found in page.all("section")] == ["frontier", "provenance"]
    assert not [trial for trial in trials if f"{trial.name} {trial.problem}" not in page.words("frontier")]


def test_every_output_and_shape_has_a_row_with_bars_against_its_limits(
    pages: dict[str, Page], facts: dict[str, ReportFacts]
) -> None:
    said = pages["int8"].words("shapes")
    for found in judged(facts["int8"]).comparisons:
        assert f"{found.case} {' × '.join(map(str, found.shape))}" in said
    assert said.count("outside of the ranges") == 2  # the case that the ranges do not hold, of two outputs
    bars = pages["int8"].classed("bar")
    assert len(bars) == 3 * len(judged(facts["int8"]).comparisons)
    assert "max 32 × 384 69 % 29 % 0.9833" in said


def test_a_bar_is_as_long_as_the_part_of_the_limit_that_is_used(pages: dict[str, Page]) -> None:
    page = pages["fp16"]
    inside = [found for tag, found in page.elements if tag == "i" and found.get("style", "").startswith("width:")]
    widths = [found["style"] for found in inside]
    assert "width:42.0%" in widths  # 0.42 % of at most 1 %
    assert "width:26.0%" in widths  # 1 - 0.999974 of 1 - 0.9999
    over = page.classed("over")
    assert [found["class"] for found in over] == ["nearest over", "bar over"]


def test_answers_that_could_not_be_compared_show_why_instead_of_figures(pages: dict[str, Page]) -> None:
    said = pages["fp16"].words("shapes")
    assert "max 32 × 256 × 30522 could not be compared NaN or Inf in the candidate's answer" in said
    assert "e+308" not in pages["fp16"].source


def test_held_out_agreement_shows_the_columns_that_the_outputs_have(pages: dict[str, Page]) -> None:
    vectors, scores = pages["int8"].words("held-out"), pages["fp16"].words("held-out")
    assert "256 samples of 1,024 sentences of stsb-validation.csv, which no recipe has seen" in vectors
    assert "sentence_embedding 256 0.9953 at least 0.99 0.9864 19.7 dB 96.5 %" in vectors
    assert "Same neighbour" in vectors
    assert "Kullback-Leibler" not in vectors
    assert "logits 72 0.99910 0.9712 27.4 dB 0.0031 nats 97.1 % 99.9 %" in scores
    assert "Same neighbour" not in scores


def test_a_task_metric_is_drawn_with_its_interval_beside_zero_and_the_limit(pages: dict[str, Page]) -> None:
    page = pages["int8"]
    said = page.words("held-out")
    assert "0.8671 of the reference, 0.8648 of the candidate, on the same 256 samples." in said
    assert "change −0.0023 −0.0061 to +0.0016 (95 %, paired) limit −0.0100 no change" in said
    assert "The whole interval is within what is allowed" in said
    places = {name: _place(page, name) for name in ("limit", "interval", "value", "zero")}
    assert places["limit"] < places["interval"] < places["value"] < places["zero"]
    assert "The loss is more than is allowed." in pages["fp16"].words("held-out")


def test_an_interval_beyond_the_limit_is_said_to_prove_nothing(facts: dict[str, ReportFacts]) -> None:
    evaluation = judged(facts["int8"]).evaluation
    assert evaluation is not None
    metrics = tuple(m.model_copy(update={"proven": False}) for m in evaluation.metrics)
    told = _with_evaluation(facts["int8"], metrics=metrics)
    assert "more samples would be needed to tell" in Page(render(told)).words("held-out")


def test_the_worst_samples_are_named_by_their_place(pages: dict[str, Page]) -> None:
    said = pages["int8"].words("held-out")
    assert "881 sentence_embedding 0.9864 173 sentence_embedding 0.9870" in said


def test_every_layer_stands_in_the_chart_in_order_and_the_worst_are_named(
    pages: dict[str, Page], facts: dict[str, ReportFacts]
) -> None:
    page, lowered = pages["int8"], facts["int8"].lowered
    assert lowered is not None
    paths = {found["class"]: found["d"] for found in page.all("path") if "class" in found}
    assert paths["lowered"].count("M") == sum(layer.lowered for layer in lowered.layers)
    assert paths["kept"].count("M") == sum(not layer.lowered for layer in lowered.layers)
    across = [float(x) for x in re.findall(r"[ML]([\d.]+) ", paths["line"])]
    assert len(across) == len(lowered.layers)
    assert across == sorted(across)
    said = page.words("layers")
    worst = min(lowered.layers, key=lambda layer: layer.sqnr_db)
    assert f"1 {worst.node} MatMul, lowered {worst.sqnr_db:.1f} dB" in said
    assert not [layer.node for layer in lowered.layers if layer.node not in said]


def test_layers_without_any_error_are_called_exact(facts: dict[str, ReportFacts]) -> None:
    lowered = facts["fp16"].lowered
    assert lowered is not None
    exact = tuple(layer.model_copy(update={"sqnr_db": float("inf")}) for layer in lowered.layers)
    told = facts["fp16"].model_copy(update={"lowered": lowered.model_copy(update={"layers": exact})})
    page = Page(render(told))
    assert page.words("layers").count("exact") == 5 + len(exact)
    assert "inf" not in re.sub(r"[a-z]*info[a-z]*", "", page.words("layers"))


def test_every_kept_node_is_listed_under_its_reason(pages: dict[str, Page], facts: dict[str, ReportFacts]) -> None:
    said, lowered = pages["int8"].words("kept"), facts["int8"].lowered
    assert lowered is not None
    assert lowered.recipe is not None
    assert "INT8, dynamic, per channel. Lowered: 31 MatMul, 3 Gather." in said
    assert "12 both inputs are activations: no weights to store MatMul" in said
    assert not [node.node for node in lowered.recipe.kept if f"{node.node} {node.op_type}" not in said]


def test_all_trials_are_drawn_and_tabled_and_the_chosen_one_is_marked(
    pages: dict[str, Page], facts: dict[str, ReportFacts]
) -> None:
    page, trials = pages["int8"], facts["int8"].trials
    dots = [found["class"] for found in page.all("circle") if found.get("class", "").startswith("dot ")]
    assert len(dots) == 2 * len(trials)  # against the nodes and against the speed
    assert dots.count("dot chosen") == 2
    assert dots.count("dot refused") == 2 * sum(trial.problem is not None for trial in trials)
    said = page.words("frontier")
    assert "11 dynamic, per channel, three FFN-down kept chosen INT8, 34 of 50 lowered 0.9953 0.9864 2.31×" in said
    for number, trial in enumerate(trials, 1):
        assert f"{number} {trial.name}" in said
        assert trial.problem is None or f"{number} {trial.name} {trial.problem}" in said


def test_better_is_higher_and_more_is_farther_right(pages: dict[str, Page]) -> None:
    dots = [found for found in pages["int8"].all("circle") if found.get("class", "").startswith("dot ")][:12]
    places = sorted((float(dot["cx"]), float(dot["cy"]), float(dot["r"])) for dot in dots)
    assert (places[0][1], places[0][2]) == (min(y for _, y, _ in places), max(r for _, _, r in places))  # FP32
    assert places[-1][1] == max(y for _, y, _ in places)  # all operators


def test_provenance_names_all_that_would_be_needed_to_do_it_again(
    pages: dict[str, Page], facts: dict[str, ReportFacts]
) -> None:
    said, told = pages["int8"].words("provenance"), facts["int8"]
    assert told.source is not None
    assert told.data is not None
    assert told.data.evaluation is not None
    assert told.release_digest is not None
    wanted = [
        *(told.release_digest, told.source.digest, str(told.source.revision), told.data.digest),
        *(file.sha256 for file in told.files),
        *("hf:sentence-transformers/all-MiniLM-L6-v2", "apache-2.0", "1,024 different samples", "drawn with seed 0"),
        *("128 samples in 16 batches, with labels", "onnxruntime 1.31.1", "Weight type QInt8"),
        *("TensorRT, whose libraries are not installed here", "lower 3 min 04 s", "export from the cache"),
        *("median 6.2 ms, slowest 48 ms", "precision: int8", "a size of 16 is baked into /Reshape_3"),
        ", ".join(map(str, told.data.evaluation.rows)),
    ]
    assert not [words for words in wanted if words not in said]


def test_a_release_without_data_or_recipe_has_no_empty_sections(pages: dict[str, Page]) -> None:
    page = pages["fp32"]
    assert [found["id"] for found in page.all("section")] == ["shapes", "provenance"]
    assert [found["href"] for found in page.all("a")] == ["#shapes", "#provenance"]
    said = page.words("verdict")
    assert "answers as the original model does" in said
    assert "Largest error 1.2 × 10⁻⁵ of the magnitude, at max Smallest cosine 0.999999999" in said
    assert "The weights were drawn at random" in said
    assert "Not checked on a running Triton." in said


def _place(page: Page, name: str) -> float:
    (style, *_) = [found["style"] for found in page.classed(name) if "style" in found]
    found = re.match(r"left:([\d.]+)%", style)
    assert found is not None
    return float(found[1])


def _with_evaluation(facts: ReportFacts, **changed: object) -> ReportFacts:
    evaluation = judged(facts).evaluation
    assert evaluation is not None
    validation = judged(facts).model_copy(update={"evaluation": evaluation.model_copy(update=changed)})
    return facts.model_copy(update={"validation": validation})
