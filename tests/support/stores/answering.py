"""Releases that hold a reference, as those of a compile do: of a model that answers with one number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plansmith.data.reference import store_case
from plansmith.records.model import ReferenceSet
from plansmith.records.release import MANIFEST_FILE, Manifest
from plansmith.records.validation import Tolerance
from plansmith.system.digest import digest_of_files
from plansmith.triton.repository.repository import ModelRepository

from ..faults.packages import TARGET, draft_of, file_entries
from ..triton.versions import CONFIG, INTERFACE, graph

TOLERANCE = Tolerance(max_relative=1e-4, quantile_relative=2e-5, min_cosine=0.99999999)
ROWS = 4


def publish_answering(
    root: Path,
    model: str,
    *,
    answers: int = 1,
    reference: int = 1,
    content: bytes | None = None,
    target: str = TARGET,
    cases: tuple[str, ...] = ("opt",),
) -> Manifest:
    """Publish a model into a repository, as a compile without a served check would.

    Args:
        root: the repository.
        model: its name.
        answers: what it answers.
        reference: what its source is said to have answered.
        content: of its graph, in place of one that answers.
        target: what it is for.
        cases: the names of the cases that the reference has.
    """
    package = root.parent / f"package-{root.name}-{model}-{answers}-{reference}"
    (package / "model").mkdir(parents=True)
    (package / "config.pbtxt").write_text(CONFIG)
    (package / "model" / "model.onnx").write_bytes(graph(answers) if content is None else content)
    feed = {"x": np.zeros((ROWS, 1), np.float32)}
    answer: dict[str, NDArray[Any]] = {
        "whole": np.full((ROWS, 1), reference, np.int64),
        "three": np.full((ROWS, 3), reference, np.float32),
    }
    stored = tuple(store_case(name, {"batch": ROWS}, feed, answer, package / "reference") for name in cases)
    draft = draft_of(package, model=model, target=target)
    fields: dict[str, Any] = {"model_files": ("model.onnx",), "interface": INTERFACE, "max_batch_size": 8}
    references = ReferenceSet(runtime="none", data="none", cases=stored)
    tolerances = dict.fromkeys(("whole", "three"), TOLERANCE)
    draft = draft.model_copy(
        update={
            "files": file_entries(package),
            "package": draft.package.model_copy(update=fields),
            "onnx": draft.onnx.model_copy(update={"reference": references}),
            "validation": draft.validation.model_copy(update={"tolerances": tolerances}),
        }
    )
    repository = ModelRepository(root)
    files = {entry.path: package / entry.path for entry in draft.files}
    published = repository.publish(draft, files, {}, allow_interface_change=True, force=False)
    return repository.manifest(model, published.version)


def swap_consistently(root: Path, manifest: Manifest, path: str, content: bytes) -> None:
    """Give a file of a release, and of its view, other bytes, and have the manifest say that those were published."""
    release = ModelRepository(root).release(manifest.name, manifest.version)
    (release / path).chmod(0o644)
    (release / path).write_bytes(content)
    listed = {file.path for file in manifest.files}
    files = tuple(entry for entry in file_entries(release) if entry.path in listed)
    again = manifest.model_copy(update={"files": files, "release_digest": digest_of_files(files)})
    (release / MANIFEST_FILE).unlink()
    (release / MANIFEST_FILE).write_text(again.model_dump_json())
