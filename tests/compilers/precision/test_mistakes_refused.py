"""Mistakes of lowering are refused at the command line: one message, its exit code, and no file of ours."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import yaml
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from plansmith.compilers.precision.int8 import tensorrt_method
from plansmith.compilers.precision.int8.format import FP8
from plansmith.config.engine_options import LoweringOptions
from plansmith.records.model import EngineKind, Precision

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.precision import lint_graphs, mistakes_of_parser
from ...support.precision.given_files import lay_out, right_graphs, spec_request, with_mistake
from ...support.precision.half_graphs import samples
from ...support.precision.mistakes import MISTAKES
from ...support.precision.planting import Mistake

# What is refused by the reader of the file already, before the linter sees it; and what is one mistake of many.
OTHERWISE = {
    "dynamic_quantisation_for_tensorrt": (4, "integer-operator"),
    "missing_scale": (3, "'pool_x_scale'"),
    "cast_left_out": (3, "node name: out_bias"),
    "cast_behind_what_reads_it": (3, "topologically sorted"),
    "mask_that_stays_boolean": (3, "node name: mask_invert"),
    "weight_of_another_shape": (3, "node name: out"),
    "text_as_an_input": (3, "input 'text'"),
}
# Nothing was promised to anybody but what the file itself says; and what is no lowered file is looked at before a plan
# is built.
NO_MISTAKE_OF_A_FILE = {"client_sees_fp16", *(mistake.name for mistake in mistakes_of_parser.MISTAKES)}
PLANTED = [(m, engine) for m in MISTAKES for engine in m.engines if m.name not in NO_MISTAKE_OF_A_FILE]


@pytest.fixture(scope="module")
def right() -> dict[str, onnx.ModelProto]:
    return right_graphs()


@pytest.mark.parametrize(("mistake", "engine"), PLANTED, ids=lambda given: getattr(given, "name", str(given)))
def test_mistaken_file_refused(
    mistake: Mistake, engine: EngineKind, right: dict[str, onnx.ModelProto], run: InProcess
) -> None:
    """A file with a mistake in it is refused with the node and what to do."""
    wants = spec_request(mistake, engine)
    if mistake.name == "operator_that_tensorrt_lacks":  # FP32, which we lower ourselves
        wants["precision"] = Precision.FP16
    elif mistake.name == "fp8_beside_int8":
        wants["precision"] = Precision.FP8
    spec = lay_out(with_mistake(right[mistake.into], mistake), run.folder, **wants)
    answer = run("lower", spec, "--output", "out", "--json")
    status, fragment = OTHERWISE.get(mistake.name, (4, f"[{mistake.finding}]"))
    check_refusal(answer, status, ("net · ", fragment))
    assert not (run.folder / "out").exists()


@pytest.mark.parametrize("name", ["half attention", "half cnn", "attention", "cnn"])
def test_right_file_is_taken(name: str, right: dict[str, onnx.ModelProto], run: InProcess) -> None:
    """A file that was lowered correctly is taken, and its gate says what it proves."""
    spec = lay_out(right[name], run.folder)
    answer = run("compile", spec, "--no-check-served")
    assert answer.status == 0, answer
    precision = "fp16" if "half" in name else "int8"
    assert f"the file is {precision} already, and stays so" in answer.stderr
    assert "doubtful" not in answer.stderr
    assert f"compared with the file itself, {precision} already, in ONNX Runtime" in answer.stdout
    assert f"not validated: how far the file, which came in {precision}, is from the model" in answer.stdout
    manifest = next(run.folder.rglob("manifest.json")).read_text()
    assert f"how far the file, which came in {precision}, is from" in manifest


def test_fp8_file_needs_fp8_gpu(right: dict[str, onnx.ModelProto], run: InProcess) -> None:
    """An FP8 file is for TensorRT on GPUs that have FP8."""
    plain = right["plain attention"]
    cases = samples(run.folder, *lint_graphs.feeds_of(plain))
    (method,) = tensorrt_method.methods(plain, cases, LoweringOptions(), form=FP8, mask_input="mask")
    spec = lay_out(method.lower(()), run.folder)
    answer = run("lower", spec, "--engine", "tensorrt", "--precision", "fp8", "--output", "out")
    assert answer.status == 0, answer
    assert "compared with the file itself, fp8 already, in ONNX Runtime" in answer.stdout
    check_refusal(run("compile", spec, "--json"), 2, ("no FP8 kernels for a CPU", "--engine tensorrt"))
    plan = ("compile", spec, "--engine", "tensorrt", "--target", "triton-26.03", "--dry-run", "--json", "--gpu")
    check_refusal(run(*plan, "A10G"), 6, ("compute capability 8.6, and FP8 begins with 8.9",))
    assert run(*plan, "L4").status == 0


def test_plain_file_not_called_lowered(right: dict[str, onnx.ModelProto], run: InProcess) -> None:
    """A plain file is not said to be lowered."""
    answer = run("compile", lay_out(right["plain cnn"], run.folder), "--no-check-served")
    assert answer.status == 0, answer
    assert "not validated" not in answer.stdout
    assert "the file itself in ONNX Runtime" in answer.stdout


class _Batches(CalibrationDataReader):  # type: ignore[misc]
    """What ONNX Runtime's own tool calibrates on."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._feeds = iter(lint_graphs.feeds_of(model))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def test_wanted_mistake_is_noticed(right: dict[str, onnx.ModelProto], run: InProcess) -> None:
    """A mistake that somebody wants is a notice and stands in the manifest."""
    onnx.save(right["plain cnn"], run.folder / "plain.onnx")
    quantize_static(
        run.folder / "plain.onnx", run.folder / "q.onnx", _Batches(right["plain cnn"]), quant_format=QuantFormat.QDQ
    )
    spec = lay_out(onnx.load(run.folder / "q.onnx"), run.folder)
    refused = run("compile", spec, "--no-check-served", "--json")
    check_refusal(refused, 4, ("quantises the graph's output 'logits'", "lowering: {accept: [quantised-output]}"))
    settings = yaml.safe_load(spec.read_text())
    spec.write_text(yaml.safe_dump({**settings, "lowering": {"accept": ["quantised-output"]}}))
    answer = run("compile", spec, "--no-check-served")
    assert answer.status == 0, answer
    assert "1 warning about the lowering of the file; the first: " in answer.stderr
    manifest = yaml.safe_load(next(run.folder.rglob("manifest.json")).read_text())
    assert [line.rpartition(" ")[2] for line in manifest["lowered"]["warnings"]] == ["[quantised-output]"]
    again = run("compile", spec, "--no-check-served")
    assert "1 warning about the lowering" in again.stderr, "a cached step says it again"


def test_scales_unjudged_without_data(right: dict[str, onnx.ModelProto], run: InProcess) -> None:
    """Without somebody's data, scales are not judged by random values."""
    mistake = next(m for m in MISTAKES if m.name == "clipped_calibration")
    spec = lay_out(with_mistake(right["cnn"], mistake), run.folder)
    settings = yaml.safe_load(spec.read_text())
    del settings["data"]
    spec.write_text(yaml.safe_dump(settings))
    answer = run("compile", spec, "--no-check-served")
    assert answer.status == 0, answer
    assert "not validated: how far the file" in answer.stdout


def test_dry_run_announces_lint(right: dict[str, onnx.ModelProto], run: InProcess) -> None:
    """A dry run says that a lowered file will be looked over."""
    mistake = next(m for m in MISTAKES if m.name == "quantised_probabilities")
    spec = lay_out(with_mistake(right["attention"], mistake), run.folder)
    settings = yaml.safe_load(spec.read_text())
    del settings["data"]
    spec.write_text(yaml.safe_dump(settings))
    assert run("compile", spec, "--no-check-served", "--json").status == 4
    plan = run("compile", spec, "--no-check-served", "--dry-run", "--json").document["plan"]
    assert (plan["export"], plan["sample"], plan["lower"]) == ("cached", "left out", "would run")
