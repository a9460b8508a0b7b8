"""What plansmith's own recipes make of small graphs passes the lint for the engine that it is made for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.compilers.precision.candidate import Method
from plansmith.compilers.precision.fp16 import method as half
from plansmith.compilers.precision.int8 import onnxruntime_methods, tensorrt_method
from plansmith.compilers.precision.int8.format import FP8, INT8, Format
from plansmith.compilers.precision.lint.linter import lint
from plansmith.config.engine_options import LoweringOptions, Quantisation
from plansmith.data.reference import StoredCases, store_case
from plansmith.errors import ExportError
from plansmith.records.model import EngineKind, Precision

from ....support.precision import lint_graphs

GRAPHS = {"attention": (lint_graphs.attention, "mask"), "cnn": (lint_graphs.cnn, None)}


def calibration(model: onnx.ModelProto, folder: Path) -> StoredCases:
    cases = []
    for place, feed in enumerate(lint_graphs.feeds_of(model)):
        batch = len(next(iter(feed.values())))
        answer = {"logits": np.zeros((batch, lint_graphs.CLASSES), np.float32)}
        cases.append(store_case(f"calibration-{place}", {"batch": batch}, feed, answer, folder / "calibration"))
    return StoredCases(cases, folder)


def check(methods: list[Method], engine: EngineKind, samples: StoredCases | None) -> None:
    assert methods
    for method in methods:
        assert method.lowerable
        assert lint(method.lower(()), engine=engine, samples=samples) == []


@pytest.mark.parametrize(
    ("name", "quantisation"), [("attention", "dynamic"), ("attention", "static"), ("cnn", "static")]
)
def test_int8_for_onnx_runtime(name: str, quantisation: Quantisation, tmp_path: Path) -> None:
    make, mask = GRAPHS[name]
    model = make()
    samples = calibration(model, tmp_path)
    options = LoweringOptions(quantisation=quantisation)
    check(onnxruntime_methods.methods(model, samples, options, mask_input=mask), EngineKind.ONNXRUNTIME, samples)


@pytest.mark.parametrize("form", [INT8, FP8], ids=["int8", "fp8"])
def test_eight_bits_for_tensorrt(form: Format, tmp_path: Path) -> None:
    make, mask = GRAPHS["attention"]
    model = make()
    samples = calibration(model, tmp_path)
    methods = tensorrt_method.methods(model, samples, LoweringOptions(), form=form, mask_input=mask)
    check(methods, EngineKind.TENSORRT, samples)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_half_precision_for_both_engines(name: str, precision: Precision, tmp_path: Path) -> None:
    model = GRAPHS[name][0]()
    methods = half.methods(model, calibration(model, tmp_path), LoweringOptions(), precision=precision)
    for engine in (EngineKind.TENSORRT, EngineKind.ONNXRUNTIME):
        check(methods, engine, None)


def test_onnxruntime_int8_refused_for_tensorrt(tmp_path: Path) -> None:
    """INT8 for ONNX Runtime is refused for TensorRT."""
    from plansmith.compilers.precision.lint.linter import refuse

    model = lint_graphs.attention()
    options = LoweringOptions(quantisation="dynamic")
    method = onnxruntime_methods.methods(model, calibration(model, tmp_path), options, mask_input="mask")[0]
    with pytest.raises(ExportError, match=r"\[integer-operator\]"):
        refuse(lint(method.lower(()), engine=EngineKind.TENSORRT))
