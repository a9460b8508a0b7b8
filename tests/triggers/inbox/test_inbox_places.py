"""Where an inbox may lie, and what is said where it cannot: nothing is taken for kept that is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError, UsageError
from plansmith.triggers.inbox import database
from plansmith.triggers.inbox.inbox import open_inbox
from plansmith.triggers.inbox.sql import ADD_DELIVERY, SCHEMA

from ...support.cli.read_only import read_only
from ...support.faults.cramped import Cramped, cramped_folder
from ...support.triggers.inboxes import REGISTRY, event, opened

_ROOM = 512 * 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where an inbox may be made."""
    return tmp_path / "inbox.db"


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Cramped]:
    """A folder with little room."""
    with cramped_folder(tmp_path / "cramped", _ROOM) as folder:
        yield folder


def _refusal(url: str, kind: type[PlansmithError]) -> str:
    with pytest.raises(kind) as refused:
        open_inbox(url)
    assert refused.value.remedy
    return refused.value.message


def test_sqlite_flushes_every_commit(file: Path) -> None:
    """A file of SQLite flushes every commit to the disk."""
    with opened(f"sqlite:///{file}") as inbox, inbox._database.writing() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 30_000}


@pytest.mark.services
def test_postgresql_flushes_every_commit(postgresql_url: str) -> None:
    """PostgreSQL flushes every commit, though the database was told not to."""
    import sqlalchemy as sa

    engine = sa.create_engine(postgresql_url.replace("postgresql:", "postgresql+psycopg:"))
    name = engine.url.database
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    engine.dispose()
    with opened(postgresql_url) as inbox, inbox._database.writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_inbox_appears_whole(file: Path) -> None:
    """An inbox appears whole and nothing is left beside it."""
    with opened(f"sqlite:///{file}"):
        pass
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_relative_file_in_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative file is one of the working directory."""
    monkeypatch.chdir(tmp_path)
    with opened("sqlite:///here.db") as inbox:
        assert inbox.place == f"sqlite:///{tmp_path}/here.db"


def test_inbox_not_made_unasked(file: Path) -> None:
    """An inbox that is not to be made is not."""
    with pytest.raises(UsageError, match=r"there is no inbox .*inbox\.db"):
        open_inbox(f"sqlite:///{file}", make=False)
    assert not file.exists()


@pytest.mark.services
def test_postgresql_tables_not_made_unasked(postgresql_url: str) -> None:
    """Tables that are not to be made in PostgreSQL are not made."""
    for _ in range(2):
        with pytest.raises(UsageError, match="there is no inbox postgresql://"):
            open_inbox(postgresql_url, make=False)


WRONG = {
    "no URL": ("inbox.db", "no URL of a database"),
    "another database": ("mysql://user:geheim@host/db", "cannot lie in mysql"),
    "another driver": ("postgresql+asyncpg://user:geheim@host/db", "cannot lie in postgresql+asyncpg"),
    "memory": ("sqlite://", "names a file"),
    "memory by name": ("sqlite:///:memory:", "names a file"),
    "options of SQLite": ("sqlite:///inbox.db?mode=ro", "names a file"),
    "a port that is none": ("postgresql://user:geheim@host:port/db", "no URL of a database"),
}


@pytest.mark.parametrize(("url", "says"), WRONG.values(), ids=WRONG.keys())
def test_invalid_url_refused_without_password(url: str, says: str) -> None:
    """A URL that is none is refused without its password."""
    message = _refusal(url, UsageError)
    assert says in message
    assert "geheim" not in message


def test_absent_server_named_without_password() -> None:
    """A server that is away is named without its password."""
    message = _refusal("postgresql://user:geheim@127.0.0.1:1/db?sslpassword=geheim", EnvironmentFault)
    assert "postgresql://…@127.0.0.1:1/db does not answer" in message
    assert "geheim" not in message


def test_missing_folder_named_with_remedy(tmp_path: Path) -> None:
    """A folder that is not there is named with how to make it."""
    with pytest.raises(EnvironmentFault, match="there is no folder") as refused:
        open_inbox(f"sqlite:///{tmp_path}/absent/inbox.db")
    assert refused.value.remedy == f"mkdir -p {tmp_path}/absent"


def test_unwritable_folder_named(tmp_path: Path) -> None:
    """A folder that takes no files is named."""
    (tmp_path / "empty").mkdir()
    with read_only(tmp_path / "empty", tmp_path / "mounted") as folder:
        message = _refusal(f"sqlite:///{folder}/inbox.db", EnvironmentFault)
    assert message.startswith(f"cannot make the inbox {folder}/inbox.db: ")


def test_read_only_inbox_refused(tmp_path: Path) -> None:
    """An inbox that can only be read is refused when it is opened."""
    (tmp_path / "own").mkdir()
    with opened(f"sqlite:///{tmp_path}/own/inbox.db") as inbox:
        inbox.take(REGISTRY, "d-1", [event("a")])
    with read_only(tmp_path / "own", tmp_path / "mounted") as folder:
        message = _refusal(f"sqlite:///{folder}/inbox.db", EnvironmentFault)
    assert f"{folder}/inbox.db cannot be" in message


def test_full_disk_told_then_retaken(cramped: Cramped) -> None:
    """A full disk is told, and takes the same delivery when it has room."""
    filler = cramped.folder / "filler"
    filler.write_bytes(b"x" * (_ROOM // 2))
    deliveries: list[str] = []

    def fill() -> None:
        for number in range(10_000):
            assert inbox.take(REGISTRY, f"d-{number}", [event("a" * 1000, number)])
            deliveries.append(f"d-{number}")

    with opened(f"sqlite:///{cramped.folder}/inbox.db") as inbox:
        with cramped.limited(), pytest.raises(EnvironmentFault) as full:
            fill()
        assert full.value.transient
        assert "room" in full.value.remedy or "space" in full.value.remedy
        assert deliveries
        assert [entry.delivery for entry in reversed(inbox.entries(limit=10_000))] == deliveries
        filler.unlink()
        assert inbox.take(REGISTRY, f"d-{len(deliveries)}", [event("b")])
        assert not inbox.take(REGISTRY, deliveries[-1], [event("b")])


def test_full_folder_gets_no_half(tmp_path: Path) -> None:
    """A folder without room for an inbox gets no half of one."""
    with cramped_folder(tmp_path / "tiny", 16 * 1024) as tiny, tiny.limited():
        message = _refusal(f"sqlite:///{tiny.folder}/inbox.db", EnvironmentFault)
        assert f"{tiny.folder}/inbox.db" in message
        assert not list(tiny.folder.iterdir())


def test_removed_file_takes_nothing_more(file: Path) -> None:
    """A file that was removed while it was in use takes nothing more."""
    with opened(f"sqlite:///{file}") as inbox:
        inbox.take(REGISTRY, "d-1", [event("a")])
        file.unlink()
        with pytest.raises(EnvironmentFault, match="was removed or replaced"):
            inbox.take(REGISTRY, "d-2", [event("a")])
        with opened(f"sqlite:///{file}"), pytest.raises(EnvironmentFault, match="was removed or replaced"):
            inbox.take(REGISTRY, "d-3", [event("a")])


def test_foreign_database_refused_unchanged(file: Path) -> None:
    """A database of something else is refused and left as it is."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")
        connection.commit()
    before = file.read_bytes()
    message = _refusal(f"sqlite:///{file}", UsageError)
    assert "is no inbox of plansmith: it holds other tables, such as invoices" in message
    assert file.read_bytes() == before


@pytest.mark.services
def test_foreign_postgresql_refused(postgresql_url: str) -> None:
    """A PostgreSQL of something else is refused."""
    import sqlalchemy as sa

    engine = sa.create_engine(postgresql_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE invoices (id INTEGER)")
    assert "such as invoices" in _refusal(postgresql_url, UsageError)
    assert sa.inspect(engine).get_table_names() == ["invoices"]
    engine.dispose()


def test_foreign_table_refused(file: Path) -> None:
    """A table of the same name that is another's is refused."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE plansmith_inbox (version TEXT)")
        connection.commit()
    assert "is another's" in _refusal(f"sqlite:///{file}", UsageError)


@pytest.mark.parametrize(("content", "says"), [(b"", "empty database"), (b"no database\n" * 100, "is no database")])
def test_non_database_file_refused(content: bytes, says: str, file: Path) -> None:
    """A file that is no database is refused and stays."""
    file.write_bytes(content)
    assert says in _refusal(f"sqlite:///{file}", UsageError)
    assert file.read_bytes() == content


def test_newer_plansmith_inbox_refused(url: str) -> None:
    """An inbox of a newer plansmith is refused."""
    with opened(url) as inbox, inbox._database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE plansmith_inbox SET version = {SCHEMA + 1}")
    with pytest.raises(EnvironmentFault, match="was made by a newer plansmith") as refused:
        open_inbox(url)
    assert refused.value.remedy == "update plansmith on this machine, too"


def test_locked_database_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that another process keeps to itself is told."""
    with opened(f"sqlite:///{file}"):
        pass
    monkeypatch.setattr(database, "_SQLITE_SETTINGS", ("PRAGMA busy_timeout = 1",))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(EnvironmentFault, match="is kept by another process") as refused:
            open_inbox(f"sqlite:///{file}")
    assert refused.value.transient


def test_delivery_taken_after_lock(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery that cannot be kept while another has the database is taken afterwards."""
    monkeypatch.setattr(database, "_SQLITE_SETTINGS", ("PRAGMA busy_timeout = 1",))
    with opened(f"sqlite:///{file}") as inbox, closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(EnvironmentFault, match="is kept by another process") as refused:
            inbox.take(REGISTRY, "d-1", [event("a")])
        assert refused.value.transient
        connection.execute("ROLLBACK")
        assert inbox.take(REGISTRY, "d-1", [event("a")])


def test_failed_batch_keeps_nothing(url: str) -> None:
    """Of what was added before something went wrong, nothing is kept."""

    def add_and_fail() -> None:
        with inbox._database.adding() as add:
            assert add(ADD_DELIVERY, registry=REGISTRY, delivery="d-1", received=1.0, expires=0) == 1
            raise ZeroDivisionError

    with opened(url) as inbox:
        with pytest.raises(ZeroDivisionError):
            add_and_fail()
        assert inbox.take(REGISTRY, "d-1", [event("a")])


@pytest.mark.services
def test_ended_connections_made_anew(postgresql_url: str) -> None:
    """Connections that the server ended a moment ago are made anew."""
    with opened(postgresql_url) as inbox, opened(postgresql_url) as second:
        assert inbox.take(REGISTRY, "d-1", [event("a")])
        with second._database.writing() as connection:
            mine = "pid <> pg_backend_pid() AND datname = current_database()"
            ended = f"SELECT COUNT(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE {mine}"
            assert connection.exec_driver_sql(ended).scalar() == 1
        assert inbox.take(REGISTRY, "d-2", [event("a")])
