"""The database that an inbox lies in: connections that make what they commit durable, and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.inbox.faults import database_faults
from plansmith.triggers.inbox.location import shown
from plansmith.triggers.inbox.schema import found_file, found_tables, has_inbox

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

_BUSY_SECONDS = 30
_READS = "plansmith_reads"

_SQLITE_SETTINGS = (
    f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}",
    "PRAGMA synchronous = FULL",  # with a write-ahead log, each commit is flushed to the disk
)

# Whatever the server's or the role's own settings are. A receiver that froze in a transaction lets go of its locks.
_POSTGRESQL_SETTINGS = (
    "SET synchronous_commit = on",
    f"SET lock_timeout = '{_BUSY_SECONDS}s'",
    f"SET idle_in_transaction_session_timeout = '{_BUSY_SECONDS}s'",
)
# A server that is gone without a word is given up on within a minute; libpq's names.
_POSTGRESQL_PATIENCE = {"connect_timeout": 10, "keepalives_idle": 30, "tcp_user_timeout": 30_000}


class Database:
    """An inbox's database; one may be used by many threads and processes at once.

    Args:
        url: as `read_url` gives it.
        make: make the inbox where there is none.

    Attributes:
        place: the database as it may be shown.
        kind: sqlite or postgresql.

    Raises:
        UsageError: there is no inbox, and none is to be made; or something else is there.
        EnvironmentFault: it cannot be reached, read or written, or is of a newer plansmith.
    """

    def __init__(self, url: URL, *, make: bool) -> None:
        self.place = shown(url)
        self.kind = url.get_backend_name()
        self._file = Path(url.database) if self.kind == "sqlite" and url.database else None
        # SQLite has others wait by trying again and again: threads of one process wait for each other here.
        self._turn = Lock() if self._file is not None else nullcontext()
        if self._file is not None and not self._file.exists():
            self._require_making(make=make)
            with database_faults(self.place):
                found_file(self._file)
        self._identity = self._identity_now()
        self._engine = _engine(url)
        try:
            with self.writing() as connection:
                if not has_inbox(connection, self.place):
                    self._found_here(connection, make=make)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes; committed and durable when the block has ended, or as if it had never been.

        Raises:
            EnvironmentFault: the database cannot be reached or written.
        """
        with self._turn, database_faults(self.place):
            self._require_same_file()
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads, and waits for nobody.

        Raises:
            EnvironmentFault: the database cannot be reached or read.
        """
        with database_faults(self.place):
            self._require_same_file()
            with self._engine.connect().execution_options(**{_READS: True}) as connection:
                yield connection

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def _found_here(self, connection: Connection, *, make: bool) -> None:
        if self._file is not None:
            raise UsageError(
                f"{self.place} is an empty database, and no inbox", remedy="remove the file, or name another"
            )
        self._require_making(make=make)
        found_tables(connection, self.place)

    def _require_making(self, *, make: bool) -> None:
        if not make:
            raise UsageError(
                f"there is no inbox {self.place}",
                remedy="name another with --service or --database",
            )

    def _identity_now(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _require_same_file(self) -> None:
        """What is written to a file that was removed or replaced is lost with the last process that has it open."""
        if self._identity_now() != self._identity:
            raise EnvironmentFault(
                f"{self.place} was removed or replaced while it was in use",
                remedy="put it back and start again; with another file in its place, start again",
            )


def _engine(url: URL) -> Engine:
    import sqlalchemy as sa

    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    given = {name: value for name, value in _POSTGRESQL_PATIENCE.items() if name not in url.query}
    try:
        engine = sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=given)
    except ImportError as error:
        raise EnvironmentFault("psycopg is not installed", remedy="pip install 'plansmith[triggers]'") from error
    sa.event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says so, and not where Python would
    for statement in _SQLITE_SETTINGS:
        connection.execute(statement)


def _begin_sqlite(connection: Connection) -> None:
    """One that writes takes its lock at once: two that read first could not both go on to write."""
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    connection.autocommit = True  # settings of a transaction that is rolled back would be gone
    for statement in _POSTGRESQL_SETTINGS:
        connection.execute(statement)
    connection.autocommit = False
