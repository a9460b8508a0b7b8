"""What is planned for a fleet and what came of it, as rows and lines: the same at the command line and in Prefect."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from plansmith.errors import in_one_line
from plansmith.fleet.records import Ended, FleetSummary, ModelOutcome, PlannedModel, State, without_remedy
from plansmith.formatting import format_seconds

PLAN_COLUMNS = ("model", "target", "state", "why")
SUMMARY_COLUMNS = ("model", "target", "outcome", "took", "why")

STATES: tuple[State, ...] = ("stale", "fresh", "refused")
ENDS: tuple[Ended, ...] = ("published", "unchanged", "fresh", "failed", "interrupted")
"""The order in which they are counted."""


class _Row(Protocol):
    """What a row of a table is about: a model for a target, and where its spec and its versions are."""

    @property
    def model(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def repository(self) -> str: ...


def plan_counts(planned: Iterable[PlannedModel]) -> str:
    """How many models there are in which state: "12 models: 3 stale, 8 fresh, 1 refused"."""
    return _counts([one.state for one in planned], STATES)


def plan_rows(planned: Iterable[PlannedModel]) -> list[dict[str, str]]:
    """A row for each model, by `PLAN_COLUMNS`; every cell is one line. A spec that cannot be read stands for itself.

    What to do about one that is refused is told beside.
    """
    found = list(planned)
    return [
        {"model": name, "target": one.target, "state": one.state, "why": in_table(one.why)}
        for name, one in zip(names(found), found, strict=True)
    ]


def in_table(words: str) -> str:
    """Why, for a table: one line, files as from here, and no remedy, which is told beside."""
    here = f"{Path.cwd()}/"
    from_root = rf"(?<![^\s'\"(]){re.escape(here)}(?=[^\s/])"
    return re.sub(from_root, "", in_one_line(without_remedy(words)))


def names(rows: Sequence[_Row]) -> list[str]:
    """What each row of a table is called: its model, with the file of each where there are several of one model."""
    counts = Counter((one.model, one.target) for one in rows)
    return [_name(one, is_alone=counts[one.model, one.target] == 1) for one in rows]


def _name(one: _Row, *, is_alone: bool) -> str:
    place = from_here(one.file or one.repository)
    if not one.model:
        return place
    return one.model if is_alone else f"{one.model} ({place})"


def label_of(one: PlannedModel | ModelOutcome) -> str:
    """What tells a model from the others of its fleet."""
    return model_for(one.model, one.target) if one.model else from_here(one.file)


def model_for(model: str, target: str) -> str:
    """A model for a target, as people and the names of flow runs call it: "minilm for local-cpu"."""
    return f"{model} for {target}"


def model_of(called: str) -> str:
    """The model of what `model_for` made."""
    return called.partition(" for ")[0]


def from_here(file: str) -> str:
    """A file as a person would name it from the working directory."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def why(planned: PlannedModel) -> str:
    """Why a model is built, or is not, or cannot be, in one line."""
    return in_one_line(planned.why)


def summary_counts(summary: FleetSummary) -> str:
    """How many models ended how, and what that took: "12 models: 3 published, 9 fresh; 4 min 10 s"."""
    ended = _counts([one.ended for one in summary.outcomes], ENDS)
    return f"{ended}; {format_seconds(summary.seconds)}"


def summary_rows(summary: FleetSummary) -> list[dict[str, str]]:
    """A row for each model, by `SUMMARY_COLUMNS`, and `run` where flow runs built them; every cell is one line."""
    has_runs = any(one.run for one in summary.outcomes)
    return [
        _summary_row(one, name) | ({"run": one.run} if has_runs else {})
        for name, one in zip(names(summary.outcomes), summary.outcomes, strict=True)
    ]


def _summary_row(one: ModelOutcome, name: str) -> dict[str, str]:
    return {
        "model": name,
        "target": one.target,
        "outcome": describe_outcome(one),
        "took": format_seconds(one.seconds) if one.seconds else "-",
        "why": in_table(one.failure.message) if one.failure else outcome_reason(one),
    }


def describe_outcome(one: ModelOutcome) -> str:
    """How a model ended: "published version 4", "failed at validate, exit code 5"."""
    if one.failure is not None and one.ended == "failed":
        at = f" at {one.failure.step}" if one.failure.step else ""
        return f"failed{at}, exit code {one.failure.exit_code}"
    if one.version is None:
        return one.ended
    return f"{one.ended}{' version' if one.ended == 'published' else ', version'} {one.version}"


def outcome_reason(one: ModelOutcome) -> str:
    """Why it failed; of any other, why it was built or was not."""
    if one.failure is not None:
        return in_one_line(one.failure.message)
    return in_one_line("; ".join(reason.words for reason in one.reasons)) or "nothing changed"


def cells(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows as a table for a terminal: a head, then the cells in turn."""
    return [tuple(name.upper() for name in columns), *(tuple(row[name] for name in columns) for row in rows)]


def _counts(found: Sequence[str], order: Sequence[str]) -> str:
    counts = Counter(found)
    each = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
    models = f"{len(found)} {'model' if len(found) == 1 else 'models'}"
    return f"{models}: {each}" if each else models
