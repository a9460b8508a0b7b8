"""Samples that nothing has looked at before the gate does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.data.reference import read_case
from plansmith.errors import GateError, UsageError
from plansmith.records.model import Case, DataSet, Recipe, Record, SampleSet
from plansmith.records.validation import Evaluation
from plansmith.system.digest import digest_of
from plansmith.validation.metrics.evaluator import Evaluator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


class HeldOut(Record):
    """The data whose evaluation samples the gate reads.

    `folder`: where the paths of `data` start from; `max_metric_drop`: how much the task's measure may lose, where that
    is not what the precision suggests.
    """

    data: DataSet
    folder: Path
    max_metric_drop: float | None = None

    def require_unseen(self, recipe: Recipe | None) -> None:
        """See that no sample that a lowering looked at is among those that judge it.

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
            seen = sum(digest in common for digest in evaluation.digests)
            raise GateError(
                f"{seen} of the {evaluation.count} held-out samples were looked at by the lowering already:"
                " what they show proves nothing",
                remedy="nothing was published; take out of `data` what stands in it twice, or give it more samples,"
                " and compile again with --force",
            )

    def evaluate(
        self,
        judge: Evaluator,
        ask: Callable[[Case, Arrays], Arrays],
        progress: Callable[[str], None],
        takes: Callable[[Arrays], bool],
    ) -> Evaluation | None:
        """Judge the samples, batch by batch: one is in memory, and each file is opened once.

        Args:
            judge: takes in the answers.
            ask: gives the candidate's answer to a case's inputs.
            progress: told how many samples are done.
            takes: whether the candidate can be asked about such inputs; None is judged where it takes none.

        Raises:
            UsageError: the task's measure cannot be taken of these samples.
        """
        evaluation = self.data.evaluation
        if evaluation is None:
            return None
        done, left_out = 0, 0
        for case in evaluation.cases:
            progress(f"judging held-out samples ({done} of {evaluation.count})")
            stored = read_case(case, self.folder)
            batch = len(next(iter(stored.feed.values())))
            rows = evaluation.rows[done : done + batch]
            if takes(stored.feed):
                judge.add(stored, ask(case, stored.feed), rows)
            else:
                left_out += len(rows)
            done += len(rows)
        if left_out and left_out == done:
            return None
        found = judge.evaluation(self.data.words)
        if self.data.metric != "none" and not found.metrics:
            raise UsageError(
                f"data.metric: {self.data.metric} cannot be measured on these {done - left_out} held-out samples: too"
                " few of them, or none of them has a label",
                remedy="give `data` more samples or labels, or set `metric: none` in it",
            )
        return found.model_copy(update={"left_out": left_out})


def samples_digest(samples: SampleSet) -> str:
    """Digest of samples in their order: what `Recipe.calibration` holds of those that a lowering looked at."""
    return digest_of(list(samples.digests))
