"""The results of the queries of pages, as they come from the process that runs them."""

from __future__ import annotations

from plansmith.fleet.release_source import ReleaseSource
from plansmith.fleet.status import ModelStatus
from plansmith.records.model import Record
from plansmith.steps.provenance.history import RunRecord
from plansmith.system.digest import digest_of

_KEY_LETTERS = 12


class ErrorDetail(Record):
    """Why a query has no result, and what to do about it."""

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
        """Identifies it in URLs, where its name and folders do not belong."""
        one = self.status
        return digest_of([one.model, one.target, one.repository, one.file])[:_KEY_LETTERS]


class FleetResult(Record):
    """All models of specs and repositories; `notices`: what could not be read besides."""

    models: tuple[FleetModel, ...]
    notices: tuple[str, ...] = ()


class VersionResult(Record):
    """A version of a model; what its manifest says is None where that is damaged.

    Attributes:
        number: of the version.
        created: when the release was made.
        source: of its model.
        verdict: of the gate.
        precision: of the engine.
        engine: its kind.
        bytes: of all files of the release.
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
    is_shown: bool
    is_served: bool
    hidden_reason: str | None
    has_report: bool


class CompileResult(Record):
    """A compile with its number in the history; `has_report`: whether it was refused and left a report."""

    number: int
    record: RunRecord
    has_report: bool


class HistoryResult(Record):
    """The versions of one `FleetModel`, descending, and its last compiles, the newest first.

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
    """The history of a model for each of its targets."""

    histories: tuple[HistoryResult, ...]
