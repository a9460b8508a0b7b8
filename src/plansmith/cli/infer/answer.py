"""What `plansmith infer` prints and writes: the answers of a model, and how long they took."""

from __future__ import annotations

import base64
import io
import json
import math
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.infer.shown import Sheet, shown_outputs
from plansmith.cli.streams import columns
from plansmith.cli.text import short, write_output
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.cli.infer.given import InputArguments
    from plansmith.triton.client import Answer, Signature


@dataclass(frozen=True)
class Latency:
    """How long requests took, in seconds; one after the other, each measured by the client."""

    requests: int
    median: float
    p90: float
    p99: float
    worst: float
    mean: float

    def words(self) -> str:
        """In milliseconds, as a person reads it."""
        shown = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in self._figures().items())
        return f"{self.requests} requests, one after the other: {shown}; {1 / self.mean:.4g} a second"

    def document(self) -> dict[str, Any]:
        """The same for a program."""
        return {"requests": self.requests, **self._figures()}

    def _figures(self) -> dict[str, float]:
        return {"median": self.median, "p90": self.p90, "p99": self.p99, "worst": self.worst, "mean": self.mean}


def latency_of(seconds: Sequence[float]) -> Latency:
    """Percentiles of measured times: the smallest value that so many of them do not exceed."""
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
    """What a model answered, to be told.

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
        """Each output with its name, dtype and shape, and where they are wanted its values, shortened where many.

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
        return lines if self.latency is None else [*lines, self.latency.words()]

    def rows(self) -> int:
        """How many samples were answered; none that are told apart where the model does not batch."""
        return len(next(iter(self.answer.outputs.values()))) if self.signature.max_batch_size else 0

    def document(self) -> dict[str, Any]:
        """The answer as JSON has it: nested lists; NaN and Inf are the words that protobuf's JSON has for them.

        A string that is no UTF-8 is `{"base64": "…"}` in place of the text.
        """
        outputs = document_of(self.answer.outputs, self.signature)
        source = {"model": self.model, "version": self.answer.version, "requests": self.answer.requests}
        variant = {"variant": self.answer.variant} if self.answer.variant else {}
        seconds = {} if self.latency is None else {"seconds": self.latency.document()}
        return {**source, **variant, "outputs": outputs, **seconds}

    def write(self, path: Path, *, replace: bool) -> None:
        """Write the outputs to a file that appears whole; errors as for `npz_of`."""
        write_output(
            path, npz_of(self.answer) if path.suffix == ".npz" else json.dumps(self.document()), replace=replace
        )


def document_of(outputs: Mapping[str, NDArray[Any]], signature: Signature) -> dict[str, Any]:
    """Outputs as JSON has them, by name."""
    dtypes = {tensor.name: tensor.dtype for tensor in signature.outputs}
    return {
        name: {"dtype": dtypes[name], "shape": list(array.shape), "data": _json_values(_plain(array).tolist())}
        for name, array in outputs.items()
    }


def print_answer(
    answered: ModelAnswer, given: InputArguments, *, output: Path | None, replace: bool, as_json: bool
) -> None:
    """Print an answer, and write it to a file where one is named.

    Args:
        answered: the answer.
        given: the inputs, by which a person knows the rows of the answer.
        output: the file, which `require_output` took; None for none.
        replace: the file may be there.
        as_json: print one JSON document.
    """
    if output is not None:
        answered.write(output, replace=replace)
    if as_json:
        click.echo(json.dumps(answered.document()))
        return
    names = given.names(answered.signature, answered.rows())
    for line in answered.lines(names, width=terminal_width(), values=output is None):
        click.echo(line)
    if output is not None:
        click.echo(f"written to {short(output.absolute())}")


def terminal_width() -> int | None:
    """Cells of a line of the terminal; None where standard output is none."""
    return columns(sys.stdout) if sys.stdout.isatty() else None


def require_output(path: Path, *, replace: bool) -> None:
    """See that a file for the answer can be written, before anything is asked.

    Raises:
        UsageError: it has a suffix that we do not write, or is there already.
    """
    if path.suffix not in {".npz", ".json"}:
        raise UsageError(f"{path} is neither .npz nor .json", remedy="name --output so")
    if path.exists() and not replace:
        raise UsageError(f"{path} is there already", remedy="choose another --output, or pass --force")


def npz_of(answer: Answer) -> bytes:
    """The outputs as an .npz file: strings are bytes of one width, bfloat16 is float32, as NumPy has neither.

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
    """The same values in a type of NumPy's own."""
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
