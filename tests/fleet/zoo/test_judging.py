"""The zoo judges by itself: it finds a graph that is wrong, or fixed, whatever the exporter thinks of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from plansmith.compilers.export import export as exporting
from plansmith.compilers.export.requests import ExportRequest
from plansmith.errors import EnvironmentFault, ExportError
from plansmith.fleet.zoo import trial
from plansmith.fleet.zoo.axes import Shape, find_axes
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.records import ZooRow
from plansmith.fleet.zoo.trial import _finding, _reachable, _with_fixed, try_entry
from plansmith.records.model import AxisRange, OnnxModel, Tensor
from plansmith.sources.random_inputs import plan_drawn

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[ZooEntry, Change], ZooRow]:
    """Try an entry whose exported graph is changed after the exporter was content with it."""

    def run(entry: ZooEntry, change: Change) -> ZooRow:
        export = exporting.export

        def changed(request: ExportRequest, progress: Callable[[str], None]) -> OnnxModel:
            onnx_model = export(request, progress)
            path = request.out / onnx_model.components["model"].file
            graph = onnx.load(path)
            change(graph)
            onnx.save(graph, path)
            from plansmith.compilers.onnx_files import describe

            return onnx_model.model_copy(update={"components": {"model": describe(path)}})

        monkeypatch.setattr(exporting, "export", changed)
        return try_entry(entry, tmp_path, lambda _: None)

    return run


def fix(axis: str, size: int) -> Change:
    """Make a number of a named dim of all inputs."""

    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.input:
            for dim in tensor.type.tensor_type.shape.dim:
                if dim.dim_param == axis:
                    dim.dim_value = size

    return change


def scale_a_weight(model: onnx.ModelProto) -> None:
    matrix = next(i for i in model.graph.initializer if len(i.dims) == 2 and "query" not in i.name)
    matrix.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(matrix) * 1.5, matrix.name))


def depend_on_size(model: onnx.ModelProto, place: int = 1, base: int = 20) -> None:
    """Add a hundredth of what a dim has more than the zoo's base: right there, and wrong elsewhere."""
    graph = model.graph
    name = graph.output[0].name
    for node in graph.node:
        node.output[:] = ["true_answer" if o == name else o for o in node.output]
    for constant, values in {"place": [place], "base": [base], "hundredth": [0.01]}.items():
        kind = np.int64 if constant == "place" else np.float32
        graph.initializer.append(numpy_helper.from_array(np.array(values, kind), constant))
    graph.node.extend(
        [
            helper.make_node("Shape", ["input_ids"], ["form"]),
            helper.make_node("Gather", ["form", "place"], ["size"]),
            helper.make_node("Cast", ["size"], ["size_float"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Sub", ["size_float", "base"], ["beyond"]),
            helper.make_node("Mul", ["beyond", "hundredth"], ["error"]),
            helper.make_node("Add", ["true_answer", "error"], [name]),
        ]
    )


def moving(row: ZooRow) -> dict[str, bool]:
    return {axis.name: axis.moves for axis in row.axes}


def test_exported_graph_is_right(planted: Callable[[ZooEntry, Change], ZooRow], bert: ZooEntry) -> None:
    """A graph as it was exported is right at every shape and all its axes move."""
    row = planted(bert, lambda _: None)
    assert (row.outcome, row.problem) == ("right", "")
    assert moving(row) == {"batch": True, "sequence": True}
    assert {1, 40, 96} <= set(row.axes[1].sizes)
    assert row.shapes == 1 + len(row.axes[0].sizes) + len(row.axes[1].sizes) + 2
    assert row.graph_bytes > 50_000
    assert row.exporter


@pytest.mark.slow
def test_planted_wrong_weight_is_found(planted: Callable[[ZooEntry, Change], ZooRow], bert: ZooEntry) -> None:
    """A planted wrong weight is found."""
    row = planted(bert, scale_a_weight)
    assert row.outcome == "wrong"
    assert "logits: cosine" in row.problem


@pytest.mark.slow
def test_length_error_stops_length_axis(planted: Callable[[ZooEntry, Change], ZooRow], bert: ZooEntry) -> None:
    """A graph that is wrong only at other lengths is wrong, and its length does not move."""
    row = planted(bert, depend_on_size)
    assert row.outcome == "wrong"
    assert moving(row) == {"batch": True, "sequence": False}


@pytest.mark.slow
def test_a_fixed_batch_is_wrong(planted: Callable[[ZooEntry, Change], ZooRow], bert: ZooEntry) -> None:
    row = planted(bert, fix("batch", 2))
    assert row.outcome == "wrong"
    assert row.problem == "the batch is fixed at 2 in the graph"
    assert moving(row) == {"batch": False, "sequence": True}
    assert [axis.fixed_at for axis in row.axes] == [2, 0]


def test_batch_error_is_not_fixed_batch(planted: Callable[[ZooEntry, Change], ZooRow], bert: ZooEntry) -> None:
    """A graph that is wrong at other batches is not said to have a fixed one."""
    row = planted(bert, lambda model: depend_on_size(model, place=0, base=2))
    assert row.outcome == "wrong"
    assert moving(row) == {"batch": False, "sequence": True}
    assert not row.fixed
    assert "fixed" not in row.problem
    assert row.problem.startswith("at input_ids 1x20")


@pytest.mark.slow
def test_fixed_length_is_found(planted: Callable[[ZooEntry, Change], ZooRow], bert: ZooEntry) -> None:
    """A fixed length is found though every answer at it is right."""
    row = planted(bert, fix("sequence", 20))
    assert row.outcome == "right"
    assert moving(row) == {"batch": True, "sequence": False}
    assert row.axes[1].problem == "fixed at 20 in the graph"
    assert [axis.name for axis in row.fixed] == ["sequence"]


@pytest.mark.parametrize(("sizes", "moves"), [((), True), ((64, 64), False)], ids=["tied", "fixed"])
def test_tied_sides_judged_at_squares(sizes: tuple[int, ...], moves: bool) -> None:
    """A graph of sides that move only together is judged at squares."""
    plan = plan_drawn([Tensor(name="x", dtype="float32", dims=("batch", "height", "width"))], {})
    side = AxisRange(min=64, opt=64, max=96)
    plan = replace(plan, axes={**plan.axes, "height": side, "width": side})

    def square(feed: Mapping[str, Any]) -> dict[str, Any]:
        assert feed["x"].shape[1] == feed["x"].shape[2]
        return {"y": feed["x"].sum(1)}

    live: Any = SimpleNamespace(inputs=plan, ask=square)
    accepted = find_axes(plan, square)
    fixed = {"x": dict(zip((1, 2), sizes, strict=False))}
    shapes = {shape.feed["x"].shape[1:] for shape in _reachable(accepted, fixed, live)}
    assert ((64, 64) in shapes, len(shapes) > 1) == (True, moves)
    graph: Any = SimpleNamespace(problem_at=lambda _: "")
    sides = _finding(graph, accepted.axes[-1], fixed, live, "why")
    assert (sides.name, sides.dims, sides.moves) == ("height+width", ("x:1", "x:2"), moves)


def test_graph_fixed_sides_are_followed() -> None:
    """Shapes follow sides that the graph fixes, though PyTorch moves these sides only together."""
    plan = plan_drawn([Tensor(name="x", dtype="float32", dims=("batch", "height", "width"))], {})

    def square(feed: Mapping[str, Any]) -> dict[str, Any]:
        assert feed["x"].shape[1] == feed["x"].shape[2]
        return {"y": feed["x"].sum(1)}

    live: Any = SimpleNamespace(inputs=plan, ask=square)
    sizes = {"batch": 2, "height": 96, "width": 96}
    feed = plan.make(sizes)
    result = _with_fixed(Shape("base", feed, square(feed), sizes), {"x": {1: 64, 2: 64}}, live)
    assert result is not None
    assert (result.feed["x"].shape, result.answer["y"].shape) == ((2, 64, 64), (2, 64))
    np.testing.assert_array_equal(result.feed["x"], plan.make({**sizes, "height": 64, "width": 64})["x"])
    assert _with_fixed(Shape("base", feed, square(feed), sizes), {"x": {1: 64}}, live) is None


def test_unexportable_model_gets_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be exported gets a row that says why."""

    def refuse(*_: Any) -> OnnxModel:
        raise ValueError("no such operator:\n  deform_conv2d\n")

    monkeypatch.setattr(exporting, "export", refuse)
    row = try_entry(ZooEntry(timm="starnet_s050"), tmp_path, lambda _: None)
    assert (row.outcome, row.exporter) == ("failed", "")
    assert row.problem == "exporting: ValueError: no such operator: deform_conv2d"


@pytest.mark.parametrize(
    ("error", "machine"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), True),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (MemoryError(), True),
        (EnvironmentFault("the model does not fit into memory"), True),
        (ValueError("no such operator"), False),
        (ExportError("no exporter gave a graph"), False),
    ],
    ids=str,
)
def test_machine_failure_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, machine: bool
) -> None:
    """A failure of the machine is told apart from one of the model."""

    def fail(*_: Any) -> None:
        raise RuntimeError("saving failed") from error

    monkeypatch.setattr(trial, "save", fail)
    row = try_entry(ZooEntry(timm="starnet_s050"), tmp_path, lambda _: None)
    assert (row.outcome, row.machine) == ("failed", machine)


def test_memory_failure_belongs_to_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row one of whose exporters got no memory is the machine's."""
    row = ZooRow(name="x", scheme="timm", outcome="right", attempts=("dynamo: RuntimeError: can't allocate memory",))
    monkeypatch.setattr(trial._Trial, "run", lambda *_, **__: row)
    assert try_entry(ZooEntry(timm="starnet_s050"), tmp_path, lambda _: None).machine


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "bert", "architecture": "BertForEverything"}, "has no class BertForEverything"),
        ({"model_type": "brt", "architecture": "BertModel"}, "has no model_type 'brt'"),
        ({"model_type": "bert", "task": "depth-estimation"}, "no bert model for the task 'depth-estimation'"),
        ({"model_type": "bert", "architecture": "BertModel", "config": {"hiden_size": 3}}, "has no hiden_size"),
        ({"timm": "resnet10tt"}, "has no model 'resnet10tt'"),
    ],
)
def test_missing_entry_told_so(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    """An entry that names what is not there is told so."""
    row = try_entry(ZooEntry.model_validate(fields), tmp_path, lambda _: None)
    assert row.outcome == "failed"
    assert says in row.problem


@pytest.mark.slow
def test_stateful_model_reloaded_per_shape(tmp_path: Path) -> None:
    """A model that would keep what it saw is asked at every shape as it was saved."""
    sizes = {"image_size": 32, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    swin = ZooEntry(model_type="swin", architecture="SwinForImageClassification", config=sizes)
    row = try_entry(swin, tmp_path, lambda _: None)
    assert row.outcome == "right", row.problem
