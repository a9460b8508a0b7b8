"""What was compiled here: one record of every run, whatever came of it.

Each run is a small file of its own, `<artifacts>/history/<number>.json`, written in a staging folder and
moved into place by one rename, under a lock that gives out the numbers. Compared with lines appended to one
file, a kill or a full disk in the middle leaves no half record for others to trip over, old records go one
by one, and the numbers keep the order of writing when the clock does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from plansmith.errors import EXIT_INTERRUPTED, EnvironmentFault, PlansmithError
from plansmith.records.destination import Publication
from plansmith.records.model import SCHEMA_VERSION, EngineKind, Precision, Record
from plansmith.records.release import StepRecord
from plansmith.system.files import fsync_tree, locked, make_folder, move_into_place, staging_folder, sweep

HISTORY = "history"

_SUFFIX = ".json"

Outcome = Literal["published", "unchanged", "failed", "interrupted"]
"""How a compile ended."""


class Failure(Record):
    """Why a run ended without a published version; `exit_code` is that of the command line."""

    step: str
    error: str
    message: str
    exit_code: int


class RunRecord(Record):
    """One compile: what was asked for, how far it came and how it ended.

    `source` is as typed; `revision` and `source_digest` are known once it was fetched, `verdict` and
    `largest_error` (of all outputs, relative to the output's magnitude) once the gate was run. `precision` is what was
    asked for, `made` what came of it, where a graph did. A run that failed has a `version` where that stands and could
    not be brought to all its destinations; `publications` are those that it was.
    """

    schema_version: int = SCHEMA_VERSION
    plansmith: str
    started: str
    seconds: float
    model: str
    source: str
    revision: str | None
    source_digest: str | None
    target: str
    engine: EngineKind
    precision: Precision | Literal["auto"]
    made: Precision | None = None  # of runs older than this field
    repository: str
    outcome: Outcome
    version: int | None
    failure: Failure | None
    verdict: Literal["passed", "failed"] | None
    largest_error: float | None
    log: str | None
    steps: tuple[StepRecord, ...]
    publications: tuple[Publication, ...] = ()  # of runs older than this field

    @property
    def outcome_text(self) -> str:
        """The outcome in few words: "published 3", "failed in validate, int8"; for auto, the precision chosen too."""
        where = f"in {self.failure.step}" if self.failure is not None else str(self.version)
        if self.precision == "auto":
            return f"{self.outcome} {where}, auto{f': {self.made}' if self.made else ''}"
        return f"{self.outcome} {where}" + ("" if self.precision == Precision.FP32 else f", {self.precision}")

    @property
    def gate_text(self) -> str:
        """The gate's verdict and the largest relative error of any output: "passed 2e-05"; "-" without a verdict."""
        if self.verdict is None:
            return "-"
        largest = self.largest_error
        return self.verdict if largest is None else f"{self.verdict} {largest:{'.0e' if largest < 0.1 else '.2g'}}"


def exit_code_of(error: BaseException) -> int:
    """The exit code that the command line ends with when this ends it.

    Args:
        error: a text in `SystemExit` is printed and ends with 1, as Python does it; None is no failure.
    """
    match error:
        case PlansmithError():
            return error.exit_code
        case OSError():
            return EnvironmentFault.exit_code
        case KeyboardInterrupt():
            return EXIT_INTERRUPTED
        case SystemExit(code=int(code)):
            return code
        case SystemExit(code=None):
            return 0
    return 1


def _record_from_json(text: bytes) -> RunRecord:
    """A record, without the fields that another version of plansmith added.

    Raises:
        ValueError: it is none.
    """
    try:
        return RunRecord.model_validate_json(text)
    except ValidationError as refused:
        unknown = [one["loc"] for one in refused.errors() if one["type"] == "extra_forbidden"]
        if not unknown:
            raise
    fields = json.loads(text)
    for *above, name in unknown:
        place = fields
        for step in above:
            place = place[step]
        del place[name]
    return RunRecord.model_validate_json(json.dumps(fields))


class History:
    """The runs of one artifacts folder; safe to share between processes.

    Args:
        root: the folder of the records; made when the first is written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.staging = root / "staging"

    def add(self, run: RunRecord) -> None:
        """Write a record as the newest one.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        make_folder(self.staging)
        sweep(self.staging)
        with locked(self.root / ".lock"), staging_folder(self.staging) as staged:
            (staged / "run").write_text(run.model_dump_json())
            fsync_tree(staged)
            newest = max(self.numbers(), default=0)
            move_into_place(staged / "run", self.file(newest + 1))

    def numbers(self) -> list[int]:
        """The numbers of all records in the order of their writing."""
        found = self.root.glob(f"*{_SUFFIX}") if self.root.is_dir() else ()
        return sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def file(self, number: int) -> Path:
        """Where a record stands."""
        return self.root / f"{number:06}{_SUFFIX}"

    def read(self, number: int) -> RunRecord | None:
        """A record; None where it is damaged or has just been collected."""
        try:
            return _record_from_json(self.file(number).read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def unreadable(self) -> int:
        """How many records are there that cannot be read."""
        return sum(self.read(number) is None and self.file(number).exists() for number in self.numbers())

    def newest_first(self) -> Iterator[RunRecord]:
        """All records that can be read, the last one written first."""
        for number in reversed(self.numbers()):
            run = self.read(number)
            if run is not None:
                yield run
