"""Results of page queries, as returned by the process that runs them."""

from __future__ import annotations

import json
import logging
import os
import stat
import traceback
from datetime import UTC, datetime
from pathlib import Path

from plansmith.errors import PlansmithError, first_line
from plansmith.fleet.status import ModelStatus, ReleaseSource
from plansmith.records.model import Record
from plansmith.records.release import REPORT_FILE
from plansmith.steps.provenance.history import HISTORY, History, RunRecord
from plansmith.system.digest import digest_of
from plansmith.triton.repository.repository import ModelRepository

_KEY_LETTERS = 12

LOG = logging.getLogger("plansmith.pages")
"""A line of JSON for each bug that a page met, as its whole message."""

_LARGEST_BYTES = 64 << 20
_SUFFIX = ".html"


class ErrorDetail(Record):
    """Error detail: why a query has no result, and the remedy."""

    message: str
    remedy: str = ""


class FleetModel(Record):
    """A model for one target.

    Attributes:
        status: its newest version, whether that is stale, and its last compile.
        artifacts: the folder, from the root on, where its compiles are noted.
    """

    status: ModelStatus
    artifacts: str

    @property
    def key(self) -> str:
        """An identifier for URLs, which should not contain its name and folders."""
        model_status = self.status
        return digest_of([model_status.model, model_status.target, model_status.repository, model_status.file])[
            :_KEY_LETTERS
        ]


class FleetResult(Record):
    """Fleet result: all models of specs and repositories; `notices`: what could not be read."""

    models: tuple[FleetModel, ...]
    notices: tuple[str, ...] = ()


class VersionResult(Record):
    """Version result: fields from the manifest are None if that is damaged.

    Attributes:
        number: of the version.
        created: when the release was made.
        source: of its model.
        verdict: of the gate.
        precision: of the engine.
        engine: its kind.
        bytes: of all files of the release.
        signer: who signed it according to its signature; empty if it is not signed.
        is_signed: whether the machine's policy accepts its signature; None without a policy.
        signature_problem: why that does not; empty if it does.
        is_shown: whether Triton is shown it.
        is_served: whether Triton serves it.
        hidden_reason: why Triton is not shown it.
        has_report: whether its release holds one.
    """

    number: int
    created: str | None
    source: ReleaseSource | None
    verdict: str | None
    precision: str | None
    engine: str | None
    bytes: int | None
    signer: str
    is_signed: bool | None
    signature_problem: str
    is_shown: bool
    is_served: bool
    hidden_reason: str | None
    has_report: bool


class CompileResult(Record):
    """A compile with its number in the history; `has_report`: whether it was refused and has a report."""

    number: int
    record: RunRecord
    has_report: bool


class HistoryResult(Record):
    """The versions of one `FleetModel`, descending, and its last compiles, newest first.

    Attributes:
        key: of the model.
        versions: all that there are.
        versions_error: why the repository cannot be read.
        compiles: the last of them.
        compiles_error: why the history cannot be read.
        unreadable_count: damaged records of compiles that were met, of any model.
        is_truncated: older compiles of the model were not read.
    """

    key: str
    versions: tuple[VersionResult, ...] = ()
    versions_error: ErrorDetail | None = None
    compiles: tuple[CompileResult, ...] = ()
    compiles_error: ErrorDetail | None = None
    unreadable_count: int = 0
    is_truncated: bool = False


class ModelResult(Record):
    """The histories of a model, one per target."""

    histories: tuple[HistoryResult, ...]


def known_error_detail(error: PlansmithError | OSError) -> ErrorDetail:
    """Return the detail of an error that the user can resolve: one of plansmith's or of the file system."""
    if isinstance(error, PlansmithError):
        return ErrorDetail(message=error.message, remedy=error.remedy)
    message = f"{error.filename}: {error.strerror}" if error.filename else first_line(error)
    return ErrorDetail(message=message, remedy="see that it is there, and that the user who runs this may read it")


def detail_from_error(error: Exception, about: str) -> ErrorDetail:
    """Return the detail of an error for a page; any other exception is a bug and is logged with its traceback.

    Args:
        error: of any kind.
        about: what was queried.
    """
    if isinstance(error, PlansmithError):
        return known_error_detail(error)
    line = {
        "event": "page",
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "about": about,
        "reason": f"{type(error).__name__}: {first_line(error)}",
        "traceback": "".join(traceback.format_exception(error)),
    }
    LOG.log(logging.ERROR, json.dumps(line))
    return ErrorDetail(message="a bug of plansmith's own", remedy="report it, with what this process logged")


def report_of_version(model: FleetModel, version: int) -> Path | None:
    """Return the path of a release's report; None if it is missing or may not be served."""
    repository = ModelRepository(Path(model.status.repository))
    return _inside(repository.release(model.status.model, version) / REPORT_FILE, repository.store)


def report_of_compile(model: FleetModel, number: int) -> Path | None:
    """Return the path of a refused compile's report; None if it is missing or may not be served."""
    run = History(Path(model.artifacts) / HISTORY).read(number)
    if run is None or run.model != model.status.model or run.log is None or not run.log.endswith(_SUFFIX):
        return None
    return _inside(Path(run.log), Path(model.artifacts))


def read_report(path: Path) -> bytes | None:
    """Read a report; None if it is missing, not a file, or too large."""
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
    """The file with all links resolved, if it lies inside the folder."""
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return real if real.is_relative_to(root) and real.is_file() else None
