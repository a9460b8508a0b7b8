"""One request to a model behind an endpoint, of its release or random, and the check of the whole answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import ServedCheckError
from plansmith.records.model import ANONYMOUS, BATCH, Dim, Record, Tensor
from plansmith.sagemaker.signatures import ServedModel
from plansmith.triton.client.dtypes import STRING, format_dims, numpy_dtype
from plansmith.triton.client.random_inputs import drawn_feed
from plansmith.triton.client.request_inputs import checked_feed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.data.reference import StoredCase
    from plansmith.records.release import Manifest
    from plansmith.triton.client import Signature
    from plansmith.triton.client.model_client import ModelClient

    Arrays = Mapping[str, NDArray[Any]]

_CASES = ("single", "traced", "min", "untraced", "opt")
"""The cases of a reference in the order in which they serve as an example: small ones of usual inputs first."""


@dataclass(frozen=True)
class Example:
    """A request.

    Attributes:
        name: of the request, for messages.
        feed: the inputs.
        expected_outputs: the outputs of which the release holds the answer; none of a random request.
        failures: what is wrong with an answer, a line each.
    """

    name: str
    feed: Arrays
    expected_outputs: frozenset[str] = frozenset()
    failures: Callable[[Arrays], Sequence[str]] = lambda _: ()


class ExampleResult(Record):
    """A request that was answered as it should be.

    Attributes:
        request: its name.
        compared: whether the answer was compared with that of the release.
        version: of the model that answered.
        variant: the production variant that answered.
        seconds: from the request to the answer.
        shapes: of the outputs.
    """

    request: str
    compared: bool
    version: str
    variant: str
    seconds: float
    shapes: dict[str, tuple[int, ...]]


def example_for(model: ServedModel) -> Example:
    """A small request that the release holds; a random one where it holds none, or is not known."""
    return stored_example(model) or Example(
        "a random request", drawn_feed(model.signature, sizes={**model.axis_sizes, BATCH: 1})
    )


def stored_example(model: ServedModel) -> Example | None:
    """A small request that the release holds with its answer; None where it holds none, or is not known."""
    if model.manifest is None or model.folder is None:
        return None
    try:
        return next(_stored_examples(model.manifest, model.folder), None)
    except FileNotFoundError:  # a manifest and a configuration without the rest of their release
        return None


def check_example(client: ModelClient, model: ServedModel) -> ExampleResult:
    """Send the example of a model, and check the answer.

    The outputs must have the dtypes and shapes of the signature, and finite numbers; where the release holds the
    answer, they must be within the tolerances of its gate.

    Args:
        client: of the model; not closed here.
        model: what is known of it.

    Raises:
        ServedCheckError: the answer is wrong, with everything that is; or the model refuses the request.
        EnvironmentFault: the endpoint is not reached, not ready, or not in time.
    """
    example, signature = example_for(model), model.signature
    feed = checked_feed(signature, example.feed)
    started = time.monotonic()
    answer = client.ask(feed)
    seconds = time.monotonic() - started
    problems = list(_signature_failures(signature, feed, answer.outputs, example.expected_outputs))
    if not problems:
        problems = list(example.failures(answer.outputs))
    if problems:
        raise ServedCheckError(
            "\n".join([f"the answer of {model.name} to {example.name} is wrong:", *(f"  {line}" for line in problems)]),
            remedy="check that the endpoint serves the release that is named, on what it was compiled for",
            model=model.name,
        )
    return ExampleResult(
        request=example.name,
        compared=bool(example.expected_outputs),
        version=answer.version,
        variant=answer.variant,
        seconds=round(seconds, 4),
        shapes={name: array.shape for name, array in answer.outputs.items()},
    )


def _stored_examples(manifest: Manifest, folder: Path) -> Iterator[Example]:
    """The requests that a release holds, the best first: raw ones, where a pipeline or script takes these."""
    from plansmith.steps.release.check_served import incomparable_reason, release_requests

    requests = release_requests(manifest, folder)
    for raw in requests.raw[:1]:
        skipped = manifest.script.refused if manifest.script is not None else ()
        questions = raw.questions()
        for one in sorted(questions.questions, key=lambda one: (_says_little(one.expected), _bytes_of(one.feed))):
            if one.name not in skipped:
                judge = partial(questions.judge, one.name, one.expected)
                yield Example(f"the request {one.name!r} of its release", one.feed, frozenset(one.expected), judge)
    if not requests.raw and incomparable_reason(manifest, folder) is None:
        for case in sorted(requests.cases(), key=lambda case: _CASES.index(case.name)):
            is_whole = len(case.rows) == len(next(iter(case.feed.values())))
            if is_whole and requests.is_taken(case.feed):
                yield Example(
                    f"the request {case.name!r} of its release",
                    case.feed,
                    frozenset(case.answer),
                    partial(_tolerance_failures, case, manifest),
                )


def _says_little(answer: Arrays) -> bool:
    """Whether an answer would be the same of almost any weights: empty texts and lists."""
    return all(
        array.dtype == object and not b"".join(map(_bytes, array.flat)).strip(b"[]{} ") for array in answer.values()
    )


def _bytes(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def _bytes_of(arrays: Arrays) -> int:
    return sum(sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays.values())


def _tolerance_failures(case: StoredCase, manifest: Manifest, answer: Arrays) -> Sequence[str]:
    """Where an answer is outside the tolerances of the release's gate."""
    from plansmith.validation.comparison import Padding, compare_output

    interface = manifest.package.interface
    padding = Padding(interface.inputs, manifest.onnx.mask_input)
    comparisons = [
        compare_output(
            case.name,
            tensor.name,
            case.answer[tensor.name],
            answer[tensor.name],
            manifest.validation.tolerances[tensor.name],
            valid=padding.valid(tensor, case.feed),
        )
        for tensor in interface.outputs
    ]
    return [f"output {one.output!r}: {failure}" for one in comparisons for failure in one.failures]


def _signature_failures(
    signature: Signature, feed: Arrays, outputs: Arrays, expected_outputs: frozenset[str]
) -> Iterator[str]:
    """Where an answer is not what the signature says, a line each; expected numbers are compared elsewhere."""
    sizes: dict[Dim, int] = {}
    for tensor in signature.inputs:
        if tensor.name in feed:
            sizes |= dict(zip(tensor.dims, feed[tensor.name].shape, strict=True))
    sizes.pop(ANONYMOUS, None)
    for tensor in signature.outputs:
        array = outputs[tensor.name]
        if array.dtype != numpy_dtype(tensor.dtype):
            yield f"output {tensor.name!r} is {array.dtype}, and should be {tensor.dtype}"
        elif not _has_shape(tensor, array.shape, sizes):
            known = ", ".join(f"{dim} is {sizes[dim]}" for dim in tensor.dims if dim in sizes)
            yield (
                f"output {tensor.name!r} has the shape {list(array.shape)}, and should have {format_dims(tensor.dims)}"
                + f", where {known}" * bool(known)
            )
        elif tensor.name not in expected_outputs and not _is_finite(tensor, array):
            yield f"output {tensor.name!r} has numbers that are not finite"


def _has_shape(tensor: Tensor, shape: tuple[int, ...], sizes: Mapping[Dim, int]) -> bool:
    return len(shape) == len(tensor.dims) and all(
        size == (dim if isinstance(dim, int) else sizes.get(dim, size))
        for dim, size in zip(tensor.dims, shape, strict=True)
    )


def _is_finite(tensor: Tensor, array: NDArray[Any]) -> bool:
    import numpy as np

    if tensor.dtype == STRING or array.dtype.kind in "biu":
        return True
    return bool(np.isfinite(array.astype(np.float64)).all())
