"""A warm-up is made of the reference's inputs: one sample a file, at batch 1, opt and max, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from plansmith.config.triton import TritonOptions
from plansmith.data.reference import StoredCases, store_case
from plansmith.records.model import AxisRange, EngineKind, Tensor
from plansmith.records.release import Interface, Package
from plansmith.triton.config.model_config import make_config
from plansmith.triton.config.overrides import configure
from plansmith.triton.config.warmup import MOST_BYTES, Warmup, obstacle

AXES = {"batch": AxisRange(min=2, opt=4, max=8), "length": AxisRange(min=2, opt=3, max=5)}
IDS = Tensor(name="ids", dtype="int64", dims=("batch", "length"))
OUT = Tensor(name="y", dtype="float32", dims=("batch", "length"))

Add = Callable[..., tuple[Any, Warmup]]


@pytest.fixture
def add(tmp_path: Path) -> Add:
    """Add a warm-up to the configuration of a model with some inputs and options."""

    def make(
        *inputs: Tensor,
        options: Mapping[str, Any] = {},
        points: tuple[str, ...] = ("min", "opt", "max"),
        takes: Callable[[Mapping[str, Any]], bool] = lambda _: True,
        room: int = MOST_BYTES,
    ) -> tuple[Any, Warmup]:
        given = TritonOptions.model_validate(options)
        largest = 8 if given.max_batch_size is None else given.max_batch_size
        package = Package(
            model="tiny",
            config_file="config.pbtxt",
            model_files=("model.onnx",),
            max_batch_size=largest,
            interface=Interface(inputs=inputs, outputs=(OUT,)),
        )
        config = make_config(package, EngineKind.ONNXRUNTIME, "gpu")
        configure(config, given)
        made = []
        for point in points:
            sizes = {axis: getattr(r, point) for axis, r in AXES.items()}
            shapes = [[sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims] for tensor in inputs]
            feed = {t.name: np.arange(np.prod(s)).reshape(s) + 1 for t, s in zip(inputs, shapes, strict=True)}
            made.append(store_case(point, sizes, feed, {"y": feed[inputs[0].name]}, tmp_path / "reference"))
        found = Warmup(config, inputs, AXES, StoredCases(made, tmp_path), tmp_path, takes, room)
        found.add()
        return config, found

    return make


def samples(config: Any) -> list[tuple[str, int, list[int], str]]:
    return [
        (one.name, one.batch_size, list(value.dims), value.input_data_file)
        for one in config.model_warmup
        for value in one.inputs.values()
    ]


def test_a_file_holds_the_first_sample_and_the_smallest_batch_is_one(add: Add, tmp_path: Path) -> None:
    config, made = add(IDS)
    assert samples(config) == [
        ("min", 1, [2], "min/ids"),
        ("opt", 4, [3], "opt/ids"),
        ("max", 8, [5], "max/ids"),
    ]
    assert made.files == ["warmup/min/ids", "warmup/opt/ids", "warmup/max/ids"]
    assert made.skipped == []
    assert np.fromfile(tmp_path / "warmup/opt/ids", np.int64).tolist() == [1, 2, 3]


def test_no_batch_is_larger_than_the_one_that_the_spec_chose(add: Add) -> None:
    config, _ = add(IDS, options={"max_batch_size": 3})
    assert [(name, batch) for name, batch, _, _ in samples(config)] == [("min", 1), ("opt", 3), ("max", 3)]


def test_without_batching_the_sample_is_the_whole_input(add: Add, tmp_path: Path) -> None:
    config, _ = add(IDS, options={"max_batch_size": 0})
    assert samples(config)[1] == ("opt", 1, [4, 3], "opt/ids")
    assert (tmp_path / "warmup/opt/ids").stat().st_size == 4 * 3 * 8


def test_samples_of_one_shape_share_their_file(add: Add) -> None:
    fixed = Tensor(name="x", dtype="float32", dims=("batch", 3))
    config, made = add(fixed)
    assert made.files == ["warmup/min/x"]
    assert samples(config) == [("min", 1, [3], "min/x"), ("opt", 4, [3], "min/x"), ("max", 8, [3], "min/x")]


def test_values_have_the_type_that_the_release_is_served_with(add: Add, tmp_path: Path) -> None:
    add(Tensor(name="x", dtype="bfloat16", dims=("batch", "length")))
    assert np.fromfile(tmp_path / "warmup/opt/x", ml_dtypes.bfloat16).astype(float).tolist() == [1, 2, 3]


def test_a_request_has_the_dims_that_clients_send(add: Add) -> None:
    user = Tensor(name="user", dtype="int32", dims=("batch",))
    config, _ = add(IDS, user, options={"inputs": {"ids": {"dims": [1, -1]}}})
    assert {name: list(value.dims) for name, value in config.model_warmup[2].inputs.items()} == {
        "ids": [1, 5],
        "user": [1],
    }


def test_a_size_that_clients_have_fixed_is_that_of_every_sample(add: Add, tmp_path: Path) -> None:
    config, made = add(IDS, options={"inputs": {"ids": {"dims": [3]}}})
    assert samples(config) == [("min", 1, [3], "min/ids"), ("opt", 4, [3], "min/ids"), ("max", 8, [3], "min/ids")]
    assert np.fromfile(tmp_path / "warmup/min/ids", np.int64).tolist() == [1, 2, 3]
    assert made.skipped == []
    config, made = add(IDS, options={"inputs": {"ids": {"dims": [4]}}})
    assert samples(config) == []
    assert made.skipped == [f"at {point}: the reference has no inputs of that shape" for point in ("min", "opt", "max")]


def test_a_name_that_is_no_file_gets_one(add: Add) -> None:
    _, made = add(Tensor(name="serving/ids:0", dtype="int64", dims=("batch", "length")))
    assert made.files[0] == "warmup/min/input0"


def test_what_would_be_too_large_is_left_out_and_said(add: Add) -> None:
    config, made = add(IDS, room=5 * 8 + 7)
    assert [name for name, *_ in samples(config)] == ["min", "opt"]
    assert made.skipped == ["at max: its files would have 40 bytes, and 7 are left of 64 MiB"]


def test_what_no_profile_takes_and_what_the_reference_does_not_have_is_left_out_and_said(add: Add) -> None:
    config, made = add(IDS, points=("min", "max"), takes=lambda feed: feed["ids"].shape != (8, 5))
    assert [name for name, *_ in samples(config)] == ["min"]
    assert made.skipped == [
        "at opt: the reference has no inputs of that shape",
        "at max: no optimization profile takes it",
    ]


def test_sequences_and_ragged_batches_have_no_warm_up_of_their_own(add: Add) -> None:
    for given, words in (
        ({"sequence_batching": {"direct": {}}}, "sequences"),
        ({"inputs": {"ids": {"allow_ragged_batch": True, "dims": [-1]}}}, "ragged"),
        ({}, ""),
    ):
        config, _ = add(IDS, options=given)
        assert words in obstacle(TritonOptions.model_validate(given), config)
        assert bool(words) == bool(obstacle(TritonOptions.model_validate(given), config))
