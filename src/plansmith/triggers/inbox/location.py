"""Inbox location: the URL of its database, and the part of it that may be displayed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.service import ServiceConfig
from plansmith.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from sqlalchemy import URL

DEFAULT_FILE = "plansmith-triggers.db"

_WRITE_IT = "write sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


def require_sqlalchemy() -> None:
    """Require that SQLAlchemy is installed.

    Raises:
        EnvironmentFault: SQLAlchemy is not installed.
    """
    try:
        import sqlalchemy  # noqa: F401 - whether it is there
    except ImportError as error:
        raise EnvironmentFault("SQLAlchemy is not installed", remedy="pip install 'plansmith[triggers]'") from error


def database_of(service: ServiceConfig, *, instead: str = "") -> str:
    """Return the database URL of a service's inbox; a file path is relative to the service's directory.

    Args:
        service: as `read_service` gave it, with an absolute directory.
        instead: how to do without the file of a service, where that can be done.

    Raises:
        UsageError: the service hears of no registry; or the variable that holds the URL is not set, or holds none.
    """
    if service.triggers is None:
        remedy = "name registries and rules there"
        raise UsageError(
            "the file of the service has no section `triggers`", remedy=f"{remedy}, or {instead}" if instead else remedy
        )
    text = service.triggers.database or f"sqlite:///{DEFAULT_FILE}"
    if text.startswith("env:"):
        variable = text.removeprefix("env:")
        text = os.environ.get(variable, "")
        if not text:
            raise UsageError(
                f"the environment variable {variable}, which holds the URL of the inbox, is not set",
                remedy=f"export {variable}=postgresql://USER:PASSWORD@HOST/DATABASE",
            )
    return read_url(text, Path(service.directory)).render_as_string(hide_password=False)


def read_url(text: str, directory: Path) -> URL:
    """Parse the database URL of an inbox.

    Args:
        text: as a person writes it; it may hold a password, and is in no error.
        directory: what the file of SQLite is relative to.

    Raises:
        EnvironmentFault: SQLAlchemy is not installed.
        UsageError: it is none.
    """
    require_sqlalchemy()
    import sqlalchemy as sa

    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError("the URL of the inbox is no URL of a database", remedy=_WRITE_IT) from None
    if url.drivername not in _DRIVERS:
        raise UsageError(f"an inbox cannot lie in {url.drivername}", remedy=_WRITE_IT)
    url = url.set(drivername=_DRIVERS[url.drivername])
    if url.drivername != "sqlite":
        return url
    if not url.database or url.database == ":memory:" or url.host or url.query:
        raise UsageError(
            "the URL of an inbox in SQLite names a file and nothing else",
            remedy="write sqlite:///FILE, or sqlite:////FOLDER/FILE from the root",
        )
    return url.set(database=str(directory.absolute() / url.database))


def shown(url: URL) -> str:
    """Return a URL without its password and options, which may contain one too."""
    plain = url.set(drivername=url.get_backend_name(), query={})
    return plain.render_as_string(hide_password=True)
