"""Inbox database: connections with durable commits, and transactions."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from select import POLLIN, poll
from threading import Lock
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault, PlansmithError, UsageError, first_line
from plansmith.system.files import fsync_path
from plansmith.triggers.inbox.location import shown
from plansmith.triggers.inbox.sql import (
    CHANGE_VERSION,
    META,
    NOTE_VERSION,
    NUMBERED,
    READ_VERSION,
    SCHEMA,
    TABLES,
    UPGRADES,
)

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Dialect, Engine, TextClause


_OWN = "see that the file, those beside it and their folder are yours to write"
_AGAIN = "see that it runs and can be reached from here, then run the same again"

_SQLITE = {
    sqlite3.SQLITE_FULL: ("has no space left", "free some space on its file system"),
    sqlite3.SQLITE_BUSY: ("is kept by another process", "end what has it open, such as a sqlite3 shell, and try again"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "see that its file system has room and its disk is well"),
    sqlite3.SQLITE_READONLY: ("cannot be written", _OWN),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", _OWN),
    sqlite3.SQLITE_PERM: ("cannot be opened", _OWN),
    sqlite3.SQLITE_CORRUPT: ("is damaged", "put a copy of it back, or move it away for a new one"),
}
"""What is wrong, and what to do about it."""

_PASSING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR}
_TRANSIENT = ("08", "40", "53", "55", "57")
"""Classes of PostgreSQL's errors: connection, rolled back, no resources (a full disk), not now, an operator's doing."""

READS = "plansmith_reads"
"""The option of a connection to SQLite whose transaction only reads."""

BEGIN = "BEGIN IMMEDIATE"
"""Begins a transaction of SQLite that writes."""

_BUSY_SECONDS = 30
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
_LOCK = 0x706C616E  # "plan": whoever makes tables in a PostgreSQL holds the advisory lock of this number
_TAKE_LOCK = "SELECT pg_advisory_xact_lock(:number)"


@contextmanager
def database_faults(place: str) -> Iterator[None]:
    """Convert a database's own errors to one error that names it.

    Args:
        place: the database as it may be shown.

    Raises:
        EnvironmentFault: it is away, full, damaged or cannot be written; `transient` where that may pass.
        UsageError: what is there is no database.
    """
    import sqlalchemy as sa

    try:
        yield
    except sa.exc.TimeoutError as error:
        raise EnvironmentFault(
            f"all connections to {place} are in use", remedy="run the same again", transient=True
        ) from error
    except (sa.exc.DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
        fault = _of_sqlite(cause, place) if isinstance(cause, sqlite3.Error) else _of_postgresql(cause, place)
        if fault is None:
            raise
        raise fault from error


def _of_sqlite(error: sqlite3.Error, place: str) -> PlansmithError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what says more about it
    if code == sqlite3.SQLITE_NOTADB:
        return UsageError(f"{place} is no database", remedy="name another file, or move this one away")
    if code not in _SQLITE:
        return None
    problem, remedy = _SQLITE[code]
    return EnvironmentFault(f"{place} {problem} ({first_line(error)})", remedy=remedy, transient=code in _PASSING)


def _of_postgresql(error: BaseException, place: str) -> PlansmithError | None:
    import psycopg

    state = getattr(error, "sqlstate", None)
    says = first_line(error)
    if isinstance(error, psycopg.errors.DiskFull):
        return EnvironmentFault(f"no space left for {place}", remedy="free some space on its server", transient=True)
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return EnvironmentFault(
            f"{place} takes no changes ({says})", remedy="name the server that does: this is a copy of it"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return EnvironmentFault(
            f"{place} refuses ({says})", remedy="let the user make tables there, or name a database of its own"
        )
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or (state or "")[:2] in _TRANSIENT:
        return EnvironmentFault(f"{place} does not answer as it should ({says})", remedy=_AGAIN, transient=True)
    return None


_USED, _FRESH_SECONDS = "plansmith_used", 1.0


def engine_of(url: URL) -> Engine:
    """Return the SQLAlchemy engine of a database, configured for durable commits.

    Raises:
        EnvironmentFault: a library is missing.
    """
    import sqlalchemy as sa

    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, paramstyle="named")
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    options = {name: value for name, value in _POSTGRESQL_PATIENCE.items() if name not in url.query}
    try:
        engine = sa.create_engine(url, isolation_level="READ COMMITTED", connect_args=options)
    except ImportError as error:
        raise EnvironmentFault("psycopg is not installed", remedy="pip install 'plansmith[triggers]'") from error
    sa.event.listen(engine, "connect", _prepare_postgresql)
    sa.event.listen(engine, "checkin", _note_use)
    sa.event.listen(engine, "checkout", _require_server(engine.dialect))
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says so, and not where Python would
    for statement in _SQLITE_SETTINGS:
        connection.execute(statement)


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; a writing one locks at once, as two that read first could not both go on to write."""
    reads = connection.get_execution_options().get(READS, False)
    connection.exec_driver_sql("BEGIN" if reads else BEGIN)


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    connection.autocommit = True  # settings of a transaction that is rolled back would be gone
    for statement in _POSTGRESQL_SETTINGS:
        connection.execute(statement)
    connection.autocommit = False


def _note_use(_connection: Any, record: Any) -> None:
    record.info[_USED] = time.monotonic()


def _require_server(dialect: Dialect) -> Callable[[Any, Any, Any], None]:
    """Check that the server is reachable before a connection is reused, and reconnect where it is not.

    It is not asked where it answered a moment ago, and has sent nothing since: one that ends closes its connections.
    """
    import sqlalchemy as sa

    def require(connection: Any, record: Any, _proxy: Any) -> None:
        is_fresh = time.monotonic() - record.info.get(_USED, 0.0) < _FRESH_SECONDS
        try:
            if not is_fresh or _has_sent(connection):
                dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise sa.exc.DisconnectionError from error

    return require


def _has_sent(connection: Any) -> bool:
    """Whether data arrived from the server without a request."""
    looked = poll()
    looked.register(connection, POLLIN)
    return bool(looked.poll(0))


def create_file(path: Path) -> None:
    """Create an inbox's SQLite file atomically; if another process was first, its file is kept.

    Raises:
        EnvironmentFault: there is no such folder, or it takes no files.
    """
    if not path.parent.is_dir():
        raise EnvironmentFault(
            f"there is no folder {path.parent} for the inbox {path.name}", remedy=f"mkdir -p {path.parent}"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            staged = Path(folder, path.name)
            _write_file(staged)
            fsync_path(staged)
            try:
                path.hardlink_to(staged)
            except FileExistsError:
                return
            fsync_path(path.parent)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot make the inbox {path}: {os.strerror(error.errno or 0)}",
            remedy="see that its folder is yours to write and has room, or name another",
        ) from error


def _write_file(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # which the file remembers
        connection.execute("BEGIN")
        for statement in TABLES:
            connection.execute(statement.format(numbered=NUMBERED["sqlite"]))
        connection.execute(NOTE_VERSION, {"version": SCHEMA})
        connection.execute("COMMIT")


def has_inbox(connection: Connection, place: str) -> bool:
    """Whether a database has an inbox of a known version; an older one is migrated.

    Args:
        connection: in a transaction that writes.
        place: the database as it may be shown.

    Raises:
        UsageError: it holds something else.
        EnvironmentFault: its inbox is of a newer plansmith.
    """
    import sqlalchemy as sa

    names = set(sa.inspect(connection).get_table_names())
    if META in names:
        version = _known_version(connection, place)
        if version < SCHEMA:
            _upgrade(connection, place)
        return True
    if names:
        example = min(names)
        raise UsageError(
            f"{place} is no inbox of plansmith: it holds other tables, such as {example}",
            remedy="name a database of its own, or a new file",
        )
    return False


def _known_version(connection: Connection, place: str) -> int:
    import sqlalchemy as sa

    version = connection.execute(sa.text(READ_VERSION)).scalar()
    if not isinstance(version, int):
        raise UsageError(
            f"{place} is no inbox of plansmith: its table {META} is another's", remedy="name a database of its own"
        )
    if version > SCHEMA:
        raise EnvironmentFault(
            f"{place} was made by a newer plansmith (version {version} of its tables; this one knows {SCHEMA})",
            remedy="update plansmith on this machine, too",
        )
    return version


def _upgrade(connection: Connection, place: str) -> None:
    """Migrate the tables to the current schema; of several concurrent callers only one does the work."""
    import sqlalchemy as sa

    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(_TAKE_LOCK), {"number": _LOCK})
    for version in range(_known_version(connection, place), SCHEMA):
        for statement in UPGRADES[version]:
            connection.execute(sa.text(statement))
    connection.execute(sa.text(CHANGE_VERSION), {"version": SCHEMA})


def create_tables(connection: Connection, place: str) -> None:
    """Create missing tables in PostgreSQL; of several concurrent processes, one does it.

    Args:
        connection: in a transaction, at whose end they are there.
        place: the database as it may be shown.
    """
    import sqlalchemy as sa

    connection.execute(sa.text(_TAKE_LOCK), {"number": _LOCK})
    if has_inbox(connection, place):
        return
    for statement in TABLES:
        connection.execute(sa.text(statement.format(numbered=NUMBERED["postgresql"])))
    connection.execute(sa.text(NOTE_VERSION), {"version": SCHEMA})


class Database:
    """Inbox database. Safe for many threads and processes at once.

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
                create_file(self._file)
        self._identity = self._identity_now()
        self._engine = engine_of(url)
        try:
            with self.writing() as connection:
                if not has_inbox(connection, self.place):
                    self._found_here(connection, make=make)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Write transaction; committed and durable when the block ends, or rolled back.

        Raises:
            EnvironmentFault: the database cannot be reached or written.
        """
        with self._turn, database_faults(self.place):
            self._require_same_file()
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def adding(self) -> Iterator[Callable[..., int]]:
        """As `writing`; yields a function that runs a statement with named parameters and returns its row count.

        The statements go to the driver as they are: what SQLAlchemy does around one costs more than the one itself.

        Raises:
            EnvironmentFault: the database cannot be reached or written.
        """
        import sqlalchemy as sa

        dialect = self._engine.dialect
        with self._turn, database_faults(self.place):
            self._require_same_file()
            try:
                with closing(self._engine.raw_connection()) as connection:
                    try:
                        cursor = connection.cursor()

                        def add(statement: str, **values: Any) -> int:
                            cursor.execute(_driver_text(statement, dialect), values)
                            return cursor.rowcount

                        if self.kind == "sqlite":
                            cursor.execute(BEGIN)
                        yield add
                        connection.commit()
                    except BaseException as error:
                        connection.invalidate(error)
                        raise
            except dialect.loaded_dbapi.Error as error:
                raise sa.exc.DBAPIError(None, None, error) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read-only transaction that never waits for locks.

        Raises:
            EnvironmentFault: the database cannot be reached or read.
        """
        with database_faults(self.place):
            self._require_same_file()
            with self._engine.connect().execution_options(**{READS: True}) as connection:
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _found_here(self, connection: Connection, *, make: bool) -> None:
        if self._file is not None:
            raise UsageError(
                f"{self.place} is an empty database, and no inbox", remedy="remove the file, or name another"
            )
        self._require_making(make=make)
        create_tables(connection, self.place)

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
            status = self._file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _require_same_file(self) -> None:
        """Require that the database file was not removed or replaced.

        Writes to it would be lost with the last open handle.
        """
        if self._identity_now() != self._identity:
            raise EnvironmentFault(
                f"{self.place} was removed or replaced while it was in use",
                remedy="put it back and start again; with another file in its place, start again",
            )


def runner(connection: Connection) -> Callable[..., Any]:
    """Return a function that runs statements on a connection, with named parameters."""

    def run(statement: str, **values: Any) -> Any:
        return connection.execute(_text(statement), values)

    return run


@cache
def _text(statement: str) -> TextClause:
    """The parsed statement, cached; there are few of them."""
    import sqlalchemy as sa

    return sa.text(statement)


@cache
def _driver_text(statement: str, dialect: Dialect) -> str:
    """A statement with its parameters in the driver's style."""
    return str(_text(statement).compile(dialect=dialect))
