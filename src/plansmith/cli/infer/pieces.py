"""`plansmith infer --stream`: what a decoupled model answers, printed as it comes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.infer.answer import document_of
from plansmith.cli.infer.layout import safe
from plansmith.cli.infer.shown import Sheet, shown_outputs
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.triton.client import Signature

    Arrays = Mapping[str, NDArray[Any]]


def require_streamable(asked: Mapping[str, Any], output: Path | None, repeat: int | None) -> None:
    """See that what was asked for can come in pieces.

    Raises:
        UsageError: it cannot.
    """
    from plansmith.system.urls import read_address

    protocol = asked["protocol"] or (read_address(asked["url"]).protocol if "://" in (asked["url"] or "") else "grpc")
    if protocol != "grpc":
        raise UsageError("answers come in pieces over gRPC alone", remedy="pass --protocol grpc, or a --url grpc://…")
    if output is not None or repeat is not None:
        what = "--output" if output is not None else "--repeat"
        raise UsageError(f"{what} is for whole answers, and --stream for pieces", remedy="leave one of the two out")


def print_pieces(answers: Iterator[Arrays], signature: Signature, *, as_json: bool, width: int | None) -> None:
    """Print each answer when it comes.

    The pieces of a text become one text; where an answer is more than that, each is shown for itself. As JSON each is
    one document on a line of its own.

    Args:
        answers: what the model gives.
        signature: what it says of its outputs.
        as_json: print JSON.
        width: cells of a line of the terminal; None where there is none.
    """
    dtypes = {tensor.name: tensor.dtype for tensor in signature.outputs}
    decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
    is_text = False
    for answer in answers:
        text = _only_text(answer)
        if as_json:
            click.echo(json.dumps({"outputs": document_of(answer, signature)}))
        elif text is not None:
            is_text = True
            click.echo("\n".join(map(safe, decoder.decode(text).split("\n"))), nl=False)
        else:
            sheet = Sheet(width, batches=signature.max_batch_size > 0)
            click.echo("\n".join(shown_outputs(answer, dtypes, sheet, values=True)))
    if is_text:
        click.echo(safe(decoder.decode(b"", final=True)))


def _only_text(answer: Arrays) -> bytes | None:
    """The one string that an answer is; None where it is more, or something else."""
    values = list(answer.values())
    if len(values) != 1 or values[0].dtype != object or values[0].size != 1:
        return None
    text: bytes = values[0].item()
    return text
