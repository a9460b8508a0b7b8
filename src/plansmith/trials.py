"""What the search for a recipe goes by: a candidate at every shape and on the calibration samples, never on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.precision.search import Verdict
from plansmith.errors import first_line
from plansmith.judging import Judge
from plansmith.reference import StoredCase, StoredCases
from plansmith.types import Component, DataSet, Tolerance
from plansmith.validation import compare_case

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TrialJudge:
    """Runs a candidate in ONNX Runtime and says whether it is accurate enough to go on with.

    Args:
        component: the graph's interface.
        mask_input: the input that marks padding.
        shapes: the reference's own cases.
        calibration: samples that the lowering may look at.
        data: what they are.
        tolerances: per output.
        max_metric_drop: how much lower the task's metric may be.
    """

    component: Component
    mask_input: str | None
    shapes: StoredCases
    calibration: StoredCases
    data: DataSet
    tolerances: Mapping[str, Tolerance]
    max_metric_drop: float

    def __call__(self, path: Path) -> Verdict:
        """Judge the graph in a file; one that does not run is judged worst."""
        try:
            return self._judge(path)
        except Exception as error:  # noqa: BLE001 - whatever ONNX Runtime says is why the candidate is out
            return Verdict(score=-1.0, worst=-1.0, problem=f"ONNX Runtime cannot run it: {first_line(error)}")

    def _judge(self, path: Path) -> Verdict:
        session = open_session(path)
        names = [tensor.name for tensor in self.component.outputs]

        def ask(stored: StoredCase) -> Mapping[str, NDArray[np.generic]]:
            return dict(zip(names, session.run(names, dict(stored.feed)), strict=True))

        judge = Judge(
            self.component.inputs,
            self.component.outputs,
            self.mask_input,
            tolerances=self.tolerances,
            metric=self.data.metric,
            pooling=self.data.pooling,
            max_metric_drop=self.max_metric_drop,
        )
        rows = iter(self.data.calibration.rows)
        for stored in self.calibration:
            judge.add(stored, ask(stored), [row for row, _ in zip(rows, stored.rows, strict=False)])
        found = judge.evaluation("calibration samples")
        problems = found.failures()
        for stored in self.shapes if not problems else ():
            compared = compare_case(ask(stored), stored, self.component, self.tolerances, self.mask_input)
            problems += [f"output {c.output!r} at {c.case}: {failure}" for c in compared for failure in c.failures]
        return Verdict(
            score=min(agreement.mean_cosine for agreement in found.agreements),
            worst=min(agreement.min_cosine for agreement in found.agreements),
            problem=problems[0] if problems else None,
        )
