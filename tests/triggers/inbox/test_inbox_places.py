"""Where an inbox may lie, and what is said where it cannot: nothing is taken for kept that is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError, UsageError
from plansmith.triggers.inbox import database_engine
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


def test_a_file_of_sqlite_flushes_every_commit_to_the_disk(file: Path) -> None:
    with opened(f"sqlite:///{file}") as inbox, inbox._database.writing() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 30_000}


@pytest.mark.services
def test_postgresql_flushes_every_commit_though_the_database_was_told_not_to(postgresql_url: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(postgresql_url.replace("postgresql:", "postgresql+psycopg:"))
    name = engine.url.database
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    engine.dispose()
    with opened(postgresql_url) as inbox, inbox._database.writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_an_inbox_appears_whole_and_nothing_is_left_beside_it(file: Path) -> None:
    with opened(f"sqlite:///{file}"):
        pass
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_relative_file_is_one_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened("sqlite:///here.db") as inbox:
        assert inbox.place == f"sqlite:///{tmp_path}/here.db"


def test_an_inbox_that_is_not_to_be_made_is_not(file: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no inbox .*inbox\.db"):
        open_inbox(f"sqlite:///{file}", make=False)
    assert not file.exists()


@pytest.mark.services
def test_tables_that_are_not_to_be_made_in_postgresql_are_not(postgresql_url: str) -> None:
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
def test_a_url_that_is_none_is_refused_without_its_password(url: str, says: str) -> None:
    said = _refusal(url, UsageError)
    assert says in said
    assert "geheim" not in said


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    said = _refusal("postgresql://user:geheim@127.0.0.1:1/db?sslpassword=geheim", EnvironmentFault)
    assert "postgresql://…@127.0.0.1:1/db does not answer" in said
    assert "geheim" not in said


def test_a_folder_that_is_not_there_is_named_with_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="there is no folder") as refused:
        open_inbox(f"sqlite:///{tmp_path}/absent/inbox.db")
    assert refused.value.remedy == f"mkdir -p {tmp_path}/absent"


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with read_only(tmp_path / "empty", tmp_path / "mounted") as folder:
        said = _refusal(f"sqlite:///{folder}/inbox.db", EnvironmentFault)
    assert said.startswith(f"cannot make the inbox {folder}/inbox.db: ")


def test_an_inbox_that_can_only_be_read_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    with opened(f"sqlite:///{tmp_path}/own/inbox.db") as inbox:
        inbox.take(REGISTRY, "d-1", [event("a")])
    with read_only(tmp_path / "own", tmp_path / "mounted") as folder:
        said = _refusal(f"sqlite:///{folder}/inbox.db", EnvironmentFault)
    assert f"{folder}/inbox.db cannot be" in said


def test_a_full_disk_is_said_and_takes_the_same_delivery_when_it_has_room(cramped: Cramped) -> None:
    filler = cramped.folder / "filler"
    filler.write_bytes(b"x" * (_ROOM // 2))
    kept: list[str] = []

    def fill() -> None:
        for number in range(10_000):
            assert inbox.take(REGISTRY, f"d-{number}", [event("a" * 1000, number)])
            kept.append(f"d-{number}")

    with opened(f"sqlite:///{cramped.folder}/inbox.db") as inbox:
        with cramped.limited(), pytest.raises(EnvironmentFault) as full:
            fill()
        assert full.value.transient
        assert "room" in full.value.remedy or "space" in full.value.remedy
        assert kept
        assert [entry.delivery for entry in reversed(inbox.entries(limit=10_000))] == kept
        filler.unlink()
        assert inbox.take(REGISTRY, f"d-{len(kept)}", [event("b")])
        assert not inbox.take(REGISTRY, kept[-1], [event("b")])


def test_a_folder_without_room_for_an_inbox_gets_no_half_of_one(tmp_path: Path) -> None:
    with cramped_folder(tmp_path / "tiny", 16 * 1024) as tiny, tiny.limited():
        said = _refusal(f"sqlite:///{tiny.folder}/inbox.db", EnvironmentFault)
        assert f"{tiny.folder}/inbox.db" in said
        assert not list(tiny.folder.iterdir())


def test_a_file_that_was_removed_while_it_was_in_use_takes_nothing_more(file: Path) -> None:
    with opened(f"sqlite:///{file}") as inbox:
        inbox.take(REGISTRY, "d-1", [event("a")])
        file.unlink()
        with pytest.raises(EnvironmentFault, match="was removed or replaced"):
            inbox.take(REGISTRY, "d-2", [event("a")])
        with opened(f"sqlite:///{file}"), pytest.raises(EnvironmentFault, match="was removed or replaced"):
            inbox.take(REGISTRY, "d-3", [event("a")])


def test_a_database_of_something_else_is_refused_and_left_as_it_is(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")
        connection.commit()
    before = file.read_bytes()
    said = _refusal(f"sqlite:///{file}", UsageError)
    assert "is no inbox of plansmith: it holds other tables, such as invoices" in said
    assert file.read_bytes() == before


@pytest.mark.services
def test_a_postgresql_of_something_else_is_refused(postgresql_url: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(postgresql_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE invoices (id INTEGER)")
    assert "such as invoices" in _refusal(postgresql_url, UsageError)
    assert sa.inspect(engine).get_table_names() == ["invoices"]
    engine.dispose()


def test_a_table_of_the_same_name_that_is_anothers_is_refused(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE plansmith_inbox (version TEXT)")
        connection.commit()
    assert "is another's" in _refusal(f"sqlite:///{file}", UsageError)


@pytest.mark.parametrize(("content", "says"), [(b"", "empty database"), (b"no database\n" * 100, "is no database")])
def test_a_file_that_is_no_database_is_refused_and_stays(content: bytes, says: str, file: Path) -> None:
    file.write_bytes(content)
    assert says in _refusal(f"sqlite:///{file}", UsageError)
    assert file.read_bytes() == content


def test_an_inbox_of_a_newer_plansmith_is_refused(url: str) -> None:
    with opened(url) as inbox, inbox._database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE plansmith_inbox SET version = {SCHEMA + 1}")
    with pytest.raises(EnvironmentFault, match="was made by a newer plansmith") as refused:
        open_inbox(url)
    assert refused.value.remedy == "update plansmith on this machine, too"


def test_a_database_that_another_keeps_to_itself_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(f"sqlite:///{file}"):
        pass
    monkeypatch.setattr(database_engine, "_SQLITE_SETTINGS", ("PRAGMA busy_timeout = 1",))
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EnvironmentFault, match="is kept by another process") as refused:
            open_inbox(f"sqlite:///{file}")
    assert refused.value.transient


def test_a_delivery_that_cannot_be_kept_while_another_has_the_database_is_taken_after_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_engine, "_SQLITE_SETTINGS", ("PRAGMA busy_timeout = 1",))
    with opened(f"sqlite:///{file}") as inbox, closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EnvironmentFault, match="is kept by another process") as refused:
            inbox.take(REGISTRY, "d-1", [event("a")])
        assert refused.value.transient
        other.execute("ROLLBACK")
        assert inbox.take(REGISTRY, "d-1", [event("a")])


def test_of_what_was_added_before_something_went_wrong_nothing_is_kept(url: str) -> None:
    def add_and_fail() -> None:
        with inbox._database.adding() as add:
            assert add(ADD_DELIVERY, registry=REGISTRY, delivery="d-1", received=1.0, expires=0) == 1
            raise ZeroDivisionError

    with opened(url) as inbox:
        with pytest.raises(ZeroDivisionError):
            add_and_fail()
        assert inbox.take(REGISTRY, "d-1", [event("a")])


@pytest.mark.services
def test_connections_that_the_server_ended_a_moment_ago_are_made_anew(postgresql_url: str) -> None:
    with opened(postgresql_url) as inbox, opened(postgresql_url) as other:
        assert inbox.take(REGISTRY, "d-1", [event("a")])
        with other._database.writing() as connection:
            mine = "pid <> pg_backend_pid() AND datname = current_database()"
            ended = f"SELECT COUNT(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE {mine}"
            assert connection.exec_driver_sql(ended).scalar() == 1
        assert inbox.take(REGISTRY, "d-2", [event("a")])
