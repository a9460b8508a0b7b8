"""Accuracy and cost of a lowered graph, in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plansmith.reports import ValidationReport
    from plansmith.types import LoweredModel


def accuracy_lines(lowered: LoweredModel | None, validation: ValidationReport) -> Iterator[str]:
    """The recipe with its size and speed, what held-out samples showed, the errors at all shapes, what is in doubt."""
    from plansmith.precision_words import cosine_words, doubts, evaluation_lines, held_out_words, recipe_lines

    if lowered is not None:
        yield from recipe_lines(lowered)
    if validation.evaluation is not None:
        yield f"{held_out_words(validation.evaluation)}:"
        for line, good in evaluation_lines(validation.evaluation):
            yield f"  {'' if good else '!! '}{line}"
    yield f"compared with {validation.reference}, on {validation.data}:"
    for output, worst in validation.worst().items():
        allowed = validation.tolerances[output]
        yield (
            f"  {output}: largest error {_part(worst['max_relative'])} of the output's magnitude"
            f" (allowed {_part(allowed.max_relative)}), smallest cosine {cosine_words(worst['min_cosine'])}"
        )
    yield from doubts(validation)


def _part(share: float) -> str:
    """A part of a magnitude: 1.9e-05, 0.03, 10."""
    return f"{share:.1e}" if 0 < share < 0.001 else f"{share:.2g}"
