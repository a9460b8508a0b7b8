"""The history of trials: every finished one is on the disk at once, and is used again by later runs.

A file of one JSON line per record that is only appended to. What a killed process left of a line is cut off before the
next one is written; a line that cannot be read is skipped, and its trial is run again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Generic, Literal, TypeVar

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.system.digest import digest_of
from plansmith.system.files import HeldByAnother, fsync_path, locked, make_folder, not_waiting, storage_errors
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.trials.measurement import Measurement

Phase = Literal["screening", "halving", "confirmation"]
FOLDER_OPTION = "folder of artifacts (`artifacts` in the spec)"
"""The folder of a search, as a person chooses it."""

HISTORY_FILE = "trials.jsonl"
_LOCK = "search.lock"
_VERSION = 1
"""Of the meaning of a measurement: raised when earlier trials must not be used again."""
_BLOCK_BYTES = 64 * 1024


class TrialContext(Record):
    """What has to be the same for a trial to be used again.

    Attributes:
        builds: by label of the build, the digest of its files.
        load: digest of the load and the requests.
        host: machine and server in words.
    """

    builds: dict[str, str]
    load: str
    host: str


class KeyedRecord(Record):
    """A record of a history.

    Attributes:
        key: identifies it.
    """

    key: str


class Trial(KeyedRecord):
    """A finished run of a configuration.

    Attributes:
        key: from `trial_key`.
        configuration: that was served.
        seconds: of load that were to be counted.
        round_number: of a confirmation, from 1; 0 otherwise.
        measurement: None where the configuration could not be served.
        problem: why not.
        duration_seconds: with starting the server.
        began_at: UTC.
        session: of the process that ran it.
    """

    configuration: Configuration
    seconds: float
    round_number: int = 0
    measurement: Measurement | None = None
    problem: str = ""
    duration_seconds: float = 0.0
    began_at: str = ""
    session: str = ""


def trial_key(
    context: TrialContext,
    configuration: Configuration,
    seconds: float,
    round_number: int = 0,
    candidate: Configuration | None = None,
) -> str:
    """Identifies a trial: the same model, configuration, load, length and host, and the same round of a confirmation.

    Args:
        context: model, load and host.
        configuration: that is served.
        seconds: of load.
        round_number: of a confirmation.
        candidate: of that confirmation.
    """
    identity = {
        "version": _VERSION,
        "build": context.builds[configuration.build.label],
        "configuration": configuration.model_dump(mode="json"),
        "load": context.load,
        "host": context.host,
        "seconds": seconds,
        "round": round_number,
        "candidate": candidate.model_dump(mode="json") if candidate is not None else None,
    }
    return digest_of(identity)


R = TypeVar("R", bound=KeyedRecord)


class History(Generic[R]):
    """The records of one model in a file.

    Args:
        folder: made with the first record.
        name: of the file.
        kind: of the records.
    """

    def __init__(self, folder: Path, name: str, kind: type[R]) -> None:
        self.folder = folder
        self.file = folder / name
        self._kind = kind
        self._records: dict[str, R] | None = None

    def find(self, key: str) -> R | None:
        """The record of a key; None where there is none."""
        return self._read().get(key)

    def add(self, record: R) -> None:
        """Keep a record: when this returns it survives the end of the process and of the machine's power.

        Raises:
            RepositoryError: the disk is full or cannot be written.
        """
        with storage_errors(self.folder, other=FOLDER_OPTION):
            make_folder(self.folder)
            is_new = not self.file.exists()
            with self.file.open("w+b" if is_new else "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(_end_of_lines(file.fileno()))
                file.truncate()
                file.write(record.model_dump_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                fsync_path(self.folder)
        self._read()[record.key] = record

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold off other searches of the model, as both would measure each other.

        Raises:
            RepositoryError: another one is running.
        """
        with storage_errors(self.folder, other=FOLDER_OPTION):
            make_folder(self.folder)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder / _LOCK, not_waiting))
            except HeldByAnother:
                raise RepositoryError(
                    f"another search or comparison in {self.folder} is running, and both would measure each other",
                    remedy="wait for its end, or stop it; what it has measured is used again",
                ) from None
            yield

    def _read(self) -> dict[str, R]:
        if self._records is None:
            self._records = {record.key: record for record in read_records(self.file, self._kind)}
        return self._records


class TrialHistory(History[Trial]):
    """The trials of one model.

    Args:
        folder: made with the first trial.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, HISTORY_FILE, Trial)


def read_records(file: Path, kind: type[R]) -> Iterator[R]:
    """The records of a file whose lines are whole and can be read, oldest first."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    for line in content.split(b"\n")[:-1]:
        try:
            yield kind.model_validate_json(line)
        except ValueError:
            continue


def _end_of_lines(descriptor: int) -> int:
    """The offset behind the last whole line of a file."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
