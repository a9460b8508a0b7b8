"""What an ONNX file takes: dims named, values drawn by what the graph says, or by what the spec says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from plansmith.config.spec import InputSpec
from plansmith.data.reference import read_case
from plansmith.errors import UsageError
from plansmith.records.model import Dim, Tensor
from plansmith.sources.onnx_file import read_graph
from plansmith.sources.random_inputs import index_bounds, name_inputs, plan_drawn

from ..support.models.graphs import save, take

Dims = tuple[Dim, ...]


def floats(**dims: Dims) -> list[Tensor]:
    return [Tensor(name=name, dtype="float32", dims=d) for name, d in dims.items()]


def ids(**dims: Dims) -> list[Tensor]:
    return [Tensor(name=name, dtype="int64", dims=d) for name, d in dims.items()]


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        (floats(x=("?", 3)), [("batch", 3)]),
        (floats(x=("?", 3), z=("?", "?")), [("batch", 3), ("batch", "z_dim1")]),
        (floats(x=("?", 3), fixed=(5, 3)), [("batch", 3), (5, 3)]),
        (floats(x=("N", 3), z=("N", "M")), [("batch", 3), ("batch", "M")]),
        (floats(x=("batch_size", "?")), [("batch", "x_dim1")]),
        (floats(x=("rows", 3)), [("rows", 3)]),
        (floats(x=("?", 3), z=("rows", 3)), [("x_dim0", 3), ("rows", 3)]),
        (floats(x=("?", 3), z=(4, "?")), [("x_dim0", 3), (4, "z_dim1")]),
        (floats(x=("?", "batch")), [("x_dim0", "batch")]),
        (ids(input_ids=("?", "?"), attention_mask=("?", "?")), [("batch", "sequence"), ("batch", "sequence")]),
        (ids(input_ids=("b", "s"), attention_mask=("b", "s")), [("batch", "s"), ("batch", "s")]),
    ],
)
def test_common_first_dim_is_batch(tensors: list[Tensor], named: list[Dims]) -> None:
    """The first dim that all have in common is the batch, and others get names of their own."""
    assert [t.dims for t in name_inputs(tensors, {})] == named


def test_spec_names_win_everywhere() -> None:
    """The spec's names win and reach all that shared the old name."""
    named = name_inputs(floats(x=("?", "n"), z=("?", "n")), {"x": InputSpec(dims=("rows", "columns"))})
    assert [t.dims for t in named] == [("rows", "columns"), ("z_dim0", "columns")]


@pytest.mark.parametrize(
    ("input_specs", "says"),
    [
        ({"y": InputSpec()}, "the model has no input y"),
        ({"x": InputSpec(dtype="int64")}, "x has dtype float32 in the graph, not int64"),
        ({"x": InputSpec(dims=("batch", 3))}, "x has 3 dims in the graph, not 2"),
        ({"x": InputSpec(dims=("batch", "n", 4))}, "x is fixed at 3 where 4 is given"),
        ({"x": InputSpec(dims=("batch", "n", "m"))}, "x is fixed at 3 where m is given"),
        ({"x": InputSpec(dims=("batch", 7, 3))}, "a dim of x moves in the graph where 7 is given"),
        ({"x": InputSpec(dims=("a", "b", 3)), "z": InputSpec(dims=("a", "c"))}, "axis 'n' gets two names, 'b' and 'c'"),
    ],
)
def test_contradicting_spec_refused(input_specs: dict[str, InputSpec], says: str) -> None:
    """A spec that contradicts the graph is refused."""
    with pytest.raises(UsageError, match=says) as caught:
        name_inputs(floats(x=("?", "n", 3), z=("?", "n")), input_specs)
    assert caught.value.remedy


def test_ids_stay_below_table_rows(tmp_path: Path) -> None:
    """Ids stay below the rows of the table that they pick from."""
    text = """
    embedding (int32[N, L] input_ids, int64[N, L] token_type_ids, int64[N, L] other)
        => (float[N, L, 4] y, int64[N, L] z) {
        wide = Cast <to = 7> (input_ids)
        column = Constant <value_ints = [-1]> ()
        flat = Reshape (wide, column)
        a = Gather (words, wide)
        b = Gather (kinds, token_type_ids)
        y = Add (a, b)
        z = Identity (other)
    }"""
    path = save(text, tmp_path, words=np.ones((30, 4), np.float32), kinds=np.ones((2, 4), np.float32))
    bounds = index_bounds(read_graph(path))
    assert bounds == {"input_ids": 30, "token_type_ids": 2}
    tensors = [Tensor(name=n, dtype="int64", dims=("batch", "sequence")) for n in ("input_ids", "token_type_ids")]
    feed = plan_drawn(tensors, {}, bounds).make({"batch": 16, "sequence": 64})
    assert (feed["input_ids"].min(), feed["input_ids"].max()) == (0, 29)
    assert set(feed["token_type_ids"].ravel()) == {0, 1}


def test_masks_pad_right() -> None:
    """Masks are padded on the right and count as the padding."""
    plan = plan_drawn(ids(input_ids=("batch", "sequence"), attention_mask=("batch", "sequence")), {})
    mask = plan.make({"batch": 4, "sequence": 16})["attention_mask"]
    assert plan.mask_input == "attention_mask"
    assert mask.sum(axis=1).tolist() == [16, 12, 8, 4]
    assert (np.diff(mask) <= 0).all()


@pytest.mark.parametrize("form", [("batch", 3, 32, 32), ("batch", 32, 32, 1), ("batch", 4, "height", "width")])
def test_four_dims_fed_with_images(form: Dims) -> None:
    """Four dims with channels are fed with images."""
    plan = plan_drawn(floats(x=form), {})
    images = plan.make({"batch": 2, "height": 64, "width": 96})["x"]
    assert plan.data == "drawn images"
    assert images.shape == tuple({"batch": 2, "height": 64, "width": 96}.get(str(d), d) for d in form)
    assert abs(images.mean()) < 1.5
    assert not np.array_equal(images[0], images[1])


def test_values_drawn_from_spec_range() -> None:
    """Values are drawn from the range that the spec gives."""
    input_specs = {"x": InputSpec(low=5, high=6), "count": InputSpec(low=3, high=4), "kept": InputSpec(mask=True)}
    tensors = [*floats(x=("batch", 50), kept=("batch", "n")), *ids(count=("batch",))]
    plan = plan_drawn(tensors, input_specs)
    feed = plan.make({"batch": 8, "n": 4})
    assert feed["x"].min() >= 5
    assert feed["x"].max() <= 6
    assert set(feed["count"]) == {3, 4}
    assert plan.mask_input == "kept"
    assert set(feed["kept"].ravel()) == {0, 1}
    assert plan.guessed


@pytest.mark.parametrize(("said", "low", "high"), [({}, 9, 12), ({"k": {"low": 10, "high": 10}}, 10, 10)])
def test_shape_input_follows_profiles(said: dict[str, Any], low: int, high: int, tmp_path: Path) -> None:
    """An input that holds a shape has the values of the profiles."""
    path = save("net (float[batch, 64] x, int64[1] k) => (float[batch, n] y) { y, places = TopK (x, k) }", tmp_path)
    profiles = {
        "x": {"min": (1, 64), "opt": (2, 64), "max": (4, 64)},
        "k": {"min": (9,), "opt": (10,), "max": (12,)},
    }
    model = take(path, tmp_path / "out", inputs=said, profiles=profiles)
    assert model.axes["batch"].max == 4
    counts = {int(read_case(case, tmp_path / "out").feed["k"][0]) for case in model.reference.cases}
    assert low <= min(counts) <= max(counts) <= high


def test_samples_differ_reproducibly() -> None:
    """Every sample differs and the same sizes give the same values."""
    plan = plan_drawn(floats(x=("batch", 8), z=("batch", 8)), {})
    feed, again = plan.make({"batch": 5}), plan.make({"batch": 5})
    assert len(np.unique(np.concatenate([feed["x"], feed["z"]]), axis=0)) == 10
    np.testing.assert_array_equal(feed["x"], again["x"])


def test_unnamed_axes_named_when_served(tmp_path: Path) -> None:
    """What the graph does not name is named in the file that is served."""
    text = """sum (float[?, ?, 4] x, float[?, 4] z) => (float[?, ?, 4] y, float[?] total) {
        y = Neg (x)
        total = ReduceSum <keepdims = 0> (z, ones)
    }"""
    path = save(text, tmp_path, ones=np.array([1]))
    model = take(path, tmp_path / "out")
    written = onnx.load(tmp_path / "out" / "model.onnx").graph
    values = (*written.input, *written.output)
    dims = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    assert dims == {"x": ["batch", "x_dim1", 4], "z": ["batch", 4], "y": ["batch", "x_dim1", 4], "total": ["batch"]}
    assert {axis: r.max for axis, r in model.axes.items()} == {"batch": 32, "x_dim1": 64}
