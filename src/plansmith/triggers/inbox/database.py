"""The database that an inbox lies in: connections that make what they commit durable, and transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.inbox.database_engine import BEGIN, READS, engine_of
from plansmith.triggers.inbox.faults import database_faults
from plansmith.triggers.inbox.location import shown
from plansmith.triggers.inbox.schema import create_file, create_tables, has_inbox

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Dialect, TextClause


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
        """A transaction that writes; committed and durable when the block has ended, or as if it had never been.

        Raises:
            EnvironmentFault: the database cannot be reached or written.
        """
        with self._turn, database_faults(self.place):
            self._require_same_file()
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def adding(self) -> Iterator[Callable[..., int]]:
        """As `writing`, and gives what runs a statement, with its values by name, and tells how many rows it changed.

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
        """A transaction that only reads, and waits for nobody.

        Raises:
            EnvironmentFault: the database cannot be reached or read.
        """
        with database_faults(self.place):
            self._require_same_file()
            with self._engine.connect().execution_options(**{READS: True}) as connection:
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


def runner(connection: Connection) -> Callable[..., Any]:
    """Runs statements on a connection, with their values by name."""

    def run(statement: str, **values: Any) -> Any:
        return connection.execute(_text(statement), values)

    return run


@cache
def _text(statement: str) -> TextClause:
    """A statement whose values were looked for once; there are few."""
    import sqlalchemy as sa

    return sa.text(statement)


@cache
def _driver_text(statement: str, dialect: Dialect) -> str:
    """A statement with its values named as a driver has them."""
    return str(_text(statement).compile(dialect=dialect))
