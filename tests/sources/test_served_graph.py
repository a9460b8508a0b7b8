"""Conversions behind the inputs of an ONNX file: INT32 ids, and images with their channels last, whoever takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from plansmith.compilers.export.loading import plan_graph
from plansmith.compilers.export.onnx_import import OriginalGraph
from plansmith.config.spec import DescribedInput
from plansmith.data.reference import read_case
from plansmith.errors import UsageError
from plansmith.steps.worker import sampling
from plansmith.steps.worker.sample_request import SampleRequest

from ..support.models.graphs import save, take

# Ids are taken by a node of the graph, and by one inside of a branch: which branch, the length of a row decides.
BRANCHES = """
branches (float[n, 3, 4, 5] image, int64[n, s] ids) => (float[n, s, 2] y, float[n, 3] colours)
    <int64[n, s] ids> {
    rows = Gather (table, ids)
    wide = Shape <start = 1, end = 2> (ids)
    many = Greater (wide, two)
    one = Squeeze (many)
    more = If (one) <
        then_branch = yes () => (float[n, s, 2] a) { a = Gather (other, ids) },
        else_branch = no () => (float[n, s, 2] b) { b = Gather (table, ids) }
    >
    y = Add (rows, more)
    colours = ReduceMean <keepdims = 0> (image, places)
}
"""
WEIGHTS: dict[str, Any] = {
    "table": np.arange(20, dtype=np.float32).reshape(10, 2),
    "other": -(np.arange(20, dtype=np.float32).reshape(10, 2) ** 2),
    "two": np.array([2], np.int64),
    "places": np.array([2, 3], np.int64),
}
FORMS = {"ids": {"served_dtype": "int32"}, "image": {"layout": "nhwc"}}


def inputs(length: int) -> dict[str, NDArray[Any]]:
    """The inputs as the file has them."""
    random = np.random.default_rng(length)
    return {
        "image": random.normal(size=(2, 3, 4, 5)).astype(np.float32),
        "ids": random.integers(0, 10, size=(2, length)),
    }


@pytest.mark.parametrize("length", [1, 4])
def test_reformed_graph_answers_like_file(tmp_path: Path, length: int) -> None:
    """Rows of one id go through one branch, and rows of four through the other."""
    path = save(BRANCHES, tmp_path, **WEIGHTS)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=50)
    model = take(path, tmp_path / "out", inputs=FORMS)
    by_name = {tensor.name: (tensor.dtype, tensor.dims) for tensor in model.components["model"].inputs}
    assert by_name["ids"] == ("int32", ("batch", "s"))
    assert by_name["image"] == ("float32", ("batch", 4, 5, 3))
    feed = inputs(length)
    served = {"image": feed["image"].transpose(0, 2, 3, 1).copy(), "ids": feed["ids"].astype(np.int32)}
    expected, answer = OriginalGraph(path).run(feed), OriginalGraph(tmp_path / "out" / "model.onnx").run(served)
    for name, array in expected.items():
        np.testing.assert_array_equal(answer[name], array)


def test_passthrough_input_has_one_form(tmp_path: Path) -> None:
    """What goes straight through the graph would have two types under one name."""
    path = save("through (int64[n] x) => (int64[n] x, int64[n] y) { y = Neg (x) }", tmp_path)
    with pytest.raises(UsageError, match="io_dtypes: x is an output of the graph, too"):
        plan_graph(path, {"x": DescribedInput(served_dtype="int32")}, ())


def test_samples_served_and_answered_by_file(tmp_path: Path) -> None:
    """What a lowered graph is calibrated with and judged by."""
    path, out = save(BRANCHES, tmp_path, **WEIGHTS), tmp_path / "samples"
    model = {"scheme": "onnx", "folder": tmp_path, "location": str(path), "inputs": FORMS}
    record = sampling.sample(SampleRequest.model_validate({"model": model, "out": out}), lambda _: None)
    case = record.calibration.cases[0]
    stored = read_case(case, out)
    assert stored.feed["ids"].dtype == np.int32
    source = {"ids": stored.feed["ids"].astype(np.int64), "image": stored.feed["image"].transpose(0, 3, 1, 2).copy()}
    for name, array in OriginalGraph(path).run(source).items():
        np.testing.assert_array_equal(stored.answer[name], array)
