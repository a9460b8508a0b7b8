"""One sample as read, before a tokenizer or processor turns it into arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import IMAGE, LABEL, ROLES, TEXT, TEXT_PAIR
from plansmith.errors import SourceError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


DIGEST_DIGITS = 16

# Two texts that belong together, then a single one, as the data sets of the hub name them.
_PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("text1", "text2"),
    ("premise", "hypothesis"),
    ("question", "context"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("query", "passage"),
    ("query", "document"),
    ("anchor", "positive"),
)
_TEXTS = (
    *("text", "sentence", "sentence1", "sentence_1", "content", "review", "document", "query", "question", "premise"),
    *("tokens", "words", "title", "utterance", "tweet", "article", "body", "comment", "prompt"),
)
_IMAGES = ("image", "img", "images", "image_path", "file_name", "filename", "file_path", "filepath", "path", "file")
_LABELS = (
    *("label", "labels", "target", "targets", "score", "similarity_score", "similarity", "class", "category"),
    *("answers", "answer", "ner_tags", "tags", "pos_tags", "fine_label", "coarse_label", "y"),
)


@dataclass(frozen=True)
class Sample:
    """Sample: the contents of one row of the data.

    Args:
        row: its place in the data, from 0.
        values: by role or input: text or a list of words; an image as a path, bytes, PIL's or an array; numbers.
        label: as it was read; None where there is none.
        digest: of the values, without the label: two samples with the same inputs are one, whatever they are called.
    """

    row: int
    values: Mapping[str, Any]
    label: Any
    digest: str


def make_sample(row: int, values: Mapping[str, Any], label: Any = None) -> Sample:
    """Build a sample with its digest.

    Raises:
        OSError: an image file cannot be read.
    """
    digest = hashlib.sha256()
    for name in sorted(values):
        _add(digest, name)
        _add(digest, values[name])
    return Sample(row, values, label, digest.hexdigest()[:DIGEST_DIGITS])


def changing(name: str) -> SourceError:
    """Return the error for data that changed between two reads."""
    return SourceError(
        f"{name} yields other samples each time", remedy="seed it, or let nothing write to it while it is read"
    )


def extent(sample: Sample) -> int:
    """Return a sample's length for sorting: characters of its texts, elements of its arrays."""
    return sum(_size(value) for value in sample.values.values())


def halves(sample: Sample) -> tuple[Sample, Sample]:
    """Split a text pair into two samples, each with the pair's row and digest; the first keeps the label."""
    first = Sample(sample.row, {TEXT: sample.values[TEXT]}, sample.label, sample.digest)
    return first, Sample(sample.row, {TEXT: sample.values[TEXT_PAIR]}, None, sample.digest)


def digest_of_array(array: NDArray[np.generic]) -> bytes:
    """Return the digest of dtype, shape and values."""
    import numpy as np

    head = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).digest()


def _add(digest: Any, value: Any) -> None:
    """Add one value to a digest with its kind and length as prefix, so that values cannot run together."""
    kind, content = _bytes_of(value)
    digest.update(f"{kind}{len(content)}:".encode() + content)


def _bytes_of(value: Any) -> tuple[str, bytes]:
    if isinstance(value, Path):
        return "b", value.read_bytes()
    if isinstance(value, bytes):
        return "b", value
    if isinstance(value, str):
        return "s", value.encode(errors="surrogatepass")
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # an image of PIL
        return "i", f"{value.mode}{value.size}".encode() + value.tobytes()
    if hasattr(value, "dtype"):
        return "a", digest_of_array(value)
    return "j", json.dumps(value, sort_keys=True, default=_listed).encode()


def _listed(value: Any) -> Any:
    """Convert NumPy numbers and arrays in a list, which JSON cannot encode."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return sum(_size(v) for v in value)
    return int(getattr(value, "size", 1)) if hasattr(value, "dtype") else 1


@dataclass(frozen=True)
class Takes:
    """Input kinds that a model accepts.

    Args:
        roles: of text, text_pair and image, what its own tokenizer or processor takes.
        inputs: the names of its inputs, the first being the main one.
        optional: inputs that can be made from the others, such as the mask of padding.
    """

    roles: tuple[str, ...]
    inputs: tuple[str, ...]
    optional: tuple[str, ...] = ()


def choose_columns(columns: Sequence[str], mapping: Mapping[str, str], takes: Takes, name: str) -> dict[str, str]:
    """Choose the data column of every role and input.

    Args:
        columns: those there are.
        mapping: what the spec says: role or input to column.
        takes: what the model can be fed with.
        name: of the data, for errors.

    Raises:
        UsageError: a role or column that there is not, or nothing to feed the model with.
    """
    _require_known(columns, mapping, takes, name)
    free = [c for c in columns if c not in takes.inputs]
    label = {LABEL: mapping[LABEL]} if LABEL in mapping else _first(LABEL, _LABELS, free)
    chosen = {role: column for role, column in mapping.items() if role != LABEL}
    left = [c for c in columns if c not in label.values()]
    chosen = chosen or _inputs(left, takes) or _usual(left, takes)
    if not chosen:
        raise UsageError(
            f"data: none of the columns of {name} is known to hold {_expectation(takes)}: it has {', '.join(columns)}",
            remedy=_example(left or columns, takes),
        )
    missing = [i for i in takes.inputs if i not in {*chosen, *takes.optional}] if _is_direct(chosen, takes) else []
    if missing:
        raise UsageError(
            f"data: {name} has no column for the input {', '.join(missing)}: it has {', '.join(columns)}",
            remedy="name it after the input, or say which it is under `columns`",
        )
    return chosen | {role: column for role, column in label.items() if column not in chosen.values()}


def _require_known(columns: Sequence[str], mapping: Mapping[str, str], takes: Takes, name: str) -> None:
    able = (*takes.roles, *takes.inputs, LABEL)
    for role, column in mapping.items():
        if role not in able:
            remedy = f"under `columns`, write one of {', '.join(dict.fromkeys(able))} before the colon"
            message = f"the model takes no {role}" if role in ROLES else f"the model has no input {role!r}"
            raise UsageError(f"data: columns: {message}", remedy=remedy)
        if column not in columns:
            raise UsageError(
                f"data: columns: {name} has no column {column!r} for {role}", remedy=f"it has {', '.join(columns)}"
            )
    if TEXT_PAIR in mapping and TEXT not in mapping:
        raise UsageError("data: columns: a text_pair needs a text beside it", remedy="say which column is the text")
    if mapping and not mapping.keys() - {LABEL}:
        return
    if mapping and _is_direct(mapping, takes) and set(mapping) & set(ROLES[:3]):
        raise UsageError(
            "data: columns: give either texts and images or the values of inputs, not both", remedy="leave one out"
        )


def _is_direct(chosen: Mapping[str, str], takes: Takes) -> bool:
    return any(role in takes.inputs for role in chosen)


def _inputs(columns: Sequence[str], takes: Takes) -> dict[str, str]:
    """Return columns named like the model's inputs, if a required input is among them."""
    mapping = {name: name for name in takes.inputs if name in columns}
    return mapping if mapping.keys() - set(takes.optional) else {}


def _usual(columns: Sequence[str], takes: Takes) -> dict[str, str]:
    """Match columns by the usual names; a single column needs none."""
    by_name = {column.casefold(): column for column in columns}
    if TEXT_PAIR in takes.roles:
        pair = next((p for p in _PAIRS if set(p) <= by_name.keys()), None)
        if pair:
            return {TEXT: by_name[pair[0]], TEXT_PAIR: by_name[pair[1]]}
    main = next((role for role in (TEXT, IMAGE) if role in takes.roles), "")
    mapping = _first(main, _TEXTS if main == TEXT else _IMAGES, columns) if main else {}
    needed = [name for name in takes.inputs if name not in takes.optional]
    if not mapping and len(columns) == 1 and (main or len(needed) == 1):
        mapping = {main or needed[0]: columns[0]}
    return mapping


def _first(role: str, names: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    by_name = {column.casefold(): column for column in columns}
    return next(({role: by_name[n]} for n in names if n in by_name), {})


def _expectation(takes: Takes) -> str:
    """Describe the expected columns."""
    if TEXT in takes.roles:
        pairs = ", ".join(" + ".join(pair) for pair in _PAIRS[1:5])
        return f"text ({', '.join(_TEXTS[:8])}, …) or two texts ({pairs}, …)"
    if IMAGE in takes.roles:
        return f"images ({', '.join(_IMAGES[:5])}, …)"
    return f"the model's input {' and '.join(n for n in takes.inputs if n not in takes.optional)}"


def _example(columns: Sequence[str], takes: Takes) -> str:
    role = next(iter((*takes.roles, *takes.inputs)), "input")
    column = next((c for c in columns if c not in takes.inputs), columns[0])
    return f"say which it is in the spec:\n  data:\n    columns: {{{role}: {column}}}"
