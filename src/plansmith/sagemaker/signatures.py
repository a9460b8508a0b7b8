"""Model signature behind an endpoint, from its release, archive or a file, as SageMaker does not report it."""

from __future__ import annotations

import json
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from plansmith.config.messages import validation_message
from plansmith.errors import ServedCheckError, UsageError, first_line
from plansmith.formatting import suggest_names
from plansmith.records.model import ANONYMOUS, BATCH, Dim, Record, Tensor
from plansmith.records.release import CONFIG_FILE, Manifest
from plansmith.triton.checker.archive import MOST_ENTRIES, BoundedHeader
from plansmith.triton.checker.reader import as_python_reads
from plansmith.triton.client import Signature
from plansmith.triton.client.request_inputs import checked_feed, drawn_feed
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.dtypes import (
    CONFIG_TYPES,
    STRING,
    completed_signature,
    format_dims,
    numpy_dtype,
    signature_from_config,
    signature_from_package,
)
from plansmith.triton.repository.repository import ModelRepository

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.data.reference import StoredCase
    from plansmith.records.arrays import Arrays
    from plansmith.triton.client.model_client import ModelClient


_MAX_CONFIG_BYTES = 2**20
_MAX_DIM = 2**31 - 1
_ENSEMBLE = "ensemble"
_FORM = 'write {"inputs": [{"name": …, "dtype": "float32", "dims": ["batch", 3]}], "outputs": […], "max_batch_size": 8}'

_CASES = ("single", "traced", "min", "untraced", "opt")
"""The cases of a reference in the order in which they serve as an example: small ones of usual inputs first."""


@dataclass(frozen=True)
class ServedModel:
    """Served model of an endpoint, as far as known locally.

    Attributes:
        name: of the model.
        signature: what it takes and answers.
        axis_sizes: the usual size of each axis by name, as far as known.
        manifest: of its release, where that is known.
        folder: of the release, where it is at hand.
    """

    name: str
    signature: Signature
    axis_sizes: Mapping[str, int] = field(default_factory=dict)
    manifest: Manifest | None = None
    folder: Path | None = None


def model_from_release(repository: ModelRepository, release: str) -> ServedModel:
    """Return the model of a release, MODEL[@VERSION].

    Raises:
        RepositoryError: the repository has no such release, or a damaged one.
    """
    model, number = repository.find(release)
    return _model_from_manifest(repository.manifest(model, number), repository.release(model, number))


def model_from_file(path: Path) -> ServedModel:
    """Return the model described by a file: a release manifest, a config.pbtxt, or a `Signature` as JSON.

    Raises:
        UsageError: the file cannot be read, or is none of these.
    """
    text = _read_text(path)
    if path.suffix == ".pbtxt":
        return _model_from_config(text, str(path), path.absolute().parent.name)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no JSON: {first_line(error)}", remedy=f"{_FORM}; or name a config.pbtxt"
        ) from error
    is_manifest = isinstance(document, dict) and "package" in document
    try:
        if is_manifest:
            return _model_from_manifest(Manifest.model_validate(document), path.absolute().parent)
        signature = _with_anonymous_dims(Signature.model_validate(document))
    except ValidationError as error:
        kind = "manifest of a release" if is_manifest else "signature"
        lines = [
            f"  {'.'.join(map(str, problem['loc'])) or 'it'}: {validation_message(problem)}"
            for problem in error.errors()
        ]
        raise UsageError("\n".join([f"{path} is no {kind}:", *lines]), remedy=_FORM) from None
    problems = list(_signature_problems(signature))
    if problems:
        raise UsageError("\n".join([f"{path} is no signature:", *problems]), remedy=_FORM)
    return ServedModel(path.stem, signature)


def model_from_archive(path: Path, name: str = "") -> ServedModel:
    """Return the model that an endpoint serves from an archive.

    Args:
        path: of the archive, a .tar.gz.
        name: of the model; when empty, the only one, or the only ensemble.

    Raises:
        UsageError: the archive cannot be read, or does not tell which model is meant.
    """
    configs = _read_configs(path)
    if name and name not in configs:
        raise UsageError(
            f"{path} has no model {name!r}",
            remedy=suggest_names([name], configs, otherwise="name an archive of plansmith sagemaker package"),
        )
    ensembles = [model for model, text in configs.items() if _parse(text, f"{path}: {model}").platform == _ENSEMBLE]
    candidates = [name] if name else list(configs) if len(configs) == 1 else ensembles
    if len(candidates) != 1:
        raise UsageError(
            f"{path} holds several models: {', '.join(sorted(configs))}",
            remedy="name the one that the endpoint serves: --model NAME",
        )
    return _model_from_config(configs[candidates[0]], f"{path}: {candidates[0]}/{CONFIG_FILE}", candidates[0])


def _model_from_manifest(manifest: Manifest, folder: Path) -> ServedModel:
    """Return the model of a release; the configuration adds details, and a manifest may come without one."""
    signature, config = signature_from_package(manifest.package), folder / CONFIG_FILE
    axis_sizes = {axis: sizes.opt for axis, sizes in manifest.onnx.axes.items()}
    if not config.is_file():
        return ServedModel(manifest.name, signature, axis_sizes, manifest)
    signature = completed_signature(signature, _parse(_read_text(config), str(config)))
    return ServedModel(manifest.name, signature, axis_sizes, manifest, folder)


def _model_from_config(text: str, place: str, folder_name: str) -> ServedModel:
    config = _parse(text, place)
    if not config.input or not config.output:
        raise UsageError(
            f"{place} does not tell inputs and outputs, which Triton completes when it loads the model",
            remedy=f"name the model's release, or a JSON file (--interface): {_FORM}",
        )
    return ServedModel(config.name or folder_name, signature_from_config(config))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}", remedy="name a file that is there and readable") from error


def _parse(text: str, place: str) -> Any:
    from google.protobuf.text_format import ParseError

    try:
        return parse_config(as_python_reads(text))
    except (ParseError, ValueError) as error:
        raise UsageError(
            f"{place} is no configuration that Triton reads: {first_line(error)}", remedy="plansmith check tells more"
        ) from error


def _with_anonymous_dims(signature: Signature) -> Signature:
    """Return a hand-written signature, in which -1 is a dynamic dim as in Triton."""

    def rename(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            tensor.model_copy(update={"dims": tuple(ANONYMOUS if dim == -1 else dim for dim in tensor.dims)})
            for tensor in tensors
        )

    return signature.model_copy(update={"inputs": rename(signature.inputs), "outputs": rename(signature.outputs)})


def _signature_problems(signature: Signature) -> Iterator[str]:
    """Yield what is invalid in any signature, a line each."""
    if signature.max_batch_size < 0:
        yield f"  max_batch_size: {signature.max_batch_size} is no number of samples"
    for tensors in (signature.inputs, signature.outputs):
        names = [tensor.name for tensor in tensors]
        yield from (f"  {name}: the name is used twice" for name in sorted(set(names)) if names.count(name) > 1)
    for tensor in (*signature.inputs, *signature.outputs):
        if tensor.dtype not in CONFIG_TYPES:
            yield f"  {tensor.name}: {tensor.dtype!r} is no dtype: choose from {', '.join(CONFIG_TYPES)}"
        if not tensor.name.isprintable():
            yield f"  {tensor.name!r}: no such name can be sent"
        for dim in tensor.dims:
            if isinstance(dim, int) and not 0 < dim <= _MAX_DIM:
                yield f"  {tensor.name}: {dim} is no size of a dim; -1 is one that is free"
        if signature.max_batch_size and tensor.dims[:1] != (BATCH,):
            yield f"  {tensor.name}: its first dim must be {BATCH!r}, as max_batch_size is {signature.max_batch_size}"


def _read_configs(path: Path) -> dict[str, str]:
    """Read the configurations of the models in an archive, by top-level folder, without unpacking it.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    configs = {}
    try:
        with tarfile.open(path, "r:gz", tarinfo=BoundedHeader) as archive:
            for number, entry in enumerate(archive):
                if number == MOST_ENTRIES:
                    raise tarfile.ReadError(f"it has more than {MOST_ENTRIES:,} entries")
                parts = Path(entry.name).parts
                if len(parts) == 2 and parts[1] == CONFIG_FILE and entry.isfile() and entry.size <= _MAX_CONFIG_BYTES:
                    content = archive.extractfile(entry)
                    assert content is not None
                    configs[parts[0]] = content.read().decode()
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}", remedy="name a .tar.gz archive") from error
    if not configs:
        raise UsageError(
            f"{path} holds no model: no folder of its root has a {CONFIG_FILE}",
            remedy="name an archive of plansmith sagemaker package",
        )
    return configs


@dataclass(frozen=True)
class Example:
    """Example request.

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
    """Result of a correctly answered example request.

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
    """Return a small request stored in the release; a random one if it has none, or is unknown."""
    return stored_example(model) or Example(
        "a random request", drawn_feed(model.signature, sizes={**model.axis_sizes, BATCH: 1})
    )


def stored_example(model: ServedModel) -> Example | None:
    """Return a small stored request of the release with its answer; None if it has none, or is unknown."""
    if model.manifest is None or model.folder is None:
        return None
    try:
        return next(_stored_examples(model.manifest, model.folder), None)
    except FileNotFoundError:  # a manifest and a configuration without the rest of their release
        return None


def check_example(client: ModelClient, model: ServedModel) -> ExampleResult:
    """Send a model's example request and check the answer.

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
    """Return the requests stored in a release, best first: raw ones if a pipeline or script takes these."""
    from plansmith.steps.release.check_served import incomparable_reason, release_requests

    requests = release_requests(manifest, folder)
    for raw in requests.raw[:1]:
        skipped = manifest.script.refused if manifest.script is not None else ()
        questions = raw.questions()
        for question in sorted(
            questions.questions, key=lambda question: (_says_little(question.expected), _bytes_of(question.feed))
        ):
            if question.name not in skipped:
                judge = partial(questions.judge, question.name, question.expected)
                yield Example(
                    f"the request {question.name!r} of its release", question.feed, frozenset(question.expected), judge
                )
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
    """Whether almost any weights would give the same response: empty texts and lists."""
    return all(
        array.dtype == object and not b"".join(map(_bytes, array.flat)).strip(b"[]{} ") for array in answer.values()
    )


def _bytes(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def _bytes_of(arrays: Arrays) -> int:
    return sum(sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays.values())


def _tolerance_failures(case: StoredCase, manifest: Manifest, answer: Arrays) -> Sequence[str]:
    """Yield where a response exceeds the tolerances of the release's accuracy gate."""
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
    """Yield where a response violates the signature, a line each; expected numbers are compared elsewhere."""
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
            size_text = ", ".join(f"{dim} is {sizes[dim]}" for dim in tensor.dims if dim in sizes)
            yield (
                f"output {tensor.name!r} has the shape {list(array.shape)}, and should have {format_dims(tensor.dims)}"
                + f", where {size_text}" * bool(size_text)
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
