"""Answers of a model: printed for a person or as JSON, or written to a file."""

from __future__ import annotations

import base64
import codecs
import io
import json
import math
import textwrap
import unicodedata
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.output import printable, short, write_output
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays
    from plansmith.triton.client import Answer, Signature

_MOST_BYTES = 24
_MOST_NUMBERS = 6
_MOST_VECTORS = 10
# Bidirectional controls reorder all that follows in a line: Unicode technical report 36.
_BIDIRECTIONAL = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}


def require_output(path: Path, *, replace: bool) -> None:
    """Check that the answer's file can be written, before sending a request.

    Raises:
        UsageError: it has a suffix that we do not write, or is there already.
    """
    if path.suffix not in {".npz", ".json"}:
        raise UsageError(f"{path} is neither .npz nor .json", remedy="let the name of --output end in one of them")
    if path.exists() and not replace:
        raise UsageError(f"{path} is there already", remedy="choose another --output, or pass --force")


def print_answer(
    model: str, answer: Answer, signature: Signature, *, output: Path | None, replace: bool, as_json: bool
) -> None:
    """Print an answer, or write it to a file if one is named.

    Args:
        model: its name.
        answer: the outputs, and the version that gave them.
        signature: what the model says of its outputs.
        output: the file, which `require_output` took; None for none.
        replace: the file may be there.
        as_json: print one JSON document, beside the file too.

    Raises:
        UsageError: the file cannot be written, or has no form for the strings.
    """
    document = ""
    if as_json or (output is not None and output.suffix == ".json"):
        source = {"model": model, "version": answer.version, "requests": answer.requests}
        variant = {"variant": answer.variant} if answer.variant else {}
        document = json.dumps({**source, **variant, "outputs": json_outputs(answer.outputs, signature)})
    if output is not None:
        write_output(output, document if output.suffix == ".json" else npz_of(answer), replace=replace)
    if as_json:
        click.echo(document)
        return
    by_variant = f" of variant {answer.variant}" if answer.variant else ""
    times = f" in {answer.requests} requests" if answer.requests > 1 else ""
    click.echo(f"{model}, version {answer.version}{by_variant}, answered{times}")
    click.echo(f"written to {short(output.absolute())}" if output else format_outputs(answer.outputs, signature))


def print_pieces(answers: Iterator[Arrays], signature: Signature, *, as_json: bool) -> None:
    """Print each answer of a stream as it arrives.

    Answers of one string are the pieces of one text; others are printed one by one. As JSON each is a document on a
    line.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
    is_text = False
    for answer in answers:
        text = _only_text(answer)
        if as_json:
            click.echo(json.dumps({"outputs": json_outputs(answer, signature)}))
        elif text is not None:
            is_text = True
            click.echo(escape_controls(decoder.decode(text)), nl=False)
        else:
            click.echo(format_outputs(answer, signature))
    if is_text:
        click.echo(escape_controls(decoder.decode(b"", final=True)))


def _only_text(answer: Arrays) -> bytes | None:
    """Return the single string of a response; None if it holds more, or something else."""
    values = list(answer.values())
    if len(values) != 1 or values[0].dtype != object or values[0].size != 1:
        return None
    text: bytes = values[0].item()
    return text


def npz_of(answer: Answer) -> bytes:
    """Convert outputs to an .npz file: strings as fixed-width bytes, bfloat16 as float32, as NumPy has neither.

    Raises:
        UsageError: strings that end in a zero byte, which such a file would drop.
    """
    import numpy as np

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # numpy.savez takes no array of the name `file` or `allow_pickle`
        for name, array in answer.outputs.items():
            written = array.astype(np.bytes_) if array.dtype == object else _plain(array)
            if array.dtype == object and written.astype(object).tolist() != array.tolist():
                raise UsageError(
                    f"output {name!r} has strings that end in a zero byte, which .npz would drop",
                    remedy="name an --output .json, which has them all",
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, written, allow_pickle=False)
    return file.getvalue()


def json_outputs(outputs: Arrays, signature: Signature) -> dict[str, Any]:
    """Convert outputs to JSON values by name: nested lists; NaN and Inf as protobuf's JSON spells them.

    A string that is no UTF-8 is `{"base64": "…"}` in place of the text.
    """
    dtypes = {tensor.name: tensor.dtype for tensor in signature.outputs}
    return {
        name: {"dtype": dtypes[name], "shape": list(array.shape), "data": _json_values(_plain(array).tolist())}
        for name, array in outputs.items()
    }


def _json_values(values: Any) -> Any:
    if isinstance(values, list):
        return [_json_values(value) for value in values]
    if isinstance(values, bytes):
        try:
            return values.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(values).decode()}
    if isinstance(values, float) and not math.isfinite(values):
        return "NaN" if math.isnan(values) else "Infinity" if values > 0 else "-Infinity"
    return values


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same values with a native NumPy type."""
    import numpy as np

    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def format_outputs(outputs: Arrays, signature: Signature) -> str:
    """Format outputs for a person: a line with name, dtype and shape, and the values, which are shortened if many.

    Labels stand beside their scores: `label` and `score`, `first_labels` and `first_scores`.
    """
    dtypes = {tensor.name: tensor.dtype for tensor in signature.outputs}
    batches = signature.max_batch_size > 0
    scores = {name: score for name in outputs if (score := _score_of(name, outputs))}
    lines = []
    for name, array in outputs.items():
        if name in scores.values():
            continue
        names = [name, scores[name]] if name in scores else [name]
        lines.append("  " + " with ".join(f"{item}: {dtypes[item]} {list(outputs[item].shape)}" for item in names))
        if name in scores:
            values = _format_labels(array, outputs[scores[name]], batches=batches)
        elif array.dtype == object:
            values = "\n".join(map(_format_string, array.flat))
        else:
            values = _format_numbers(_plain(array), batches=batches)
        lines.append(textwrap.indent(values, "    "))
    return "\n".join(lines)


def escape_controls(text: str) -> str:
    """Escape what controls a terminal or reorders a line; line feeds, tabs and all that languages need stay."""
    return "".join(
        printable(c) if c in _BIDIRECTIONAL or (unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t") else c
        for c in text
    )


def _score_of(label: str, outputs: Arrays) -> str:
    """Return the name of the scores of an output of labels; empty if it has none."""
    name = label.replace("label", "score")
    if name == label or name not in outputs or outputs[label].dtype != object:
        return ""
    return name if outputs[name].shape == outputs[label].shape and outputs[name].dtype.kind in "fV" else ""


def _format_labels(labels: NDArray[Any], scores: NDArray[Any], *, batches: bool) -> str:
    """Format one line for each sample; a single one has a line for each label."""
    samples = len(labels) if batches else 1
    rows = zip(labels.reshape(samples, -1), scores.astype(float).reshape(samples, -1), strict=True)
    gap = "\n" if samples == 1 else "  "
    return "\n".join(
        gap.join(f"{score:.4f} {_format_string(label)}" for label, score in zip(*row, strict=True)) for row in rows
    )


def _format_string(item: bytes) -> str:
    """Format a string of an answer: JSON is indented, and bytes that are no text are counted and cut."""
    try:
        text = item.decode()
    except UnicodeDecodeError:
        start = escape_controls(item[:_MOST_BYTES].decode(errors="backslashreplace"))
        return f"{len(item)} bytes that are no text: {start}{'…' if len(item) > _MOST_BYTES else ''}"
    if text.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return escape_controls(text) or '""'


def _format_numbers(array: NDArray[Any], *, batches: bool) -> str:
    """Format numbers; a vector, such as an embedding, by its Euclidean norm and first and last values in one line."""
    import numpy as np

    edge = _MOST_NUMBERS // 2
    if array.dtype.kind != "f" or array.ndim != batches + 1 or array.shape[-1] <= _MOST_NUMBERS:
        return np.array2string(array, precision=6, threshold=_MOST_NUMBERS, edgeitems=edge)
    rows = array.reshape(-1, array.shape[-1]).astype(float)
    lines = [
        f"norm {np.linalg.norm(row):.4f} {np.array2string(row, precision=4, threshold=_MOST_NUMBERS, edgeitems=edge)}"
        for row in rows[:_MOST_VECTORS]
    ]
    more = len(rows) - _MOST_VECTORS
    return "\n".join([*lines, *([f"… and {more} more, which --json or --output FILE gives"] if more > 0 else [])])
