"""Releases that were published and taken back, and those of which it is not decided yet."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from plansmith.records.model import Record
from plansmith.system.files import fsync_path, make_folder, move_into_place, staging_folder

_UNKNOWN = "the record that says why is damaged"


class Withdrawal(Record):
    """Why and when a release was withdrawn; the time is ISO 8601 in UTC."""

    version: int
    reason: str
    withdrawn: str


class Withdrawals:
    """What is noted beside the releases of one model; those who note something hold the model's lock.

    A release that was withdrawn is never shown again. One is on trial from before it is shown until every server that
    has to has loaded it: if this process is killed meanwhile, the next one knows that nobody relies on it yet.

    Args:
        model: its name.
        store: holds the repository's releases.
    """

    def __init__(self, model: str, store: Path) -> None:
        self._folder = store / "withdrawn" / model
        self._trials = store / "trials" / model
        self._staging = store / "staging"

    def numbers(self) -> list[int]:
        """The versions that were withdrawn, ascending."""
        found = self._folder.glob("*.json") if self._folder.is_dir() else ()
        return sorted(int(file.stem) for file in found if file.stem.isdecimal())

    def reason(self, number: int) -> str | None:
        """Why a version was withdrawn; None where it was not."""
        try:
            record = self._read(number)
        except ValueError:
            return _UNKNOWN
        return None if record is None else record.reason

    def moment(self, number: int) -> str | None:
        """When a version was withdrawn, as in its record; None where it was not, or the record is damaged."""
        try:
            record = self._read(number)
        except ValueError:
            return None
        return None if record is None else record.withdrawn

    def withdraw(self, number: int, reason: str) -> None:
        """Note that a version is never to be shown again; it is not on trial any more then."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = Withdrawal(version=number, reason=reason, withdrawn=moment)
        self._write(self._record(number), record.model_dump_json(indent=1))
        self.end_trial(number)

    def begin_trial(self, number: int) -> None:
        """Note that a version is to be withdrawn if a server refuses it."""
        self._write(self._trials / str(number), "")

    def is_on_trial(self, number: int) -> bool:
        """Whether a version has not been loaded yet by every server that has to."""
        return (self._trials / str(number)).exists()

    def on_trial(self) -> list[int]:
        """The versions on trial, ascending; to whoever holds the model's lock, what killed processes left."""
        found = self._trials.iterdir() if self._trials.is_dir() else ()
        return sorted(int(file.name) for file in found if file.name.isdecimal())

    def end_trial(self, number: int) -> None:
        """Note that a version stays."""
        if self.is_on_trial(number):
            (self._trials / str(number)).unlink()
            fsync_path(self._trials)

    def _read(self, number: int) -> Withdrawal | None:
        try:
            return Withdrawal.model_validate_json(self._record(number).read_bytes())
        except FileNotFoundError:
            return None

    def _record(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _write(self, final: Path, text: str) -> None:
        make_folder(final.parent)
        with staging_folder(self._staging) as staged:
            (staged / final.name).write_text(text, encoding="utf-8")
            fsync_path(staged / final.name)
            move_into_place(staged / final.name, final)
