"""Output of `plansmith infer`: the model's answers and their latency."""

from __future__ import annotations

import base64
import codecs
import io
import json
import math
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.infer.rendering import Sheet, safe, shown_outputs
from plansmith.cli.output import columns, short, write_output
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.cli.infer.inputs import InputArguments
    from plansmith.records.arrays import Arrays
    from plansmith.triton.client import Answer, Signature


@dataclass(frozen=True)
class Latency:
    """Request latency in seconds: sequential requests, each measured by the client."""

    requests: int
    median: float
    p90: float
    p99: float
    worst: float
    mean: float

    def summary(self) -> str:
        """Return the latency in milliseconds, formatted for users."""
        shown = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in self._figures().items())
        return f"{self.requests} requests, one after the other: {shown}; {1 / self.mean:.4g} a second"

    def document(self) -> dict[str, Any]:
        """Return the latency as JSON-ready fields."""
        return {"requests": self.requests, **self._figures()}

    def _figures(self) -> dict[str, float]:
        return {"median": self.median, "p90": self.p90, "p99": self.p99, "worst": self.worst, "mean": self.mean}


def latency_of(seconds: Sequence[float]) -> Latency:
    """Return percentiles of measured times: the smallest value that such a share of them does not exceed."""
    ordered = sorted(seconds)

    def percentile(share: float) -> float:
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]

    return Latency(
        requests=len(ordered),
        median=percentile(0.5),
        p90=percentile(0.9),
        p99=percentile(0.99),
        worst=ordered[-1],
        mean=sum(ordered) / len(ordered),
    )


@dataclass(frozen=True)
class ModelAnswer:
    """A model's answer, for output.

    Args:
        model: its name.
        answer: the outputs.
        signature: what the model says of them.
        latency: of the same question asked again and again; None where it was asked once.
    """

    model: str
    answer: Answer
    signature: Signature
    latency: Latency | None

    def lines(self, names: Sequence[str] = (), *, width: int | None = None, values: bool = True) -> list[str]:
        """Return lines with name, dtype and shape of each output and, on request, its values, shortened if many.

        Args:
            names: what a person knows each row of the batch by.
            width: of the terminal; None for lines as long as they are.
            values: show them.
        """
        times = f" in {self.answer.requests} requests" if self.answer.requests > 1 else ""
        variant = f" of variant {self.answer.variant}" if self.answer.variant else ""
        lines = [f"{self.model}, version {self.answer.version}{variant}, answered{times}"]
        dtypes = {tensor.name: tensor.dtype for tensor in self.signature.outputs}
        sheet = Sheet(width, names, batches=self.signature.max_batch_size > 0)
        lines += shown_outputs(self.answer.outputs, dtypes, sheet, values=values)
        return lines if self.latency is None else [*lines, self.latency.summary()]

    def rows(self) -> int:
        """Return the number of answered samples; none if the model does not batch."""
        return len(next(iter(self.answer.outputs.values()))) if self.signature.max_batch_size else 0

    def document(self) -> dict[str, Any]:
        """Return the answer as JSON: nested lists; NaN and Inf as protobuf's JSON spells them.

        A string that is no UTF-8 is `{"base64": "…"}` in place of the text.
        """
        outputs = document_of(self.answer.outputs, self.signature)
        source = {"model": self.model, "version": self.answer.version, "requests": self.answer.requests}
        variant = {"variant": self.answer.variant} if self.answer.variant else {}
        seconds = {} if self.latency is None else {"seconds": self.latency.document()}
        return {**source, **variant, "outputs": outputs, **seconds}

    def write(self, path: Path, *, replace: bool) -> None:
        """Write the outputs to a file atomically; errors as for `npz_of`."""
        write_output(
            path, npz_of(self.answer) if path.suffix == ".npz" else json.dumps(self.document()), replace=replace
        )


def document_of(outputs: Mapping[str, NDArray[Any]], signature: Signature) -> dict[str, Any]:
    """Convert outputs to JSON values by name."""
    dtypes = {tensor.name: tensor.dtype for tensor in signature.outputs}
    return {
        name: {"dtype": dtypes[name], "shape": list(array.shape), "data": _json_values(_plain(array).tolist())}
        for name, array in outputs.items()
    }


def print_answer(
    answered: ModelAnswer, arguments: InputArguments, *, output: Path | None, replace: bool, as_json: bool
) -> None:
    """Print an answer, and write it to a file if one is named.

    Args:
        answered: the answer.
        arguments: the inputs, by which a person knows the rows of the answer.
        output: the file, which `require_output` took; None for none.
        replace: the file may be there.
        as_json: print one JSON document.
    """
    if output is not None:
        answered.write(output, replace=replace)
    if as_json:
        click.echo(json.dumps(answered.document()))
        return
    names = arguments.names(answered.signature, answered.rows())
    for line in answered.lines(names, width=terminal_width(), values=output is None):
        click.echo(line)
    if output is not None:
        click.echo(f"written to {short(output.absolute())}")


def terminal_width() -> int | None:
    """Return the terminal width in cells; None if standard output is not a terminal."""
    return columns(sys.stdout) if sys.stdout.isatty() else None


def require_output(path: Path, *, replace: bool) -> None:
    """Check that the answer's file can be written, before sending a request.

    Raises:
        UsageError: it has a suffix that we do not write, or is there already.
    """
    if path.suffix not in {".npz", ".json"}:
        raise UsageError(f"{path} is neither .npz nor .json", remedy="name --output so")
    if path.exists() and not replace:
        raise UsageError(f"{path} is there already", remedy="choose another --output, or pass --force")


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


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same values with a native NumPy type."""
    import numpy as np

    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


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


def require_streamable(options: Mapping[str, Any], output: Path | None, repeat: int | None) -> None:
    """Check that the requested output can be streamed.

    Raises:
        UsageError: it cannot.
    """
    from plansmith.system.urls import read_address

    protocol = options["protocol"] or (
        read_address(options["url"]).protocol if "://" in (options["url"] or "") else "grpc"
    )
    if protocol != "grpc":
        raise UsageError("answers come in pieces over gRPC alone", remedy="pass --protocol grpc, or a --url grpc://…")
    if output is not None or repeat is not None:
        option = "--output" if output is not None else "--repeat"
        raise UsageError(f"{option} is for whole answers, and --stream for pieces", remedy="leave one of the two out")


def print_pieces(answers: Iterator[Arrays], signature: Signature, *, as_json: bool, width: int | None) -> None:
    """Print each answer as it arrives.

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
    """Return the single string of a response; None if it holds more, or something else."""
    values = list(answer.values())
    if len(values) != 1 or values[0].dtype != object or values[0].size != 1:
        return None
    text: bytes = values[0].item()
    return text
