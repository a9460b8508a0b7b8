"""What `plansmith infer` is given, as a feed: values, texts and files that were named, and inputs to draw."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.cli.infer.inputs import SUFFIXES, read_document, read_value
from plansmith.cli.infer.raw import STANDARD_INPUT, Rows, raw_feed, read_rows, rows_by_input
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.records.model import Tensor
    from plansmith.triton.client import Signature

_SHAPE = re.compile(r"[1-9]\d*(x[1-9]\d*)*")


@dataclass(frozen=True)
class Typed:
    """A value on the command line that is no file: what it is depends on the input's dtype."""

    text: str


@dataclass(frozen=True)
class InputArguments:
    """What a person said about the inputs, with all files read; nothing is asked of a model yet.

    Args:
        values: by input.
        rows: texts, lines and files.
        shapes: of drawn inputs.
        draw: those that are not given.
    """

    values: Mapping[str, object]
    rows: Sequence[Rows]
    shapes: Mapping[str, tuple[int, ...]]
    draw: bool

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was said."""
        return not (self.values or self.rows or self.draw)

    def feed(self, signature: Signature, sizes: Mapping[str, int]) -> dict[str, object]:
        """What is sent to a model.

        A value of one dim less than the input's is one sample, and gets its batch; a single number or text, all dims.

        Args:
            signature: what the model takes.
            sizes: the usual ones of axes, for drawn inputs.

        Raises:
            UsageError: nothing is given, or not as the model has it.
        """
        from plansmith.records.model import BATCH
        from plansmith.triton.client.random_inputs import drawn_feed

        if self.is_empty:
            raise UsageError(
                f"no input is given. The model has:\n{signature.words()}", remedy=f"pass {_example(signature)}"
            )
        feed = self._given(signature)
        if not self.draw:
            return feed
        shapes = shapes_of_arguments(signature, feed) | dict(self.shapes)
        return {**drawn_feed(signature, shapes=shapes, sizes={**sizes, BATCH: 1}), **feed}

    def names(self, signature: Signature, count: int) -> list[str]:
        """What a person knows each of so many rows by: the text or file given for it; none where several are."""
        by_input: dict[str, list[str]] = {}
        for one in rows_by_input(signature, self.rows):
            by_input.setdefault(one.name, []).extend(one.shown)
        fitting = [names for names in by_input.values() if len(names) == count]
        return fitting[0] if len(fitting) == 1 else []

    def _given(self, signature: Signature) -> dict[str, object]:
        strings = {tensor.name for tensor in signature.inputs if tensor.dtype == "string"}
        feed = {
            name: _typed(name, value.text, is_string=name in strings) if isinstance(value, Typed) else value
            for name, value in self.values.items()
        }
        batches = signature.max_batch_size > 0
        for tensor in signature.inputs:
            if tensor.name in feed:
                feed[tensor.name] = _whole(tensor, feed[tensor.name], batches=batches)
        raw = raw_feed(signature, self.rows)
        for name in raw:
            if name in feed:
                raise _twice(name)
        return {**feed, **raw}


def read_input_arguments(
    inputs: Sequence[str], document: str | None, rows: Sequence[Sequence[str]], shapes: Sequence[str], *, draw: bool
) -> InputArguments:
    """What was said, with its files.

    Args:
        inputs: each NAME=VALUE; VALUE is a file (.npy, .npz, .json), - for JSON on standard input, JSON, numbers with
            commas between them, or of an input of strings the text itself.
        document: a file with the values of several inputs as JSON, by name or as a request of KServe's protocol.
        rows: texts, files of lines and files, as `read_rows` takes them.
        shapes: each NAME=SIZES.
        draw: the inputs that are not given.

    Raises:
        UsageError: another form, a file that cannot be read, an input that is given twice.
    """
    if shapes and not draw:
        raise UsageError("--shape is for drawn inputs", remedy="pass --random, or leave it out")
    texts, lines, files = rows
    places = [*(text.partition("=")[2] for text in inputs), *(given.rpartition("=")[2] for given in lines)]
    if [*places, document].count(STANDARD_INPUT) > 1:
        raise UsageError("standard input is to be read twice", remedy="give it once, and name files for the rest")
    read = read_rows(texts, lines, files)
    values = {} if document is None else read_document(document)
    for text in inputs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--input {text!r} is not NAME=VALUE", remedy="write it like --input input_ids=1,2,3")
        if name in values:
            raise _twice(name)
        is_file = value == STANDARD_INPUT or Path(value).suffix in SUFFIXES
        values[name] = read_value(name, value) if is_file else Typed(value)
    return InputArguments(values, read, read_shapes(shapes), draw)


def require_inputs(signature: Signature, feed: Mapping[str, object]) -> None:
    """See that no input is missing, of a model whose server has told which may be left out.

    Raises:
        UsageError: one is; says how to give it.
    """
    from plansmith.triton.client.dtypes import format_dims
    from plansmith.triton.client.request_inputs import missing_inputs

    missing = [tensor for tensor in signature.inputs if tensor.name in missing_inputs(signature, feed)]
    if not missing or not feed.keys() <= {tensor.name for tensor in signature.inputs}:
        return  # the client tells of a wrong name with what it may be meant for
    told = "\n".join(f"input {t.name!r} is missing: it takes {t.dtype} {format_dims(t.dims)}" for t in missing)
    words = " ".join(f'--text {t.name}="…"' if t.dtype == "string" else f"--input {t.name}=VALUE" for t in missing)
    drawn = "" if any(t.dtype == "string" for t in missing) else ", or --random to have drawn what is not given"
    raise UsageError(f"{told}\nThe model has:\n{signature.words()}", remedy=f"pass {words}, too{drawn}")


def _twice(name: str) -> UsageError:
    return UsageError(f"input {name!r} is given twice", remedy="give each input once")


def _example(signature: Signature) -> str:
    """What could be typed for a model."""
    needed = [tensor for tensor in signature.inputs if tensor.name not in signature.optional]
    strings = [tensor.name for tensor in needed if tensor.dtype == "string"]
    if len(strings) == len(needed) == 1:
        return '--text "…", --lines FILE or --file FILE'
    if strings and len(strings) == len(needed):
        return " ".join(f'--text {name}="…"' for name in strings)
    return "--input NAME=VALUE or --random"


def shapes_of_arguments(signature: Signature, feed: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The shapes of what is given, which drawn inputs follow; of what the model will refuse, none."""
    import numpy as np

    from plansmith.triton.client.random_inputs import fits

    found = {}
    for tensor in signature.inputs:
        value: Any = feed.get(tensor.name)
        with suppress(ValueError):
            if value is not None and fits(tensor, np.shape(value)):
                found[tensor.name] = np.shape(value)
    return found


def read_shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of drawn inputs: each NAME=4x64, batch first.

    Raises:
        UsageError: another form.
    """
    found = {}
    for text in given:
        name, _, shape = text.partition("=")
        if not name or not _SHAPE.fullmatch(shape):
            raise UsageError(f"--shape {text!r} is not NAME=SIZES", remedy="write it like --shape input_ids=4x64")
        found[name] = tuple(int(size) for size in shape.split("x"))
    return found


def _typed(name: str, text: str, *, is_string: bool) -> object:
    if is_string and not text.startswith(("[", '"')):
        return text
    for form in (text, f"[{text}]"):
        with suppress(ValueError, RecursionError):
            found: object = json.loads(form)
            return found
    raise UsageError(
        f"--input {name}={text} is neither a file nor numbers",
        remedy=f"write it like {name}=1,2,3 or {name}='[[1, 2], [3, 4]]', or name a .npy, .npz or .json file",
    )


def _whole(tensor: Tensor, value: Any, *, batches: bool) -> object:
    """The value with its batch; what is no array, or has still other dims, stays for the client to refuse."""
    import numpy as np

    try:
        rank = np.ndim(value)
    except ValueError:
        return value
    lacking = len(tensor.dims) - rank
    if rank and (lacking != 1 or not batches):
        return value
    if isinstance(value, np.ndarray):
        return value.reshape((1,) * lacking + value.shape)
    for _ in range(lacking):
        value = [value]
    return value
