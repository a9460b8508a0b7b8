"""A pipeline as it is planned by whoever knows the source model; and its parts' folders, written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import GateError
from plansmith.pipelines.model_files import files_in, module_of, part_text, write_model_files
from plansmith.pipelines.served.requests import SETTINGS_FILE, Refusal
from plansmith.records.model import Tensor
from plansmith.records.pipeline import Part, PartBackend, RawInput, RawOutput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_REPORT = "nothing was published; please report this with the log"


@dataclass(frozen=True)
class DraftPart:
    """A part before it is written.

    Args:
        name: of the part.
        step: the class in `pipeline.served` that does the work.
        settings: JSON values that the class is made with.
        inputs: names that the ensemble knows, batch first.
        outputs: likewise.
        modules: of `pipeline.served` that the class's own module imports.
        requirements: distributions that it needs beside NumPy, in the versions that are installed here.
        write: writes its other files into a folder.
        backend: that serves it; of another than Triton's Python backend, `write` writes all files, the first by name
            being what the backend opens, and the class is for this process alone.
        joins_requests: whether Triton may answer several requests in one execution.
        parameters: of its configuration.
    """

    name: str
    step: type[Any]
    settings: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    modules: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    write: Callable[[Path], None] = field(default=lambda _: None)
    backend: PartBackend = "python"
    joins_requests: bool = True
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """A pipeline before it is written.

    Args:
        input: what clients send.
        output: what they get.
        before: parts that make the model's inputs.
        after: parts that make answers of its outputs.
        inputs: of the ensemble.
        outputs: of the ensemble.
        questions: requests of raw inputs by name, as clients send them.
        ask: the answer of the source's own library to one of them: its preprocessing, PyTorch, its postprocessing.
        source: that library, in words.
        bounds: for inputs of the model that the parts before it make by another method than that library: how far their
            values may be apart, the mean of the absolute differences of a row; of others, floats are rounded otherwise.
        labels: of outputs that have a score for each class, the names of the classes.
        ask_with: as `ask`, with the parameters of a request; None where the model takes none.
    """

    input: RawInput
    output: RawOutput
    before: tuple[DraftPart, ...]
    after: tuple[DraftPart, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    questions: Mapping[str, Arrays]
    ask: Callable[[Arrays], Arrays]
    source: str
    bounds: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ask_with: Callable[[Arrays, Mapping[str, Any]], Arrays] | None = None


def write_part(draft: DraftPart, numpy: str, out: Path) -> Part:
    """Write the folder of a part, as Triton loads it as a version.

    Args:
        draft: the part.
        numpy: the version of NumPy that goes into its requirements.
        out: the pipeline's folder; the part's is made in it.
    """
    folder = out / draft.name
    folder.mkdir(parents=True)
    if draft.backend == "python":
        _write_model(draft, numpy, folder)
    draft.write(folder)
    return Part(
        name=draft.name,
        backend=draft.backend,
        files=files_in(folder),
        inputs=draft.inputs,
        outputs=draft.outputs,
        joins_requests=draft.joins_requests,
        parameters=dict(draft.parameters),
    )


def _write_model(draft: DraftPart, numpy: str, folder: Path) -> None:
    """What Triton's Python backend runs."""
    write_model_files(
        folder,
        part_text(draft.step),
        modules=("requests", module_of(draft.step), *draft.modules),
        settings=draft.settings,
        requirements={"numpy": numpy} | {one: version(one).partition("+")[0] for one in draft.requirements},
    )


def run_parts(parts: Sequence[DraftPart], folders: Path, feed: Arrays) -> Arrays:
    """What parts that were written make of one request, in this process.

    Args:
        parts: in the order of the pipeline.
        folders: the pipeline's folder.
        feed: the tensors that there are before the first.

    Returns:
        All tensors, those of the feed included.

    Raises:
        GateError: one of them refuses it.
    """
    known = dict(feed)
    for part in parts:
        folder = folders / part.name
        written = folder / SETTINGS_FILE
        step = part.step(
            json.loads(written.read_text(encoding="utf-8")) if written.is_file() else part.settings, folder
        )
        (answer,) = step.answer([{tensor.name: known[tensor.name] for tensor in part.inputs}])
        if isinstance(answer, Refusal):
            raise GateError(f"the part {part.name!r} refuses it: {answer.words}", remedy=_REPORT)
        known |= answer
    return known
