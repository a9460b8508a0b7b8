"""The tables of an inbox: made on first use, and looked at before every other."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.system.files import fsync_path
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
    from sqlalchemy import Connection

_LOCK = 0x706C616E  # "plan": whoever makes tables in a PostgreSQL holds the advisory lock of this number
_TAKE_LOCK = "SELECT pg_advisory_xact_lock(:number)"


def create_file(path: Path) -> None:
    """Make the file of an inbox in SQLite, which appears whole; where another process was first, its stays.

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
    """Whether a database holds an inbox that this plansmith knows; one of an older plansmith is brought up to date.

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
        one = min(names)
        raise UsageError(
            f"{place} is no inbox of plansmith: it holds other tables, such as {one}",
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
    """Make the tables those of now; of several who do it at once, one does."""
    import sqlalchemy as sa

    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(_TAKE_LOCK), {"number": _LOCK})
    for version in range(_known_version(connection, place), SCHEMA):
        for statement in UPGRADES[version]:
            connection.execute(sa.text(statement))
    connection.execute(sa.text(CHANGE_VERSION), {"version": SCHEMA})


def create_tables(connection: Connection, place: str) -> None:
    """Make the tables in a PostgreSQL where they are missing; of several who do it at once, one does.

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
