"""The gate's own rules, on graphs small enough to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import parser

from plansmith.compilers import onnx_files
from plansmith.data import reference
from plansmith.data.reference import read_case, store_case
from plansmith.errors import GateError, UsageError
from plansmith.records.model import Case, OnnxModel, Precision, ReferenceSet
from plansmith.records.validation import Tolerance, ToleranceChange, ValidationReport
from plansmith.validation.comparison import TOLERANCES
from plansmith.validation.gate import Candidate, validate
from plansmith.validation.verdict import require_passed

from ..support.validation.graphs import engine_of, silent

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Feed = dict[str, NDArray[Any]]

RIGHT = "y = Mul (number, two)"
BATCH = 6


def make_feed(batch: int) -> Feed:
    """Numbers in rows of four, the later half of every second row being padding."""
    mask = np.ones((batch, 4), np.int64)
    mask[1::2, 2:] = 0
    return {"x": np.arange(1, batch * 4 + 1).reshape(batch, 4), "mask": mask}


class Gate:
    """A gate whose reference is twice `x`, at batches of 6 and 1, and candidates given as ONNX text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer: NDArray[np.float32] | None = None
        self.batches = {"max": BATCH, "single": 1}

    def judge(self, body: str, **overrides: ToleranceChange) -> ValidationReport:
        """Write a graph with this body and send it through the gate."""
        text = f"""<ir_version: 8, opset_import: ["": 18]>
            candidate (int64[batch, 4] x, int64[batch, 4] mask) => (float[batch, 4] y) {{
                number = Cast <to = 1> (x)
                two = Constant <value = float {{2.0}}> ()
                {body}
            }}"""
        path = self.folder / "candidate.onnx"
        onnx.save(parser.parse_model(text), path)
        onnx.checker.check_model(path)
        component = onnx_files.describe(path)
        cases = []
        for name, batch in self.batches.items():
            feed = make_feed(batch)
            answer = feed["x"].astype(np.float32) * 2 if self.answer is None else self.answer[:batch]
            cases.append(store_case(name, {"batch": batch}, feed, {"y": answer}, self.folder / "reference"))
        exported = OnnxModel(
            components={"model": component},
            axes={},
            mask_input="mask",
            exporter="torchscript",
            attempts=(),
            precision=Precision.FP32,
            reference=ReferenceSet(runtime="numpy", data="numbers", cases=tuple(cases)),
        )
        return validate(
            Candidate(engine_of(component), self.folder), exported, self.folder, overrides=overrides, progress=silent
        )


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_the_right_answer_passes(gate: Gate) -> None:
    report = gate.judge(RIGHT)
    require_passed(report)
    assert [(c.case, c.shape, c.elements) for c in report.comparisons] == [("max", (6, 4), 18), ("single", (1, 4), 4)]
    assert report.tolerances.keys() == {"y"}


def test_wrong_answer_refused_with_place(gate: Gate) -> None:
    """A wrong answer is refused with output, case, shape and metric."""
    with pytest.raises(GateError, match=r"output 'y' at max \(6x4\): maximum error .* is 0\.\d+, allowed \S+"):
        require_passed(gate.judge("y = Add (number, two)"))


def test_unvarying_output_refused(gate: Gate) -> None:
    """An output that never varies is refused though it agrees."""
    gate.answer = np.full((BATCH, 4), 7, np.float32)
    report = gate.judge(
        """zero = Constant <value = float {0.0}> ()
        seven = Constant <value = float {7.0}> ()
        nothing = Mul (number, zero)
        y = Add (nothing, seven)"""
    )
    assert {f.split(": ")[1] for f in report.failures()} == {"does not vary between different samples"}
    with pytest.raises(GateError, match="answers the same to all samples") as raised:
        require_passed(report)
    assert "(low, high)" in raised.value.remedy


def test_nan_reference_passes_nothing(gate: Gate) -> None:
    """A reference that is NaN lets nothing pass."""
    gate.answer = np.full((BATCH, 4), np.nan, np.float32)
    report = gate.judge("negative = Neg (number)\n y = Sqrt (negative)")
    assert "output 'y' at max (6x4): NaN or Inf in the candidate's answer" in report.failures()
    report = gate.judge(RIGHT)
    assert "output 'y' at max (6x4): NaN or Inf in the reference's answer" in report.failures()


def test_padding_not_compared(gate: Gate) -> None:
    """What stands in padding is not compared."""
    report = gate.judge("kept = Cast <to = 9> (mask)\n double = Mul (number, two)\n y = Where (kept, double, two)")
    require_passed(report)


LOSE_A_SAMPLE = """double = Mul (number, two)
    from = Constant <value = int64[1] {0}> ()
    to = Constant <value = int64[1] {1}> ()
    y = Slice (double, from, to)"""
REPEAT_THE_BATCH = "double = Mul (number, two)\n y = Concat <axis = 0> (double, double)"
# Wrong in the last sample alone, whatever the batch.
SPOIL_THE_LAST = """double = Mul (number, two)
    from = Constant <value = int64[1] {-1}> ()
    to = Constant <value = int64[1] {1000}> ()
    start = Constant <value = int64[1] {0}> ()
    good = Slice (double, start, from)
    last = Slice (double, from, to)
    bad = Mul (last, two)
    y = Concat <axis = 0> (good, bad)"""


@pytest.mark.parametrize(("body", "rows"), [(LOSE_A_SAMPLE, 1), (REPEAT_THE_BATCH, 12)])
def test_other_batch_answer_refused(body: str, rows: int, gate: Gate) -> None:
    """An answer of another batch is refused."""
    report = gate.judge(body)
    assert f"output 'y' at max ({rows}x4): shape is {rows}x4, expected 6x4" in report.failures()


class TestOfALargeOutput:
    """The reference keeps samples 0, 2 or 3, and 5 of six."""

    @pytest.fixture(autouse=True)
    def keep_three_samples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reference, "STORED_OUTPUT_BYTES", BATCH * 4 * 4 // 2)

    def test_kept_samples_compared_with_padding(self, gate: Gate) -> None:
        """The kept samples are compared with their own padding."""
        report = gate.judge(RIGHT)
        require_passed(report)
        largest = report.comparisons[0]
        rows = read_case(Case(name="max", axes={}, file="reference/max.npz"), gate.folder).rows.tolist()
        assert (largest.case, largest.shape) == ("max", (3, 4))
        assert largest.elements == make_feed(BATCH)["mask"][rows].sum()
        require_passed(
            gate.judge("kept = Cast <to = 9> (mask)\n double = Mul (number, two)\n y = Where (kept, double, two)")
        )

    @pytest.mark.parametrize("body", [SPOIL_THE_LAST, LOSE_A_SAMPLE, REPEAT_THE_BATCH])
    def test_wrong_kept_sample_refused(self, body: str, gate: Gate) -> None:
        """A wrong sample among the kept ones is refused."""
        assert any(f.startswith("output 'y' at max") for f in gate.judge(body).failures())


def test_output_tolerance_replaces_default(gate: Gate) -> None:
    """A tolerance for one output replaces the default."""
    loose = Tolerance(max_relative=10, quantile_relative=10, min_cosine=0.5)
    report = gate.judge("y = Add (number, two)", y=ToleranceChange(**loose.model_dump()))
    require_passed(report)
    assert report.tolerances == {"y": loose}


def test_omitted_tolerance_is_default(gate: Gate) -> None:
    """What a tolerance leaves out is the default."""
    report = gate.judge(RIGHT, y=ToleranceChange(max_relative=0.5))
    assert report.tolerances == {"y": TOLERANCES[Precision.FP32].model_copy(update={"max_relative": 0.5})}


@pytest.mark.slow
def test_tolerance_for_missing_output_refused(gate: Gate) -> None:
    """A tolerance for an output that does not exist is refused."""
    with pytest.raises(UsageError, match="no output z"):
        gate.judge(RIGHT, z=ToleranceChange(max_relative=1))


def test_long_failure_list_cut_and_counted(gate: Gate) -> None:
    """A long list of failures is cut and counted."""
    gate.batches = {f"case{n}": n for n in range(1, 6)}
    with pytest.raises(GateError, match=r"and \d+ more"):
        require_passed(gate.judge("y = Add (number, two)"))
