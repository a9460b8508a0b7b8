"""What a lowering made and what it costs, in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.units import bytes_in_words

if TYPE_CHECKING:
    from plansmith.reports import Evaluation, ValidationReport
    from plansmith.types import LoweredModel


def precision_lines(lowered: LoweredModel | None, validation: ValidationReport) -> Iterator[str]:
    """The recipe, its size and speed, and what the held-out samples showed; nothing for plain FP32."""
    if lowered is not None and lowered.recipe is not None:
        yield from _recipe_lines(lowered)
    if validation.evaluation is not None:
        yield from _evaluation_lines(validation.evaluation)
    yield from evidence_lines(validation)
    for words in validation.not_validated:
        yield f"not validated here: {words}"


def evidence_lines(validation: ValidationReport) -> Iterator[str]:
    """That a lowered engine was judged on nothing that somebody gave, where it was."""
    precision, evidence = validation.precision, validation.evidence or "shipped"
    if precision is not None and precision != "fp32" and evidence != "given":
        samples = {"shipped": "plansmith's own samples", "drawn": "values drawn at random"}[evidence]
        yield f"{precision} was judged on {samples} alone: give `data` in a spec, with samples for evaluation"


def _recipe_lines(lowered: LoweredModel) -> Iterator[str]:
    assert lowered.recipe is not None
    recipe = lowered.recipe
    operators = ", ".join(f"{count} {operator}" for operator, count in recipe.lowered.items())
    kept = f"; {len(recipe.kept)} node(s) kept in higher precision" if recipe.kept else ""
    yield f"{recipe.method}: {operators} lowered{kept}" if operators else recipe.method
    chosen = next((trial for trial in lowered.trials if trial.chosen), None)
    if chosen is None:
        return
    share = f", {chosen.file_bytes / lowered.fp32_bytes:.2f} of FP32" if lowered.fp32_bytes else ""
    yield f"{bytes_in_words(chosen.file_bytes)}{share}"
    if chosen.speed is not None:
        speed = chosen.speed
        yield (
            f"{speed.ratio:.2f} times as fast as FP32 (95 % interval {speed.low:.2f} to {speed.high:.2f}:"
            f" {speed.verdict}), {speed.setting}"
        )


def _evaluation_lines(evaluation: Evaluation) -> Iterator[str]:
    yield f"{evaluation.samples} held-out samples of {evaluation.data}:"
    for a in evaluation.agreements:
        neighbour = "" if a.same_neighbour is None else f", same nearest neighbour {a.same_neighbour:.1%}"
        first = "" if a.same_first is None else f", same first class {a.same_first:.1%}"
        yield f"  {a.output}: mean cosine {a.mean_cosine:.5f}, worst {a.min_cosine:.5f}{first}{neighbour}"
    for m in evaluation.metrics:
        proof = "" if m.proven else "; too few samples to prove it"
        yield (
            f"  {m.name}: {m.candidate:.4f}, FP32 {m.reference:.4f}; change {m.change.value:+.4f}"
            f" (95 % interval {m.change.low:+.4f} to {m.change.high:+.4f}; allowed -{m.max_drop:g}{proof})"
        )
