"""What is sent is what the model takes: no digit is lost unsaid, and what does not fit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plansmith.errors import UsageError
from plansmith.records.model import Dim, Tensor
from plansmith.triton.client.request_inputs import checked_feed, drawn_feed, expected_shapes, parts
from plansmith.triton.dtypes import Signature, numpy_dtype


def signature(dtype: str, *dims: Dim, batch: int = 8) -> Signature:
    """A model with one input `x` and one output `y` of this dtype and these dims."""
    return Signature(
        inputs=(Tensor(name="x", dtype=dtype, dims=dims),),
        outputs=(Tensor(name="y", dtype=dtype, dims=dims),),
        max_batch_size=batch,
    )


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", np.array([1, 2], np.float16)),
        ("float32", np.array([1, 2], np.uint16)),
        ("int64", np.array([1, 2], np.uint32)),
        ("float64", np.array([1, 2], np.int32)),
        ("int8", np.array([True, False])),
        ("float16", [0.1, 2]),
        ("bfloat16", [0.1, 2]),
        ("bfloat16", np.array([1, 2], np.uint8)),
        ("uint8", [0, 255]),
        ("bool", [True, False]),
        ("float32", (1, 2)),
    ],
)
def test_lossless_values_take_input_dtype(dtype: str, value: Any) -> None:
    """What loses nothing takes the input's dtype."""
    result = checked_feed(signature(dtype, "batch"), {"x": value})["x"]
    assert result.dtype == numpy_dtype(dtype)
    assert result.tolist() == np.asarray(value).astype(numpy_dtype(dtype)).tolist()


@pytest.mark.parametrize(
    ("dtype", "data", "words"),
    [
        ("float32", np.array([1.0]), "takes float32 and was given float64"),
        ("float32", np.array([1], np.int64), "takes float32 and was given int64"),
        ("int32", np.array([1]), "takes int32 and was given int64"),
        ("float16", np.array([1], np.float32), r"array.astype\('float16'\)"),
        ("bfloat16", np.array([1], np.float32), r"array.astype\(ml_dtypes.bfloat16\)"),
        ("bool", np.array([1]), "takes bool and was given int64"),
        ("int64", [0.5], "takes int64 and was given decimals"),
        ("bool", [1, 0], "takes bool and was given int64"),
        ("int64", [True], "takes int64 and was given true or false"),
        ("int8", [1, 128], "was given 128, which does not fit"),
        ("uint8", [-1, 128], "was given -1, which does not fit"),
        ("int64", [2**63], "which does not fit"),
        ("int64", [2**80], "was given values of several kinds"),
        ("float16", [1e6], "was given 1e[+]06, which does not fit"),
        ("float32", ["a"], "takes float32 and was given text"),
        ("float32", [[1], [1, 2]], "is no array"),
        ("string", [1], "takes strings and was given int"),
        ("string", np.array([1]), "takes strings and was given int64"),
    ],
)
def test_lossy_values_refused_with_dtype(dtype: str, data: Any, words: str) -> None:
    """What would lose something is refused, with what the model has."""
    with pytest.raises(UsageError, match=f"input 'x' .*{words}") as refused:
        checked_feed(signature(dtype, "batch"), {"x": data})
    assert f"input x: {dtype} [batch]" in refused.value.message


def test_strings_are_text_or_bytes() -> None:
    """Strings are text or bytes of any kind."""
    takes = signature("string", "batch")
    for values in (["ä", b"b"], np.array(["ä", "b"]), np.array([b"\xc3\xa4", b"b"]), np.array(["ä", b"b"], object)):
        assert checked_feed(takes, {"x": values})["x"].tolist() == ["ä".encode(), b"b"]


@pytest.mark.parametrize(
    ("dims", "shape", "words"),
    [
        (("batch", 3), (2, 4), r"takes \[batch, 3\] and was given \[2, 4\]"),
        (("batch", 3), (3,), r"takes \[batch, 3\] and was given \[3\]"),
        (("batch", "?"), (2, 4, 1), r"takes \[batch, \?\] and was given \[2, 4, 1\]"),
        (("batch", "side", "side"), (1, 4, 5), "side is 4 in input 'x' and 5 in 'x'"),
        (("batch", 3), (0, 3), "the batch is empty"),
    ],
)
def test_unfitting_shapes_refused(dims: tuple[Dim, ...], shape: tuple[int, ...], words: str) -> None:
    """Shapes that do not fit are refused."""
    with pytest.raises(UsageError, match=words):
        checked_feed(signature("float32", *dims), {"x": np.zeros(shape, np.float32)})


def test_named_dims_agree_between_inputs() -> None:
    """Dims of one name agree between inputs, and unnamed ones need not."""

    def two(dim: str) -> Signature:
        inputs = tuple(Tensor(name=n, dtype="int64", dims=("batch", dim)) for n in ("x", "y"))
        return Signature(inputs=inputs, outputs=(), max_batch_size=4)

    feed = {"x": np.zeros((1, 5), int), "y": np.zeros((1, 6), int)}
    with pytest.raises(UsageError, match="length is 5 in input 'x' and 6 in 'y'"):
        checked_feed(two("length"), feed)
    assert set(checked_feed(two("?"), feed)) == {"x", "y"}
    with pytest.raises(UsageError, match="batch is 1 in input 'x' and 2 in 'y'"):
        checked_feed(two("?"), feed | {"y": np.zeros((2, 6), int)})


def test_batchless_model_gets_one_request() -> None:
    """A model that does not batch gets one request."""
    takes = signature("float32", "rows", batch=0)
    arrays = checked_feed(takes, {"x": np.zeros(100, np.float32)})
    assert [part["x"].shape for part in parts(arrays, 0)] == [(100,)]
    assert [part["x"].shape for part in parts(arrays, 40)] == [(40,), (40,), (20,)]


def test_derived_answer_size_known_before() -> None:
    """Answers whose size follows from the inputs are known before."""
    takes = Signature(
        inputs=(Tensor(name="ids", dtype="int64", dims=("batch", "length")),),
        outputs=tuple(
            Tensor(name=name, dtype="float32", dims=dims)
            for name, dims in (("states", ("batch", "length", 4)), ("score", ("batch",)), ("boxes", ("batch", "?")))
        ),
        max_batch_size=8,
    )
    arrays = {"ids": np.zeros((2, 7), int)}
    assert expected_shapes(takes, takes.outputs, arrays) == [(2, 7, 4), (2, 1), None]


def test_drawn_inputs_fit_reproducibly() -> None:
    """Drawn inputs fit and are the same again."""
    dims: dict[str, tuple[Dim, ...]] = {
        "input_ids": ("batch", "length"),
        "attention_mask": ("batch", "length"),
        "image": ("batch", 3, "?"),
        "title": ("batch",),
    }
    dtypes = {"input_ids": "int64", "attention_mask": "int64", "image": "bfloat16", "title": "string"}
    takes = Signature(
        inputs=tuple(Tensor(name=name, dtype=dtypes[name], dims=dims[name]) for name in dims),
        outputs=(),
        max_batch_size=8,
    )
    feed = drawn_feed(takes, shapes={"input_ids": (2, 5)}, sizes={"length": 99})
    assert {name: array.shape for name, array in feed.items()} == {
        "input_ids": (2, 5),
        "attention_mask": (2, 5),
        "image": (2, 3, 8),
        "title": (2,),
    }
    assert feed["attention_mask"].all()
    assert set(feed["input_ids"].flat) <= {0, 1}
    assert set(checked_feed(takes, feed)) == set(dims)
    again = drawn_feed(takes, shapes={"input_ids": (2, 5)}, sizes={"length": 99})
    assert all((again[name] == feed[name]).all() for name in dims)
    both = tuple(Tensor(name=name, dtype="int64", dims=("batch", "?")) for name in ("ids", "types"))
    unnamed = Signature(inputs=(*both, takes.inputs[2]), outputs=(), max_batch_size=8)
    follows = drawn_feed(unnamed, shapes={"ids": (3, 5)})
    assert [array.shape for array in follows.values()] == [(3, 5), (3, 5), (3, 3, 8)]
    for shapes in ({"input_ids": (2,)}, {"image": (2, 4, 8)}, {"ids": (2, 5)}):
        with pytest.raises(UsageError):
            drawn_feed(takes, shapes=shapes)
