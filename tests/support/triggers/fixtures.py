"""Inboxes in SQLite and in a real PostgreSQL, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from plansmith.triggers.inbox.inbox import Inbox

from ..prefect import postgres
from ..prefect.postgres import Postgres
from .inboxes import Clock, opened

_NUMBERS = count()


@pytest.fixture(scope="session")
def database_server() -> Iterator[Postgres]:
    """A PostgreSQL for all tests of inboxes."""
    with postgres.running() as server:
        yield server


@pytest.fixture
def postgresql_url(database_server: Postgres) -> str:
    """An empty database of its own in the PostgreSQL."""
    import sqlalchemy as sa

    server = sa.make_url(database_server.url).set(drivername="postgresql+psycopg")
    name = f"inbox{next(_NUMBERS)}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server.set(drivername="postgresql", database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an inbox may be made: in each of the databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/inbox.db"
    value = request.getfixturevalue("postgresql_url")
    assert isinstance(value, str)
    return value


@pytest.fixture
def clock() -> Clock:
    """Noon of a day."""
    return Clock()


@pytest.fixture
def inbox(url: str, clock: Clock) -> Iterator[Inbox]:
    """An empty inbox."""
    with opened(url, clock) as instance:
        yield instance
