"""Revalidation: repeats the accuracy gate on a release in a repository."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from plansmith.errors import RepositoryError, UsageError
from plansmith.records.release import MANIFEST_FILE, Manifest
from plansmith.records.validation import ToleranceChange, ValidationReport
from plansmith.steps.runner import WORKER_MODULE
from plansmith.steps.worker import tasks
from plansmith.steps.worker.tasks import ValidateRequest
from plansmith.system.digest import Digester
from plansmith.system.files import scratch_folder, scratch_name
from plansmith.system.libraries import require_library
from plansmith.system.process import Worker
from plansmith.triton.repository.release import damaged_file, engine_folder, read_manifest
from plansmith.triton.repository.repository import ModelRepository


def find_release(text: str, repository: Path) -> Path:
    """Find the folder of a release, given as a folder or as MODEL[@VERSION].

    Raises:
        RepositoryError: there is no such release.
    """
    if (Path(text) / MANIFEST_FILE).is_file():
        return Path(text)
    opened = ModelRepository(repository)
    return opened.release(*opened.find(text))


def revalidate(release: Path) -> ValidationReport:
    """Verify a release's files by digest, and run the accuracy gate on them at every shape.

    Held-out samples are a user's own and no part of a release: a compile alone judges on them.

    Raises:
        RepositoryError: a file is missing or not what was published.
        UsageError: it holds TensorRT plans.
        PlansmithError: the gate could not be run.
    """
    manifest = read_manifest(release)
    _require_intact(release, manifest)
    if manifest.engine.plans:
        raise UsageError(
            "the release holds TensorRT plans, which are judged where they are built, beside the graph that they were"
            " built from",
            remedy="compile the model again on that machine: it judges what it does not know yet; plansmith report"
            f" {release} shows the verdict",
            model=manifest.name,
            step="validate",
        )
    require_library("numpy", "compile")  # which the worker imports when it starts
    folder = engine_folder(release, manifest)
    descriptor, log = tempfile.mkstemp(prefix=scratch_name("validate-"), suffix=".log")
    os.close(descriptor)
    recipe = manifest.lowered.recipe if manifest.lowered else None
    with Worker(WORKER_MODULE, Path(log), isolated=manifest.onnx.isolation is not None) as worker:
        request = ValidateRequest(
            engine=manifest.engine,
            engine_folder=folder.resolve(),
            onnx=manifest.onnx,
            reference_folder=release.resolve(),
            tolerances={n: ToleranceChange(**t.model_dump()) for n, t in manifest.validation.tolerances.items()},
            recipe=recipe,
        )
        report = tasks.VALIDATE.run(worker, request)
    Path(log).unlink()  # kept where the gate could not be run: the error names it
    return report


def _require_intact(release: Path, manifest: Manifest) -> None:
    with scratch_folder("digests") as scratch:
        damaged = damaged_file(release, manifest, Digester(Path(scratch) / "digests.sqlite"))
    if damaged is not None:
        raise RepositoryError(
            f"{release / damaged} is missing, or its content is not what was published",
            remedy="compile the model again: a damaged release is replaced by a new version",
            model=manifest.name,
            step="validate",
        )
