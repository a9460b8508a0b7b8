"""Model file rules: required version files and labels; `files.*`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from plansmith.compilers.trt.versions import numbers_of
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder
from plansmith.triton.checker.reader import ENSEMBLE
from plansmith.triton.checker.rules.core.tensor import elements

_SEEN = "Triton 2.51 was seen to do so"
_LABELS = "core: src/label_provider.cc, AddLabels"

MODEL = Rule(
    "files.model",
    "error",
    "each version that is loaded holds the file that its backend opens",
    f"the backends' sources; {_SEEN}, and to wait without end for a Python model without model.py",
)
EMPTY = Rule("files.empty", "error", "the file that a backend opens is not empty", "no model format has an empty file")
POINTER = Rule(
    "files.git-lfs-pointer",
    "error",
    "the file that a backend opens is the model, and not what Git LFS keeps in its place",
    "github.com/git-lfs/git-lfs: docs/spec.md, The Pointer",
)
UNREADABLE = Rule("files.unreadable", "error", "the file that a backend opens can be read", "core: src/filesystem")
LABELS = Rule(
    "files.labels", "error", "a file of labels that an output names is in the model's folder", f"{_LABELS}; {_SEEN}"
)
LABELS_FOLDER = Rule(
    "files.labels-folder",
    "error",
    "labels are in a file: a folder of that name ends the server, whatever else that serves",
    f"{_LABELS}; {_SEEN}",
)
LABELS_OUTSIDE = Rule(
    "files.labels-outside",
    "error",
    "a file of labels lies in the model's folder: newer Triton refuses any other",
    "core: src/model.cc, Init; Triton 2.51 still loads such a model",
)
LABEL_COUNT = Rule(
    "files.label-count",
    "warning",
    "a file of labels has a line for each element of its output: an element without one has no label",
    f"{_LABELS}; server: docs/protocol/extension_classification.md",
)
RULES: tuple[Rule, ...] = (MODEL, EMPTY, POINTER, UNREADABLE, LABELS, LABELS_FOLDER, LABELS_OUTSIDE, LABEL_COUNT)

NO_MODEL = frozenset({MODEL.id, EMPTY.id, POINTER.id, UNREADABLE.id})
"""Where a file is none that a backend could open, what else is said of it says no more."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_TAKES_ANY_LABELS = (2, 51)
_OPEN_ONE_FILE = {"onnxruntime", "openvino", "python", "pytorch", "tensorrt"}
_MOST_LABEL_BYTES = 64 * 2**20


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield problems with a model's files."""
    if model.config is None and model.text:
        return
    # A runtime of its own, such as model.py of PyTorch's backend, opens what it likes.
    runtime = model.config.runtime if model.config is not None else ""
    if model.platform != ENSEMBLE and model.backend in _OPEN_ONE_FILE and not runtime:
        for number in model.loaded:
            yield from _model_file(model, number)
    if model.config is None:
        return
    for output in model.config.output:
        if output.label_filename:
            yield from _labels(model, output.label_filename, elements(output.dims), surroundings)


def _model_file(model: ModelFolder, number: int) -> Iterator[Finding]:
    name = model.model_file
    file, place = model.versions[number] / name, model.place(f"{number}/{name}")
    others = model.config.cc_model_filenames if model.config is not None else {}
    if not file.exists():
        if file.is_symlink():
            message, remedy = f"{name} is a link to {file.readlink()}, where nothing is", "put back what it leads to"
        else:
            present = ", ".join(sorted(entry.name for entry in model.versions[number].iterdir())) or "nothing"
            message = f"version {number} has no {name}, which backend {model.backend} opens; there is {present}"
            files = sorted(entry.name for entry in model.versions[number].iterdir() if entry.is_file())
            named = files[0] if len(files) == 1 else "its file"
            remedy = f"put the model there as {name}, or write default_model_filename: {named}"
        if not others:  # of plans for several GPUs, that for any other may be left out
            yield MODEL.broken(message, model=model.name, place=place, remedy=remedy)
        return
    if not file.is_file():
        return
    try:
        with file.open("rb") as opened:
            begins = opened.read(len(_POINTER))
    except OSError as error:
        yield UNREADABLE.broken(
            f"{name} cannot be read: {error.strerror}",
            model=model.name,
            place=place,
            remedy=f"chmod a+r {model.typed(f'{number}/{name}')}",
        )
        return
    if not begins:
        yield EMPTY.broken(f"{name} is empty", model=model.name, place=place, remedy="put the model there")
    elif begins == _POINTER:
        yield POINTER.broken(
            f"{name} is not the model, but what Git LFS keeps in its place",
            model=model.name,
            place=place,
            remedy="git lfs pull",
        )


def _takes_any_labels(surroundings: CheckContext) -> bool:
    """Whether the target's Triton version is known to load a model whose label files lie outside of its folder."""
    version = surroundings.target.triton if surroundings.target is not None else None
    return version is not None and numbers_of(version)[:2] <= _TAKES_ANY_LABELS


def _labels(model: ModelFolder, name: str, expected: int, surroundings: CheckContext) -> Iterator[Finding]:
    # As Triton joins them, a name that begins with a slash lies in the model's folder, too.
    file, where = Path(f"{model.path}/{name}"), f'"{name}"'
    if not os.path.normpath(file).startswith(f"{os.path.normpath(model.path)}/"):
        outside = model.faulted(
            LABELS_OUTSIDE,
            f"the labels {name} lie outside of the model's folder",
            where,
            remedy="copy the file into the model's folder, and name it there",
        )
        yield outside.model_copy(update={"severity": "warning"}) if _takes_any_labels(surroundings) else outside
    if not file.exists():
        yield model.faulted(
            LABELS, f"there is no {name} in the model's folder", where, remedy=f"put it to {model.place(name)}"
        )
    elif file.is_dir():
        yield model.faulted(
            LABELS_FOLDER, f"{name} is a folder, which ends the server", where, remedy="name a file of labels"
        )
    elif expected > 0 and file.stat().st_size <= _MOST_LABEL_BYTES and os.access(file, os.R_OK):
        count = len(file.read_bytes().splitlines())
        if count != expected:
            yield model.faulted(
                LABEL_COUNT,
                f"the number of labels in {name} is {count}, and that of its output's elements {expected}",
                where,
                remedy="write one label a line, in the order of the elements",
            )
