"""Verdict of the accuracy gate: what a report must show, and the held-out data that it may read.

The driver knows this much of the gate; comparing numbers is the worker's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from plansmith.errors import GateError, UsageError
from plansmith.records.model import DataSet, Precision, Recipe, Record, SampleSet, Tensor
from plansmith.records.validation import ValidationReport
from plansmith.system.digest import digest_of

CONSTANT = "does not vary between different samples"


class HeldOut(Record):
    """Held-out data: the evaluation samples of the accuracy gate.

    `folder`: where the paths of `data` start from; `max_metric_drop`: how much the task's measure may lose, where that
    is not what the precision suggests.
    """

    data: DataSet
    folder: Path
    max_metric_drop: float | None = None

    def require_unseen(self, recipe: Recipe | None) -> None:
        """Require that no sample used by a lowering is among the evaluation samples.

        Args:
            recipe: how the candidate was lowered; None: it was not.

        Raises:
            GateError: there are such samples.
        """
        evaluation = self.data.evaluation
        if evaluation is None or recipe is None:
            return
        common = set(self.data.calibration.digests) & set(evaluation.digests)
        if recipe.calibration and recipe.calibration == samples_digest(evaluation):
            common = set(evaluation.digests)
        if common:
            overlap = sum(digest in common for digest in evaluation.digests)
            raise GateError(
                f"{overlap} of the {evaluation.count} held-out samples were looked at by the lowering already:"
                " what they show proves nothing",
                remedy="nothing was published; take out of `data` what stands in it twice, or give it more samples,"
                " and compile again with --force",
            )


def samples_digest(samples: SampleSet) -> str:
    """Return a digest of samples in order, as recorded in `Recipe.calibration` for those that a lowering used."""
    return digest_of(list(samples.digests))


def require_passed(report: ValidationReport) -> None:
    """Require that a report passed.

    Raises:
        GateError: names the outputs, shapes, samples and measures that failed.
    """
    if report.verdict == "passed":
        return
    failures = report.failures()
    problem = "differs from the model by more than the tolerances allow"
    remedy = "read the report, or set `tolerances` for the output in the spec"
    if report.precision not in (None, Precision.FP32):
        remedy = (
            f"use `precision: auto` or one above {report.precision}, keep nodes high with `lowering: {{keep: [...]}}`,"
            " or allow more with `tolerances` for the output"
        )
    if report.evaluation and any(metric.failures for metric in report.evaluation.metrics):
        remedy += " and `max_metric_drop` in `data`"
    if failures and all(CONSTANT in failure for failure in failures):
        problem = "answers the same to all samples, so that the comparison proves nothing"
        remedy = "say with `inputs` in a spec (low, high) which values differ for the model, or leave the output out"
    shown = "\n".join(f"  {line}" for line in failures[:5])
    more = f"\n  … and {len(failures) - 5} more" if len(failures) > 5 else ""
    raise GateError(
        f"the engine {problem}:\n{shown}{more}",
        remedy=f"nothing was published; {remedy}",
    )


def require_known_outputs(tolerances: Collection[str], outputs: Iterable[Tensor]) -> None:
    """Require that tolerances are set for outputs that the model has.

    Raises:
        UsageError: the model has no such output.
    """
    names = [tensor.name for tensor in outputs]
    unknown = sorted(set(tolerances) - {*names})
    if unknown:
        raise UsageError(
            f"tolerances: the model has no output {', '.join(unknown)}", remedy=f"its outputs are {', '.join(names)}"
        )
