"""The HTML reports that pages link to. Nothing of a URL becomes part of a path but numbers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from plansmith.report import REPORT_FILE
from plansmith.steps.provenance.history import HISTORY, History
from plansmith.triggers.pages.query_results import FleetModel
from plansmith.triton.repository.repository import ModelRepository

_LARGEST_BYTES = 64 << 20
_SUFFIX = ".html"


def report_of_version(model: FleetModel, version: int) -> Path | None:
    """The report in a release; None where there is none, or it may not be served."""
    repository = ModelRepository(Path(model.status.repository))
    return _inside(repository.release(model.status.model, version) / REPORT_FILE, repository.store)


def report_of_compile(model: FleetModel, number: int) -> Path | None:
    """The report that a refused compile left in the artifacts; None where there is none, or it may not be served."""
    run = History(Path(model.artifacts) / HISTORY).read(number)
    if run is None or run.model != model.status.model or run.log is None or not run.log.endswith(_SUFFIX):
        return None
    return _inside(Path(run.log), Path(model.artifacts))


def read_report(path: Path) -> bytes | None:
    """The bytes of a report; None where it is gone, is no file, or is too large."""
    try:
        # It may have been replaced since: no link is followed, and a pipe is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read(_LARGEST_BYTES)
    finally:
        os.close(descriptor)


def _inside(path: Path, folder: Path) -> Path | None:
    """The file with all links resolved, where that lies in a folder."""
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return real if real.is_relative_to(root) and real.is_file() else None
