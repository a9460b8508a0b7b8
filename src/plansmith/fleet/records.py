"""Fleet records: planned builds and their outcomes, small enough to pass through Prefect's API."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from plansmith.errors import PlansmithError, in_one_line
from plansmith.formatting import format_seconds, short_path
from plansmith.records.model import Record
from plansmith.records.release import Reason, SourceOverride
from plansmith.steps.provenance.history import Failure, exit_code_of

NEXT = "; next: "
"""Stands between what was wrong and what to do next."""

State = Literal["fresh", "stale", "refused"]
"""A model has nothing to do, is to be built, or cannot even be planned."""

Ended = Literal["fresh", "published", "unchanged", "failed", "interrupted"]
"""How a model of a fleet ended; "unchanged": built, and the newest version is the same."""

PLAN_COLUMNS = ("model", "target", "state", "why")
SUMMARY_COLUMNS = ("model", "target", "outcome", "took", "why")
STATES: tuple[State, ...] = ("stale", "fresh", "refused")
ENDS: tuple[Ended, ...] = ("published", "unchanged", "fresh", "failed", "interrupted")
"""The order in which they are counted."""


def failure_of(error: BaseException, step: str = "") -> Failure:
    """Format a failure, with its remedy.

    Args:
        error: of any kind.
        step: where it happened, where the error does not say.
    """
    match error:
        case PlansmithError():
            text, step = (
                f"{error.message}{NEXT}{error.remedy}" if error.remedy else error.message,
                error.step or step,
            )
        case OSError() if error.filename:
            text = f"{error.filename}: {error.strerror}"
        case KeyboardInterrupt():
            text = "it was interrupted; what was finished stays in the cache"
        case _:
            text = f"{type(error).__name__}: {error}{_place(error)}"
    return Failure(step=step, error=type(error).__name__, message=text, exit_code=exit_code_of(error))


def without_remedy(message: str) -> str:
    """Return a failure's message without its remedy, which is shown separately."""
    return message.rpartition(NEXT)[0] or message


def _place(error: BaseException) -> str:
    """Format the source line that raised an exception from other code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


class PlannedModel(Record):
    """Planned model of a fleet, for one target.

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
        """The reason why it is built or not, in one line."""
        if self.failure is not None:
            return self.failure.message
        return "; ".join(reason.words for reason in self.reasons) or "nothing changed"


class ModelOutcome(Record):
    """Outcome of one model; `version` is the current one, `run` the URL of its flow run.

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
    """Fleet summary: one outcome per model, in plan order."""

    outcomes: tuple[ModelOutcome, ...]
    seconds: float

    @property
    def failed(self) -> tuple[ModelOutcome, ...]:
        """The models that should have a new version and have none."""
        return tuple(outcome for outcome in self.outcomes if outcome.ended in {"failed", "interrupted"})


class _Row(Protocol):
    """Table row key: a model for a target, with the locations of its spec and versions."""

    @property
    def model(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def repository(self) -> str: ...


def plan_counts(planned: Iterable[PlannedModel]) -> str:
    """Format the counts by state: "12 models: 3 stale, 8 fresh, 1 refused"."""
    return _counts([model.state for model in planned], STATES)


def plan_rows(planned: Iterable[PlannedModel]) -> list[dict[str, str]]:
    """Return a row per model, by `PLAN_COLUMNS`, with one-line cells. An unreadable spec gets its own row.

    What to do about one that is refused is told beside.
    """
    models = list(planned)
    return [
        {"model": name, "target": model.target, "state": model.state, "why": in_table(model.why)}
        for name, model in zip(names(models), models, strict=True)
    ]


def in_table(message: str) -> str:
    """Format the reason for a table: one line, relative file paths, without the remedy, which is shown separately."""
    prefix = f"{Path.cwd()}/"
    from_root = rf"(?<![^\s'\"(]){re.escape(prefix)}(?=[^\s/])"
    return re.sub(from_root, "", in_one_line(without_remedy(message)))


def names(rows: Sequence[_Row]) -> list[str]:
    """Return the label of each table row: its model, with the spec file where a model occurs more than once."""
    counts = Counter((row.model, row.target) for row in rows)
    return [_name(row, is_alone=counts[row.model, row.target] == 1) for row in rows]


def _name(row: _Row, *, is_alone: bool) -> str:
    place = short_path(row.file or row.repository)
    if not row.model:
        return place
    return row.model if is_alone else f"{row.model} ({place})"


def label_of(row: PlannedModel | ModelOutcome) -> str:
    """Return a label that distinguishes a model from the others of its fleet."""
    return model_for(row.model, row.target) if row.model else short_path(row.file)


def model_for(model: str, target: str) -> str:
    """Format a model and its target for users and flow run names: "minilm for local-cpu"."""
    return f"{model} for {target}"


def model_of(called: str) -> str:
    """Parse the model from the result of `model_for`."""
    return called.partition(" for ")[0]


def why(planned: PlannedModel) -> str:
    """Return why a model is built, is not built, or cannot be, in one line."""
    return in_one_line(planned.why)


def summary_counts(summary: FleetSummary) -> str:
    """Format the counts by outcome and the duration: "12 models: 3 published, 9 fresh; 4 min 10 s"."""
    ended = _counts([outcome.ended for outcome in summary.outcomes], ENDS)
    return f"{ended}; {format_seconds(summary.seconds)}"


def summary_rows(summary: FleetSummary) -> list[dict[str, str]]:
    """Return a row per model, by `SUMMARY_COLUMNS`, plus `run` for flow runs; every cell is one line."""
    has_runs = any(outcome.run for outcome in summary.outcomes)
    return [
        _summary_row(outcome, name) | ({"run": outcome.run} if has_runs else {})
        for name, outcome in zip(names(summary.outcomes), summary.outcomes, strict=True)
    ]


def _summary_row(outcome: ModelOutcome, name: str) -> dict[str, str]:
    return {
        "model": name,
        "target": outcome.target,
        "outcome": describe_outcome(outcome),
        "took": format_seconds(outcome.seconds) if outcome.seconds else "-",
        "why": in_table(outcome.failure.message) if outcome.failure else outcome_reason(outcome),
    }


def describe_outcome(outcome: ModelOutcome) -> str:
    """Format a model's outcome: "published version 4", "failed at validate, exit code 5"."""
    if outcome.failure is not None and outcome.ended == "failed":
        at = f" at {outcome.failure.step}" if outcome.failure.step else ""
        return f"failed{at}, exit code {outcome.failure.exit_code}"
    if outcome.version is None:
        return outcome.ended
    return f"{outcome.ended}{' version' if outcome.ended == 'published' else ', version'} {outcome.version}"


def outcome_reason(outcome: ModelOutcome) -> str:
    """Return why a model failed; otherwise why it was or was not built."""
    if outcome.failure is not None:
        return in_one_line(outcome.failure.message)
    return in_one_line("; ".join(reason.words for reason in outcome.reasons)) or "nothing changed"


def cells(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Yield table cells for a terminal: the header, then the cells row by row."""
    return [tuple(name.upper() for name in columns), *(tuple(row[name] for name in columns) for row in rows)]


def _counts(states: Sequence[str], order: Sequence[str]) -> str:
    counts = Counter(states)
    each = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
    models = f"{len(states)} {'model' if len(states) == 1 else 'models'}"
    return f"{models}: {each}" if each else models
