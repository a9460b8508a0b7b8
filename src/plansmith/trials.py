"""What the search for a recipe goes by: a candidate at every shape and on the calibration samples, never on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plansmith.comparison import Padding
from plansmith.compilers.precision.search import Verdict
from plansmith.errors import GateError, first_line
from plansmith.judging import Judge
from plansmith.reference import StoredCases, read_case
from plansmith.reports import Evaluation, Tolerance
from plansmith.roles import Task
from plansmith.types import Component, DataSet, Precision
from plansmith.validation import asking, compare_case


@dataclass(frozen=True)
class TrialJudge:
    """Runs a candidate in ONNX Runtime and says whether it is accurate enough to go on with.

    Args:
        component: the exported graph's interface.
        mask_input: the input that marks padding.
        shapes: the reference's own cases.
        calibration: samples that the lowering may look at.
        data: what they are.
        precision: of the candidates.
        tolerances: per output.
        max_metric_drop: how much lower the task's metric may be; None: as the precision has it.
    """

    component: Component
    mask_input: str | None
    shapes: StoredCases
    calibration: StoredCases
    data: DataSet
    precision: Precision
    tolerances: Mapping[str, Tolerance]
    max_metric_drop: float | None

    def __call__(self, path: Path) -> Verdict:
        """Judge the graph in a file; one that does not run is judged worst."""
        try:
            return self._judge(path)
        except GateError as error:
            return Verdict(score=-1.0, worst=-1.0, problem=first_line(error))

    def _judge(self, path: Path) -> Verdict:
        outputs, padding = self.component.outputs, Padding(self.component.inputs, self.mask_input)
        with asking(path, outputs, outputs, self.precision) as ask:
            judge = Judge(
                self.component,
                self.mask_input,
                task=Task(metric=self.data.metric, pooling=self.data.pooling),
                precision=self.precision,
                tolerances=self.tolerances,
                max_metric_drop=self.max_metric_drop,
            )
            rows = list(self.data.calibration.rows)
            for case in self.calibration.cases:
                stored = read_case(case, self.calibration.folder)
                batch = len(next(iter(stored.feed.values())))
                judge.add(stored, ask(case, stored.feed), rows[:batch])
                del rows[:batch]
            found = judge.evaluation("calibration samples")
            problems = found.failures("calibration samples")
            for case in self.shapes.cases if not problems else ():
                stored = read_case(case, self.shapes.folder)
                for c in compare_case(ask(case, stored.feed), stored, outputs, self.tolerances, padding):
                    problems += [f"output {c.output!r} at {c.case}: {failure}" for failure in c.failures]
        return _verdict(found, problems)


def _verdict(found: Evaluation, problems: list[str]) -> Verdict:
    return Verdict(
        score=min(agreement.mean_cosine for agreement in found.agreements),
        worst=min(agreement.min_cosine for agreement in found.agreements),
        problem=problems[0] if problems else None,
    )
