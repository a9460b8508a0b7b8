"""Held-out samples decide about a lowered engine, once, and only where nothing has looked at them before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto

from plansmith.cli.compile.compile import validate_command
from plansmith.compilers import onnx_files
from plansmith.errors import GateError, UsageError
from plansmith.records.model import DataSet, EngineKind, OnnxModel, Precision, Recipe, ReferenceSet
from plansmith.records.validation import ToleranceChange, ValidationReport
from plansmith.steps.release import revalidate
from plansmith.steps.worker import __main__ as worker
from plansmith.steps.worker.tasks import ValidateRequest
from plansmith.triton.repository import release
from plansmith.validation.gate import Candidate, validate
from plansmith.validation.verdict import HeldOut, require_passed, samples_digest

from ...support.validation.graphs import engine_of, silent
from ...support.validation.sentences import BATCH, LARGEST, Encoder, Sentences

GOOD, CLIPPED = LARGEST / 127, 0.3 / 127
BATCHES = 6


class Gate:
    """The gate of the small encoder, with 48 held-out sentences."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sentences = Sentences(folder)
        self.onnx = OnnxModel(
            components={"model": onnx_files.describe(folder / "fp32.onnx")},
            axes={},
            mask_input="attention_mask",
            exporter="torchscript",
            attempts=(),
            precision=Precision.FP32,
            reference=ReferenceSet(
                runtime="ONNX Runtime", data="words", cases=(sentences.store("reference", "traced", 2, seed=99),)
            ),
        )
        self.data = DataSet(
            words="sentences of random words",
            digest="",
            revision=None,
            available=8 * BATCH,
            seed=0,
            real=True,
            guessed=False,
            metric="neighbours",
            pooling="mean",
            calibration=sentences.samples("calibration", 2),
            evaluation=sentences.samples("evaluation", BATCHES, first=2 * BATCH),
        )
        self.recipe: Recipe | None = Recipe(
            precision=Precision.INT8,
            method="INT8 of the tests",
            engine=EngineKind.ONNXRUNTIME,
            lowered={"MatMul": 2},
            kept=(),
            settings={},
            calibration=samples_digest(self.data.calibration),
            calibration_samples=2 * BATCH,
            not_validated=(),
        )
        self.max_metric_drop: float | None = None
        self.tolerances: dict[str, ToleranceChange] = {}

    def candidate(
        self, encoder: Encoder, precision: Precision = Precision.INT8, *, runnable: Path | None = None
    ) -> Candidate:
        component = onnx_files.describe(encoder.save(self.folder / "candidate.onnx"))
        engine = engine_of(component).model_copy(update={"precision": precision})
        return Candidate(engine, self.folder, recipe=self.recipe, runnable=runnable)

    def judge(self, encoder: Encoder, precision: Precision = Precision.INT8, **options: Any) -> ValidationReport:
        return validate(
            self.candidate(encoder, precision, **options),
            self.onnx,
            self.folder,
            overrides=self.tolerances,
            progress=silent,
            held_out=HeldOut(data=self.data, folder=self.folder, max_metric_drop=self.max_metric_drop),
        )

    def change(self, **fields: Any) -> None:
        self.data = self.data.model_copy(update=fields)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_good_int8_engine_passes(gate: Gate) -> None:
    """A good INT8 engine passes with everything told."""
    report = gate.judge(Encoder(scale=GOOD))
    require_passed(report)
    assert (report.precision, report.evidence) == (Precision.INT8, "given")
    assert report.evaluation is not None
    assert (report.evaluation.data, report.evaluation.samples) == ("sentences of random words", 48)
    (agreement,), (metric,) = report.evaluation.agreements, report.evaluation.metrics
    assert 0.999 < agreement.mean_cosine < 1 - 1e-7, "the lowering is felt"
    assert (metric.name, metric.samples, metric.max_drop) == ("same nearest neighbour", 48, 0.2)
    worst = {w.row for w in report.evaluation.worst}
    assert worst <= set(range(16, 64))
    assert max(worst) >= 16 + BATCH, "each batch has its own places in the data"
    assert ValidationReport.model_validate_json(report.model_dump_json()) == report


def test_clipped_int8_engine_refused(gate: Gate) -> None:
    """An INT8 engine of clipped calibration is refused with samples, measure and interval."""
    report = gate.judge(Encoder(scale=CLIPPED))
    assert report.verdict == "failed"
    with pytest.raises(GateError) as caught:
        require_passed(report)
    assert report.evaluation is not None
    (agreement,), (metric,) = report.evaluation.agreements, report.evaluation.metrics
    assert (agreement.output, metric.name) == ("hidden", "same nearest neighbour")
    assert agreement.failures
    assert metric.failures
    assert all(failure in str(caught.value) for failure in (*agreement.failures, *metric.failures))
    assert "precision: auto" in caught.value.remedy
    assert "`tolerances` for the output and `max_metric_drop` in `data`" in caught.value.remedy


def test_int8_engine_fails_as_fp32(gate: Gate) -> None:
    """A good INT8 engine is no FP32 engine."""
    assert gate.judge(Encoder(scale=GOOD), Precision.FP32).verdict == "failed"


def test_own_limits_replace_defaults(gate: Gate) -> None:
    """An own limit of the measure, and own tolerances, replace the defaults."""
    everything = {"max_relative": 9.0, "quantile_relative": 9.0, "min_cosine": -1.0, "min_mean_cosine": -1.0}
    gate.tolerances = {"hidden": ToleranceChange(**everything)}
    report = gate.judge(Encoder(scale=CLIPPED))
    assert report.verdict == "failed"
    assert [f.partition(" on ")[0] for f in report.failures()] == ["same nearest neighbour"]
    gate.max_metric_drop = 1.0
    require_passed(gate.judge(Encoder(scale=CLIPPED)))
    gate.tolerances = {"hidden": ToleranceChange(**(everything | {"min_mean_cosine": 0.9999999}))}
    (failure,) = gate.judge(Encoder(scale=GOOD)).failures()
    assert "mean cosine" in failure


def test_held_out_files_opened_once(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every held-out file is opened once, and no other sample is."""
    opened: Counter[str] = Counter()
    load = np.load

    def counted(path: Path, *args: Any, **kwargs: Any) -> Any:
        opened[str(Path(path).relative_to(gate.folder))] += 1
        return load(path, *args, **kwargs)

    monkeypatch.setattr(np, "load", counted)
    gate.judge(Encoder(scale=GOOD))
    assert opened == {"reference/traced.npz": 1} | {f"evaluation/batch-{n}.npz": 1 for n in range(BATCHES)}


class TestSamplesThatWereSeen:
    def test_sample_in_both_sets_refused(self, gate: Gate) -> None:
        """A sample in both sets is refused."""
        assert gate.data.evaluation is not None
        shared = (*gate.data.evaluation.digests[:3], *gate.data.calibration.digests[3:])
        gate.change(calibration=gate.data.calibration.model_copy(update={"digests": shared}))
        with pytest.raises(GateError, match="3 of the 48 held-out samples were looked at by the lowering"):
            gate.judge(Encoder(scale=GOOD))

    def test_held_out_recipe_refused(self, gate: Gate) -> None:
        """A recipe of the held-out samples themselves is refused."""
        assert gate.recipe is not None
        assert gate.data.evaluation is not None
        gate.recipe = gate.recipe.model_copy(update={"calibration": samples_digest(gate.data.evaluation)})
        with pytest.raises(GateError, match="48 of the 48 held-out samples") as caught:
            gate.judge(Encoder(scale=GOOD))
        assert "--force" in caught.value.remedy

    def test_unlowered_engine_has_seen_nothing(self, gate: Gate) -> None:
        """What was not lowered has seen nothing."""
        gate.recipe = None
        gate.change(calibration=gate.data.evaluation)
        require_passed(gate.judge(Encoder(), Precision.FP32))


class TestWhatTheVerdictRestsOn:
    @pytest.mark.parametrize(("guessed", "evidence"), [(False, "shipped"), (True, "drawn")])
    def test_without_data_it_is_told(self, guessed: bool, evidence: str, gate: Gate) -> None:
        reference = gate.onnx.reference.model_copy(update={"guessed": guessed})
        gate.onnx = gate.onnx.model_copy(update={"reference": reference})
        gate.change(evaluation=None, real=False, metric="none")
        report = gate.judge(Encoder(scale=GOOD))
        assert (report.evaluation, report.evidence) == (None, evidence)

    def test_untried_engine_told(self, gate: Gate) -> None:
        """What could not be tried is told."""
        assert gate.recipe is not None
        gate.recipe = gate.recipe.model_copy(update={"not_validated": ("BF16 kernels",)})
        assert gate.judge(Encoder(scale=GOOD)).not_validated == ("BF16 kernels",)

    def test_runnable_twin_is_run(self, gate: Gate) -> None:
        """The runnable twin is what is run."""
        broken = Encoder(offset=5.0)
        assert gate.judge(broken, Precision.BF16).verdict == "failed"
        twin = Encoder().save(gate.folder / "twin.onnx")
        assert gate.judge(broken, Precision.BF16, runnable=twin).verdict == "passed"

    def test_impossible_measure_refused(self, gate: Gate) -> None:
        """A measure that no sample allows is refused."""
        assert gate.data.evaluation is not None
        original = gate.data.evaluation
        case = Sentences(gate.folder).store("evaluation", "two", 2, seed=5)
        gate.change(evaluation=original.model_copy(update={"cases": (case,), "rows": (1, 2), "digests": ("a", "b")}))
        with pytest.raises(UsageError, match="neighbours cannot be measured on these 2 held-out samples"):
            gate.judge(Encoder(scale=GOOD))


class TestLowerOutputs:
    def test_fp16_answers_of_fp16_compared(self, gate: Gate) -> None:
        """FP16 answers of an FP16 engine are compared."""
        require_passed(gate.judge(Encoder(dtype=TensorProto.FLOAT16), Precision.FP16))
        assert gate.judge(Encoder(dtype=TensorProto.FLOAT16, offset=1.0), Precision.FP16).verdict == "failed"

    @pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8, Precision.BF16])
    def test_fp16_answers_of_other_refused(self, precision: Precision, gate: Gate) -> None:
        """FP16 answers of another engine are refused."""
        with pytest.raises(GateError, match="inputs or outputs"):
            gate.judge(Encoder(dtype=TensorProto.FLOAT16), precision)

    def test_fp16_engine_given_fp16(self, gate: Gate) -> None:
        """An engine that takes FP16 is given FP16."""
        exported, lowered = (gate.folder / f"{name}.onnx" for name in ("number", "number16"))
        for path, dtype in ((exported, "float"), (lowered, "float16")):
            text = f"""<ir_version: 8, opset_import: ["": 17]>
                twice ({dtype}[batch, 8] x) => ({dtype}[batch, 8] y) {{ y = Add (x, x) }}"""
            onnx.save(onnx.parser.parse_model(text), path)
        x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
        from plansmith.data.reference import store_case

        case = store_case("traced", {"batch": 3}, {"x": x}, {"y": 2 * x}, gate.folder / "reference")
        reference = gate.onnx.reference.model_copy(update={"cases": (case,)})
        component = onnx_files.describe(exported)
        model = gate.onnx.model_copy(
            update={"components": {"model": component}, "reference": reference, "mask_input": None}
        )
        engine = engine_of(onnx_files.describe(lowered)).model_copy(update={"precision": Precision.FP16})
        report = validate(Candidate(engine, gate.folder), model, gate.folder, overrides={}, progress=silent)
        require_passed(report)
        assert report.comparisons[0].max_relative > 0, "the inputs were rounded"


def test_worker_needs_no_held_out_samples(gate: Gate) -> None:
    """The worker does without held-out samples."""
    candidate = gate.candidate(Encoder(scale=GOOD))
    request = ValidateRequest(
        engine=candidate.engine,
        engine_folder=gate.folder,
        onnx=gate.onnx,
        reference_folder=gate.folder,
        tolerances={},
    )
    assert worker.validate(request, silent).evaluation is None
    held_out = HeldOut(data=gate.data, folder=gate.folder, max_metric_drop=0.5)
    report = worker.validate(request.model_copy(update={"held_out": held_out, "recipe": candidate.recipe}), silent)
    assert report.evaluation is not None
    assert report.evaluation.metrics[0].max_drop == 0.5


class TestTheCommand:
    def shown(self, report: ValidationReport, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(revalidate, "find_release", lambda text, _: Path(text))
        monkeypatch.setattr(revalidate, "revalidate", lambda _: report)
        monkeypatch.setattr(release, "read_manifest", lambda _: SimpleNamespace(validation=report))
        return CliRunner().invoke(validate_command, ["somewhere"]).output

    def test_breached_output_and_measure_marked(self, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """The command marks what is beyond its limit."""
        shown = self.shown(gate.judge(Encoder(scale=CLIPPED)), monkeypatch)
        assert "!! hidden: " in shown
        assert "!! same nearest neighbour" in shown

    def test_lowered_engine_without_data_told(self, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """The command says when a lowered engine was judged on no data."""
        gate.change(evaluation=None)
        shown = self.shown(gate.judge(Encoder(scale=GOOD)), monkeypatch)
        assert (
            "int8 was judged on plansmith's own samples alone, which the search for its recipe had looked at" in shown
        )
        gate.recipe = None
        assert "alone" not in self.shown(gate.judge(Encoder(), Precision.FP32), monkeypatch)
