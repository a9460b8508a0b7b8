"""What a database says when something is wrong, as one clear error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from plansmith.errors import EnvironmentFault, PlansmithError, UsageError, first_line

_OWN = "see that the file, those beside it and their folder are yours to write"
_AGAIN = "see that it runs and can be reached from here, then run the same again"


@contextmanager
def database_faults(place: str) -> Iterator[None]:
    """Turn what a database refuses for reasons of its own into one message that names it.

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
        known = _of_sqlite(cause, place) if isinstance(cause, sqlite3.Error) else _of_postgresql(cause, place)
        if known is None:
            raise
        raise known from error


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


def _of_sqlite(error: sqlite3.Error, place: str) -> PlansmithError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what says more about it
    if code == sqlite3.SQLITE_NOTADB:
        return UsageError(f"{place} is no database", remedy="name another file, or move this one away")
    if code not in _SQLITE:
        return None
    what, remedy = _SQLITE[code]
    return EnvironmentFault(f"{place} {what} ({first_line(error)})", remedy=remedy, transient=code in _PASSING)


_TRANSIENT = ("08", "40", "53", "55", "57")
"""Classes of PostgreSQL's errors: connection, rolled back, no resources (a full disk), not now, an operator's doing."""


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
