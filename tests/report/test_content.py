"""What a report says, of a release and of a compile that was refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from plansmith.manifest import Manifest
from plansmith.report import ReportFacts, as_json, facts_of, render, write

from . import examples
from .page import Page

EVERY = ("int8", "fp16", "fp32")
HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;{{ 7*7 }}"


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
    assert not [line for line in facts["fp16"].validation.failures() if line not in said]


def test_more_breaches_than_fit_are_folded_away_and_none_is_lost(facts: dict[str, ReportFacts]) -> None:
    validation = facts["fp16"].validation
    broken = tuple(c.model_copy(update={"failures": (f"broken at {c.case}",)}) for c in validation.comparisons)
    told = facts["fp16"].model_copy(update={"validation": validation.model_copy(update={"comparisons": broken})})
    said = Page(render(told)).words("verdict")
    assert "7 figures are beyond" in said
    assert "2 more" in said
    assert not [line for line in told.validation.failures() if line not in said]


def test_every_output_and_shape_has_a_row_with_bars_against_its_limits(
    pages: dict[str, Page], facts: dict[str, ReportFacts]
) -> None:
    said = pages["int8"].words("shapes")
    for found in facts["int8"].validation.comparisons:
        assert f"{found.case} {' × '.join(map(str, found.shape))}" in said
    assert said.count("outside of the ranges") == 2  # the case that the ranges do not hold, of two outputs
    bars = pages["int8"].classed("bar")
    assert len(bars) == 3 * len(facts["int8"].validation.comparisons)
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
    assert "logits 72 0.99910 0.9712 27.4 dB 0.0031 nats 97.1 %" in scores
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
    evaluation = facts["int8"].validation.evaluation
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


@pytest.mark.parametrize("name", EVERY)
def test_a_link_of_the_contents_leads_somewhere(name: str, pages: dict[str, Page]) -> None:
    targets = {found["id"] for _, found in pages[name].elements if "id" in found}
    assert {found["href"].removeprefix("#") for found in pages[name].all("a")} <= targets


@pytest.mark.parametrize("name", EVERY)
def test_a_page_is_well_formed_and_refers_to_nothing_outside(name: str, pages: dict[str, Page]) -> None:
    page = pages[name]
    assert page.unbalanced == []
    assert {tag for tag, _ in page.elements} & {"script", "iframe", "img", "object", "embed", "form", "base"} == set()
    links = [found[key] for _, found in page.elements for key in ("href", "src", "action", "data") if key in found]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not [found for _, found in page.elements if any(key.startswith("on") for key in found)]
    assert not re.search(r"url\(|@import|https?:", page.source)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_that_is_named_by_others_becomes_markup(name: str, facts: dict[str, ReportFacts]) -> None:
    plain = Page(render(facts[name]))
    hostile = Page(render(_poisoned(facts[name])))
    assert hostile.unbalanced == []
    assert [tag for tag, _ in hostile.elements if tag != "wbr"] == [tag for tag, _ in plain.elements if tag != "wbr"]
    assert HOSTILE in hostile.words("verdict")
    assert "<script" not in hostile.source
    assert "49" not in hostile.words("verdict")[:200]


@pytest.mark.parametrize("name", EVERY)
def test_the_json_document_holds_the_verdict_and_all_facts(name: str, facts: dict[str, ReportFacts]) -> None:
    told = facts[name]
    document = json.loads(json.dumps(as_json(told), allow_nan=False))
    assert (document["verdict"], document["failures"]) == (told.validation.verdict, told.validation.failures())
    assert list(document)[:3] == ["verdict", "failures", "nearest_to_a_limit"]
    assert ReportFacts.model_validate({k: v for k, v in document.items() if k in ReportFacts.model_fields}) == told


def test_a_manifest_of_before_data_and_recipes_has_a_report() -> None:
    fields = examples.int8_release().model_dump(mode="json")
    old = Manifest.model_validate({k: v for k, v in fields.items() if k not in {"data", "lowered"}})
    said = Page(render(facts_of(old))).words()
    assert "all-MiniLM-L6-v2 version 3" in said
    assert "Recipes tried" not in said


def test_a_report_is_written_whole_over_an_older_one(facts: dict[str, ReportFacts], tmp_path: Path) -> None:
    path = tmp_path / "logs" / "tiny.html"
    for name in ("fp16", "fp32"):
        write(facts[name], path)
        assert path.read_text(encoding="utf-8") == render(facts[name])
    assert [found.name for found in path.parent.iterdir()] == ["tiny.html"]


def _place(page: Page, name: str) -> float:
    (style, *_) = [found["style"] for found in page.classed(name) if "style" in found]
    found = re.match(r"left:([\d.]+)%", style)
    assert found is not None
    return float(found[1])


def _with_evaluation(facts: ReportFacts, **changed: object) -> ReportFacts:
    evaluation = facts.validation.evaluation
    assert evaluation is not None
    validation = facts.validation.model_copy(update={"evaluation": evaluation.model_copy(update=changed)})
    return facts.model_copy(update={"validation": validation})


_KEYWORDS = {
    "verdict",
    "scheme",
    "kind",
    "precision",
    "engine",
    "metric",
    "pooling",
    "backend",
    "device",
    "created",
    "exporter",
}


def _poisoned(facts: ReportFacts) -> ReportFacts:
    """The same facts with hostile words in every text that is free, and in every name that keys are made of."""

    def poison(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {
                (
                    f"{k} {HOSTILE}" if key in {"settings", "options", "toolchain", "axes", "spec", "tolerances"} else k
                ): poison(v, k)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [poison(item, key) for item in value]
        if isinstance(value, str) and key == "output":
            return f"{value} {HOSTILE}"
        return f"{value} {HOSTILE}" if isinstance(value, str) and value and key not in _KEYWORDS else value

    fields = poison(facts.model_dump(mode="json"))
    assert isinstance(fields, dict)
    fields["spec"] = facts.spec | {"note": HOSTILE}
    return ReportFacts.model_validate(fields)
