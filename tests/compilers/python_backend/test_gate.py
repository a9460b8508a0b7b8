"""The gate loads back what was laid out, in the precision that was asked for, and can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from plansmith.errors import EngineError
from plansmith.records.model import Precision
from plansmith.records.validation import ValidationReport
from plansmith.steps.worker import __main__ as worker
from plansmith.steps.worker.tasks import RandomModelRequest, ValidateRequest

from ...support.models.python_backend import Laid, lay_out

SHAPES = {"pixel_values": {"min": [1, 3, 160, 160], "opt": [2, 3, 160, 160], "max": [3, 3, 160, 160]}}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny timm model with random weights, as plansmith draws them."""
    folder = tmp_path_factory.mktemp("timm")
    model = RandomModelRequest(scheme="timm", location="test_resnet", trust_remote_code=False, task="", out=folder)
    worker.make_random(model, lambda _: None)
    return folder


def judged(laid: Laid, **options: Any) -> ValidationReport:
    request = ValidateRequest(
        engine=laid.engine,
        engine_folder=laid.folder,
        onnx=laid.onnx,
        reference_folder=laid.reference,
        tolerances={},
        **options,
    )
    return worker.validate(request, lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
def test_model_judged_at_every_shape(precision: Precision, source: Path, tmp_path: Path) -> None:
    """A model as it was laid out is judged at every shape in its precision."""
    laid = lay_out(source, tmp_path, scheme="timm", shapes=SHAPES, precision=precision)
    assert laid.onnx.components["model"].files == ()
    report = judged(laid)
    assert report.verdict == "passed", report.failures()
    assert report.precision is precision
    assert str(precision) in report.candidate
    assert {row.case for row in report.comparisons} == {case.name for case in laid.onnx.reference.cases}
    errors = [row.max_relative for row in report.comparisons]
    assert max(errors) > 1e-5 if precision is not Precision.FP32 else max(errors) < 1e-5
    assert not report.searched


def test_foreign_weights_fail(source: Path, tmp_path: Path) -> None:
    """Weights that are not the model's fail."""
    laid = lay_out(source, tmp_path, scheme="timm", shapes=SHAPES)
    file = laid.folder / "source" / "model.safetensors"
    weights = load_file(file)
    name = next(name for name, tensor in weights.items() if tensor.ndim == 4)
    save_file({**weights, name: weights[name] * 1.01}, file, metadata={"format": "pt"})
    assert judged(laid).verdict == "failed"


def test_unrunnable_model_says_remedy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot run as it was laid out says where and what to do."""
    laid = lay_out(source, tmp_path, scheme="timm", shapes=SHAPES)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch.nn.functional, "conv2d", refuse)
    monkeypatch.setattr(torch.nn.Conv2d, "forward", refuse)
    with pytest.raises(EngineError, match=r"fp32 at traced \(2\): no compiler here") as refused:
        judged(laid)
    assert "--precision" in refused.value.remedy
