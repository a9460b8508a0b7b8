"""The formats of TensorRT, element by element as its documentation places them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from plansmith.compilers.trt.api.run import packed, unpacked
from plansmith.errors import EngineError

GROUPED = {"CHW2": 2, "CHW4": 4, "CHW16": 16, "CHW32": 32}
LAST = {"HWC": 5, "HWC8": 8, "HWC16": 16}


def image(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("form", GROUPED)
def test_channels_lie_in_groups(form: str) -> None:
    array, group = image(2, 5, 3, 4), GROUPED[form]
    lying = packed(array, form)
    assert lying.shape == (2, -(-5 // group), 3, 4, group)
    for n, c, h, w in itertools.product(*map(range, array.shape)):
        assert lying[n, c // group, h, w, c % group] == array[n, c, h, w]
    assert np.count_nonzero(lying) == array.size


@pytest.mark.parametrize("form", LAST)
def test_channels_lie_last(form: str) -> None:
    """Channels lie last and are filled up."""
    array = image(2, 5, 3, 4)
    lying = packed(array, form)
    assert lying.shape == (2, 3, 4, LAST[form])
    for n, c, h, w in itertools.product(*map(range, array.shape)):
        assert lying[n, h, w, c] == array[n, c, h, w]
    assert np.count_nonzero(lying) == array.size


@pytest.mark.parametrize("form", ["LINEAR", *GROUPED, *LAST, "DHWC", "DHWC8", "CDHW32"])
def test_layout_round_trip(form: str) -> None:
    """What was laid out comes back, whatever follows it in memory."""
    array = image(2, 5, 3, 4, 6)
    lying = packed(array, form)
    assert lying.flags.c_contiguous
    memory = np.concatenate([lying.reshape(-1), np.full(7, np.nan, np.float32)])
    back = unpacked(memory, array.shape, form)
    np.testing.assert_array_equal(back, array)
    assert not np.shares_memory(back, memory)


def test_volume_channels_precede_depth() -> None:
    """Volumes have their channels before depth."""
    array = image(2, 5, 3, 4, 6)
    assert packed(array, "CDHW32").shape == (2, 1, 3, 4, 6, 32)
    assert packed(array, "DHWC8").shape == (2, 3, 4, 6, 8)


@pytest.mark.parametrize(("form", "shape"), [("DLA_HWC4", (1, 3, 2, 2)), ("HWC8", (4, 8)), ("CDHW32", (3, 2, 2))])
def test_foreign_format_refused(form: str, shape: tuple[int, ...]) -> None:
    """A format of another accelerator or of too few dimensions is refused."""
    with pytest.raises(EngineError, match=form) as raised:
        packed(image(*shape), form)
    assert raised.value.remedy
    with pytest.raises(EngineError, match=form):
        unpacked(image(64), shape, form)
