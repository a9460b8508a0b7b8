"""Pipeline drafts: planned by the code that knows the source model, then written as folders of parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.errors import GateError
from plansmith.pipelines import served
from plansmith.records.model import BATCH, Tensor
from plansmith.records.pipeline import Part, PartBackend, RawInput, RawOutput

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays


MODEL_FILE = "model.py"
REQUIREMENTS_FILE = "requirements.txt"
SERVED_FOLDER = "plansmith_served"

_MODEL = f'''"""{{what}} in Triton's Python backend; requirements.txt names what it needs.

{SITE_VARIABLE} names folders with Python packages, separated by ":", that go before all others: the process that
Triton starts for this file ignores PYTHONPATH. Where its own Python has the packages, nothing has to be set.
"""

import os
import site
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # Triton would take the folder for changed
known = list(sys.path)
for folder in filter(None, os.environ.get("{SITE_VARIABLE}", "").split(":")):
    site.addsitedir(folder)
sys.path[:] = [str(Path(__file__).parent), *(folder for folder in sys.path if folder not in known), *known]

{{program}}'''

_PART = f"""from {SERVED_FOLDER}.requests import PartModel  # noqa: E402 - found in the folders above
from {SERVED_FOLDER}.{{module}} import {{step}}  # noqa: E402


class TritonPythonModel(PartModel):
    \"\"\"This part.\"\"\"

    step = {{step}}
"""

_SCRIPT = f"""from {SERVED_FOLDER}.scripting import ScriptModel  # noqa: E402 - found in the folders above


class TritonPythonModel(ScriptModel):
    \"\"\"This script.\"\"\"
"""

_REPORT = "nothing was published; please report this with the log"
Scoring = Literal["softmax", "sigmoid", "none"]
"""What makes scores of logits."""


def part_text(step: type[Any]) -> str:
    """Return the model.py of a part: `step` is the class in `pipeline.served` that does the work."""
    return _MODEL.format(what="A part of a pipeline", program=_PART.format(module=module_of(step), step=step.__name__))


def module_of(step: type[Any]) -> str:
    """Return the module of a part's class, by the class name in `pipelines.served`."""
    return step.__module__.removeprefix(f"{served.__name__}.")


def script_text() -> str:
    """Return the model.py of a user's script, which is stored next to it."""
    return _MODEL.format(what="A script that asks other models", program=_SCRIPT)


def write_model_files(
    folder: Path, text: str, *, modules: Sequence[str], settings: Mapping[str, Any], requirements: Mapping[str, str]
) -> None:
    """Write a Python backend model in the form of a Triton version folder.

    Args:
        folder: that of the version.
        text: of its model.py.
        modules: of `pipelines.served` that it imports, by their names in it.
        settings: JSON values that it reads.
        requirements: versions of the distributions that it needs.
    """
    from plansmith.pipelines.served.requests import SETTINGS_FILE

    packages = [
        f"{package}.__init__" for package, separator, _ in (name.rpartition(".") for name in modules) if separator
    ]
    for name in dict.fromkeys(("__init__", *packages, *modules)):
        file = Path(*name.split(".")).with_suffix(".py")
        copy = folder / SERVED_FOLDER / file
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(Path(served.__path__[0], file).read_text())
    (folder / MODEL_FILE).write_text(text)
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / REQUIREMENTS_FILE).write_text("".join(f"{name}=={number}\n" for name, number in requirements.items()))


def files_in(folder: Path) -> tuple[str, ...]:
    """List the files of a version folder, the backend's entry file first."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(files, key=lambda file: file != MODEL_FILE))


@dataclass(frozen=True)
class DraftPart:
    """Pipeline part before it is written.

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
    """Pipeline draft before it is written.

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
    """Write the folder of a part in the form of a Triton version folder.

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
    """Write the model files that Triton's Python backend runs."""
    write_model_files(
        folder,
        part_text(draft.step),
        modules=("requests", module_of(draft.step), *draft.modules),
        settings=draft.settings,
        requirements={"numpy": numpy} | {package: version(package).partition("+")[0] for package in draft.requirements},
    )


def run_parts(parts: Sequence[DraftPart], folders: Path, feed: Arrays) -> Arrays:
    """Run written parts on one request in this process.

    Args:
        parts: in the order of the pipeline.
        folders: the pipeline's folder.
        feed: the tensors that there are before the first.

    Returns:
        All tensors, those of the feed included.

    Raises:
        GateError: one of them refuses it.
    """
    from plansmith.pipelines.served.requests import SETTINGS_FILE, Refusal

    arrays = dict(feed)
    for part in parts:
        folder = folders / part.name
        written = folder / SETTINGS_FILE
        step = part.step(
            json.loads(written.read_text(encoding="utf-8")) if written.is_file() else part.settings, folder
        )
        (answer,) = step.answer([{tensor.name: arrays[tensor.name] for tensor in part.inputs}])
        if isinstance(answer, Refusal):
            raise GateError(f"the part {part.name!r} refuses it: {answer.message}", remedy=_REPORT)
        arrays |= answer
    return arrays


def scores_part(logits: Tensor, names: Sequence[str], *, scoring: Scoring) -> DraftPart:
    """Return the part after a classifier that gives the scores of all classes, in class order; as `labels_part`."""
    from plansmith.pipelines.served.postprocessing.labels import SCORE, ScoresStep

    return DraftPart(
        name="scores",
        step=ScoresStep,
        settings={"logits": logits.name, "apply": scoring},
        inputs=(logits,),
        outputs=(Tensor(name=SCORE, dtype="float32", dims=(BATCH, len(names))),),
    )


def labels_part(logits: Tensor, names: Sequence[str], *, scoring: Scoring, top_k: int) -> DraftPart:
    """Return the part after a classifier that gives labels.

    Args:
        logits: the model's output [batch, classes].
        names: of all classes, in their order.
        scoring: what makes scores of logits.
        top_k: how many labels an answer has; all where there are fewer.
    """
    from plansmith.pipelines.served.postprocessing.labels import LABEL, SCORE, LabelsStep

    count = min(top_k, len(names))
    return DraftPart(
        name="labels",
        step=LabelsStep,
        settings={"logits": logits.name, "labels": list(names), "top_k": count, "apply": scoring},
        inputs=(logits,),
        outputs=(
            Tensor(name=LABEL, dtype="string", dims=(BATCH, count)),
            Tensor(name=SCORE, dtype="float32", dims=(BATCH, count)),
        ),
    )
