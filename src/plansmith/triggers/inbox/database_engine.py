"""Connections to the database of an inbox: what they commit is durable, and those that are given out are alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Dialect, Engine

READS = "plansmith_reads"
"""The option of a connection to SQLite whose transaction only reads."""

BEGIN = "BEGIN IMMEDIATE"
"""Begins a transaction of SQLite that writes."""

_BUSY_SECONDS = 30
_USED, _FRESH_SECONDS = "plansmith_used", 1.0

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


def engine_of(url: URL) -> Engine:
    """What gives connections to a database, each with settings that make what it commits durable.

    Raises:
        EnvironmentFault: a library is missing.
    """
    import sqlalchemy as sa

    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, paramstyle="named")
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    given = {name: value for name, value in _POSTGRESQL_PATIENCE.items() if name not in url.query}
    try:
        engine = sa.create_engine(url, isolation_level="READ COMMITTED", connect_args=given)
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
    """One that writes takes its lock at once: two that read first could not both go on to write."""
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
    """Sees that the server is there before a connection is used again, and has another one made where it is not.

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
    """Whether there is something to read from a server that was asked nothing."""
    looked = poll()
    looked.register(connection, POLLIN)
    return bool(looked.poll(0))
