"""Releases made by hand: whole, of a model that a Triton loads, in a repository of their own, in milliseconds."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.records.release import MODEL_FOLDER, REPORT_FILE, Interface, Manifest
from plansmith.report.render import render
from plansmith.report.verdict import facts_of
from plansmith.triton.repository.repository import ModelRepository

from ..faults.packages import TARGET, draft_of, file_entries
from ..triton.versions import CONFIG, INTERFACE, graph

MODEL = "answers"
BULK_FILE = "bulk.bin"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class PackagedRelease:
    """A release of a repository, and what lies in it."""

    repository: ModelRepository
    manifest: Manifest
    folder: Path

    @property
    def model(self) -> str:
        """Its name."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """Its number in the repository."""
        return self.manifest.version


def make_release(
    root: Path,
    answer: int = 1,
    *,
    model: str = MODEL,
    target: str = TARGET,
    bulk_bytes: int = 0,
    interface: Interface = INTERFACE,
) -> PackagedRelease:
    """Publish a model into a repository, as a compile would; Triton loads it, and it answers with one number.

    The graph is of the answer alone, the configuration and the bulk are the same in all: so some files of two releases
    are equal, and others are not. Nothing but the number of the version tells two repositories' releases of one answer
    apart.

    Args:
        root: the repository.
        answer: what the model answers to everything, in both of its outputs (`tests/support/triton/versions.py`).
        model: its name.
        target: what the release is for.
        bulk_bytes: size of a further file beside the graph, which the model does not need.
        interface: what the manifest says of its inputs and outputs.
    """
    repository = ModelRepository(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        package = Path(scratch)
        files = _lay_out(package, answer, bulk_bytes)
        draft = draft_of(package, model=model, target=target)
        fields: dict[str, Any] = {"model_files": files, "interface": interface, "max_batch_size": 8}
        draft = draft.model_copy(
            update={"files": file_entries(package), "package": draft.package.model_copy(update=fields)}
        )
        published = repository.publish(
            draft,
            {entry.path: package / entry.path for entry in draft.files},
            {
                "build.log": "every heavy step came from the cache\n",
                "reproduce.sh": "#!/bin/sh\nexec plansmith compile spec.yaml\n",
                "spec.yaml": f"source: hf:./{model}\n",
            },
            allow_interface_change=True,
            force=False,
            described=lambda numbered: {REPORT_FILE: render(facts_of(numbered))},
        )
    return PackagedRelease(repository, repository.manifest(model, published.version), Path(published.release))


def _lay_out(package: Path, answer: int, bulk_bytes: int) -> tuple[str, ...]:
    """Write a package; the names of the files beside the graph, and its own first."""
    folder = package / MODEL_FOLDER
    folder.mkdir()
    (package / "config.pbtxt").write_text(CONFIG)
    (folder / "model.onnx").write_bytes(graph(answer))
    if not bulk_bytes:
        return ("model.onnx",)
    dice = random.Random(0)
    with (folder / BULK_FILE).open("wb") as out:
        for start in range(0, bulk_bytes, _PIECE_BYTES):
            out.write(dice.randbytes(min(_PIECE_BYTES, bulk_bytes - start)))
    return ("model.onnx", BULK_FILE)
