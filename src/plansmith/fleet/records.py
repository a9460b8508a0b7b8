"""What is planned for the models of a fleet, and what came of it: small records that travel through Prefect's API."""

from __future__ import annotations

import traceback
from typing import Literal

from plansmith.errors import PlansmithError
from plansmith.records.fingerprint import Reason, SourceOverride
from plansmith.records.model import Record
from plansmith.steps.provenance.history import Failure, exit_code_of

NEXT = "; next: "
"""Stands between what was wrong and what to do next."""


def failure_of(error: BaseException, step: str = "") -> Failure:
    """A failure in words, with what to do next.

    Args:
        error: of any kind.
        step: where it happened, where the error does not say.
    """
    match error:
        case PlansmithError():
            words, step = (
                f"{error.message}{NEXT}{error.remedy}" if error.remedy else error.message,
                error.step or step,
            )
        case OSError() if error.filename:
            words = f"{error.filename}: {error.strerror}"
        case KeyboardInterrupt():
            words = "it was interrupted; what was finished stays in the cache"
        case _:
            words = f"{type(error).__name__}: {error}{_place(error)}"
    return Failure(step=step, error=type(error).__name__, message=words, exit_code=exit_code_of(error))


def without_remedy(words: str) -> str:
    """What was wrong, of the words of a failure, for where the remedy is told beside."""
    return words.rpartition(NEXT)[0] or words


def _place(error: BaseException) -> str:
    """The line that raised what is not ours to word."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


State = Literal["fresh", "stale", "refused"]
"""A model has nothing to do, is to be built, or cannot even be planned."""

Ended = Literal["fresh", "published", "unchanged", "failed", "interrupted"]
"""How a model of a fleet ended; "unchanged": built, and the newest version is the same."""


class PlannedModel(Record):
    """One model, for one target, of a fleet.

    `file` is its spec, read once more when it is built; `target` the label that tells it from the same model for
    others; `version` the newest that is published, None without one; `failure` says why it is refused; `repository`
    is where it is published, and `artifacts` where its compiles are noted, from the root on; `source` and
    `source_override`: what an event of a registry set in place of the spec's own source, and how.
    """

    model: str
    target: str
    file: str
    state: State
    reasons: tuple[Reason, ...] = ()
    version: int | None = None
    failure: Failure | None = None
    repository: str = ""
    artifacts: str = ""
    source: str = ""
    source_override: SourceOverride | None = None

    @property
    def why(self) -> str:
        """Why it is built, or is not, in one line."""
        if self.failure is not None:
            return self.failure.message
        return "; ".join(reason.words for reason in self.reasons) or "nothing changed"


class ModelOutcome(Record):
    """What came of one model; `version` is the one that stands now, `run` the address of its flow run.

    One name may stand for a model in each of several repositories: `repository` tells them apart.
    """

    model: str
    target: str
    file: str
    ended: Ended
    reasons: tuple[Reason, ...] = ()
    version: int | None = None
    failure: Failure | None = None
    seconds: float = 0
    run: str = ""
    repository: str = ""


class FleetSummary(Record):
    """What came of a fleet: one outcome for each of its models, in the order of the plan."""

    outcomes: tuple[ModelOutcome, ...]
    seconds: float

    @property
    def failed(self) -> tuple[ModelOutcome, ...]:
        """Those that have no new version and should."""
        return tuple(one for one in self.outcomes if one.ended in {"failed", "interrupted"})
