"""Random inputs, for a model of which only the signature is known."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plansmith.data.synthetic import sample_texts
from plansmith.loadtest.payloads.sizes import SizeMix, draw_size
from plansmith.records.model import ANONYMOUS, BATCH, AxisRange
from plansmith.triton.client.dtypes import STRING, Signature
from plansmith.triton.client.random_inputs import drawn_feed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_UNKNOWN = AxisRange(min=8, opt=8, max=64, step=8)
"""A dynamic dim of unknown range: multiples of what networks halve and cut into patches."""

_WORDS = AxisRange(min=4, opt=16, max=128)
"""Words of a text."""


def random_inputs(
    signature: Signature,
    mix: SizeMix,
    *,
    axes: Mapping[str, AxisRange] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[Arrays]:
    """Requests of mixed sizes, without end: random numbers, and sentences that come with plansmith.

    Args:
        signature: what the model takes.
        mix: how sizes are drawn; a batch is at most the signature's largest.
        axes: known ranges of dims by name.
        shapes: fixed shapes of inputs, batch included.

    Raises:
        UsageError: a shape that the model does not take.
    """
    generator, known = mix.generator(), dict(axes or {})
    largest = signature.max_batch_size or 1
    batch = known.get(BATCH, AxisRange(min=1, opt=1, max=largest))
    known[BATCH] = AxisRange(min=1, opt=1, max=min(batch.max, largest))
    dims = {dim for tensor in signature.inputs for dim in tensor.dims if isinstance(dim, str)}
    while True:
        sizes = {dim: draw_size(generator, known.get(dim, _UNKNOWN)) for dim in sorted(dims - {BATCH})}
        sizes[BATCH] = mix.draw_batch(generator, known[BATCH])
        fixed = dict(shapes or {})
        if ANONYMOUS in sizes and not fixed:
            fixed = _anonymous_shapes(signature, sizes)
        arrays = drawn_feed(signature, shapes=fixed, sizes=sizes, seed=generator.getrandbits(32))
        yield _with_sentences(signature, arrays, generator)


def _anonymous_shapes(signature: Signature, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shapes of all inputs with unnamed dims: of one size, as nothing tells which belong together."""
    return {
        tensor.name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims)
        for tensor in signature.inputs
        if ANONYMOUS in tensor.dims and tensor.name not in signature.optional
    }


def _with_sentences(signature: Signature, arrays: dict[str, NDArray[Any]], generator: random.Random) -> Arrays:
    """Sentences in place of random letters."""
    import numpy as np

    for tensor in signature.inputs:
        if tensor.dtype == STRING and tensor.name in arrays:
            shape = arrays[tensor.name].shape
            counts = [draw_size(generator, _WORDS) for _ in range(int(np.prod(shape)))]
            texts = [sample_texts(1, count, offset=generator.randrange(1000))[0].strip() for count in counts]
            arrays[tensor.name] = np.array([text.encode() for text in texts], dtype=object).reshape(shape)
    return arrays
