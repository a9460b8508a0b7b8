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
from plansmith.triton.config.overrides import MOST_BYTES, Warmup, configure, obstacle

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
        settings = TritonOptions.model_validate(options)
        largest = 8 if settings.max_batch_size is None else settings.max_batch_size
        package = Package(
            model="tiny",
            config_file="config.pbtxt",
            model_files=("model.onnx",),
            max_batch_size=largest,
            interface=Interface(inputs=inputs, outputs=(OUT,)),
        )
        config = make_config(package, EngineKind.ONNXRUNTIME, "gpu")
        configure(config, settings)
        cases = []
        for point in points:
            sizes = {axis: getattr(r, point) for axis, r in AXES.items()}
            shapes = [[sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims] for tensor in inputs]
            feed = {t.name: np.arange(np.prod(s)).reshape(s) + 1 for t, s in zip(inputs, shapes, strict=True)}
            cases.append(store_case(point, sizes, feed, {"y": feed[inputs[0].name]}, tmp_path / "reference"))
        warmup = Warmup(config, inputs, AXES, StoredCases(cases, tmp_path), tmp_path, takes, room)
        warmup.add()
        return config, warmup

    return make


def samples(config: Any) -> list[tuple[str, int, list[int], str]]:
    return [
        (sample.name, sample.batch_size, list(value.dims), value.input_data_file)
        for sample in config.model_warmup
        for value in sample.inputs.values()
    ]


def test_file_holds_first_sample(add: Add, tmp_path: Path) -> None:
    """A file holds the first sample, and the smallest batch is one."""
    config, warmup = add(IDS)
    assert samples(config) == [
        ("min", 1, [2], "min/ids"),
        ("opt", 4, [3], "opt/ids"),
        ("max", 8, [5], "max/ids"),
    ]
    assert warmup.files == ["warmup/min/ids", "warmup/opt/ids", "warmup/max/ids"]
    assert warmup.skipped == []
    assert np.fromfile(tmp_path / "warmup/opt/ids", np.int64).tolist() == [1, 2, 3]


def test_batch_within_spec_choice(add: Add) -> None:
    """No batch is larger than the one that the spec chose."""
    config, _ = add(IDS, options={"max_batch_size": 3})
    assert [(name, batch) for name, batch, _, _ in samples(config)] == [("min", 1), ("opt", 3), ("max", 3)]


def test_unbatched_sample_is_whole_input(add: Add, tmp_path: Path) -> None:
    """Without batching the sample is the whole input."""
    config, _ = add(IDS, options={"max_batch_size": 0})
    assert samples(config)[1] == ("opt", 1, [4, 3], "opt/ids")
    assert (tmp_path / "warmup/opt/ids").stat().st_size == 4 * 3 * 8


def test_same_shape_samples_share_file(add: Add) -> None:
    """Samples of one shape share their file."""
    fixed = Tensor(name="x", dtype="float32", dims=("batch", 3))
    config, warmup = add(fixed)
    assert warmup.files == ["warmup/min/x"]
    assert samples(config) == [("min", 1, [3], "min/x"), ("opt", 4, [3], "min/x"), ("max", 8, [3], "min/x")]


def test_values_have_served_type(add: Add, tmp_path: Path) -> None:
    """Values have the type that the release is served with."""
    add(Tensor(name="x", dtype="bfloat16", dims=("batch", "length")))
    assert np.fromfile(tmp_path / "warmup/opt/x", ml_dtypes.bfloat16).astype(float).tolist() == [1, 2, 3]


def test_request_has_client_dims(add: Add) -> None:
    """A request has the dims that clients send."""
    user = Tensor(name="user", dtype="int32", dims=("batch",))
    config, _ = add(IDS, user, options={"inputs": {"ids": {"dims": [1, -1]}}})
    assert {name: list(value.dims) for name, value in config.model_warmup[2].inputs.items()} == {
        "ids": [1, 5],
        "user": [1],
    }


def test_client_fixed_size_in_samples(add: Add, tmp_path: Path) -> None:
    """A size that clients have fixed is that of every sample."""
    config, warmup = add(IDS, options={"inputs": {"ids": {"dims": [3]}}})
    assert samples(config) == [("min", 1, [3], "min/ids"), ("opt", 4, [3], "min/ids"), ("max", 8, [3], "min/ids")]
    assert np.fromfile(tmp_path / "warmup/min/ids", np.int64).tolist() == [1, 2, 3]
    assert warmup.skipped == []
    config, warmup = add(IDS, options={"inputs": {"ids": {"dims": [4]}}})
    assert samples(config) == []
    assert warmup.skipped == [
        f"at {point}: the reference has no inputs of that shape" for point in ("min", "opt", "max")
    ]


def test_unusable_file_name_replaced(add: Add) -> None:
    """A name that is no file name gets one."""
    _, warmup = add(Tensor(name="serving/ids:0", dtype="int64", dims=("batch", "length")))
    assert warmup.files[0] == "warmup/min/input0"


def test_oversized_sample_left_out_and_told(add: Add) -> None:
    """What would be too large is left out and told."""
    config, warmup = add(IDS, room=5 * 8 + 7)
    assert [name for name, *_ in samples(config)] == ["min", "opt"]
    assert warmup.skipped == ["at max: its files would have 40 bytes, and 7 are left of 64 MiB"]


def test_unfit_or_missing_sample_left_out(add: Add) -> None:
    """What no profile takes and what the reference does not have are left out and said."""
    config, warmup = add(IDS, points=("min", "max"), takes=lambda feed: feed["ids"].shape != (8, 5))
    assert [name for name, *_ in samples(config)] == ["min"]
    assert warmup.skipped == [
        "at opt: the reference has no inputs of that shape",
        "at max: no optimization profile takes it",
    ]


def test_sequences_and_ragged_lack_warm_up(add: Add) -> None:
    """Sequences and ragged batches have no warm-up of their own."""
    for settings, fragment in (
        ({"sequence_batching": {"direct": {}}}, "sequences"),
        ({"inputs": {"ids": {"allow_ragged_batch": True, "dims": [-1]}}}, "ragged"),
        ({}, ""),
    ):
        config, _ = add(IDS, options=settings)
        assert fragment in obstacle(TritonOptions.model_validate(settings), config)
        assert bool(fragment) == bool(obstacle(TritonOptions.model_validate(settings), config))
