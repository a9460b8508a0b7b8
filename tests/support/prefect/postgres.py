"""A real PostgreSQL on 127.0.0.1 with a database in a folder of its own, which can be killed and started again."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from ..faults.ends import still_running
from .programs import Program, free_port, own_environment

_INSTALLED = Path("/usr/lib/postgresql")  # where Debian puts every version, and nothing of it on the path
_USERS = ("postgres", "nobody")  # PostgreSQL refuses to run as root
_START_SECONDS = 180
_OWNER = "prefect"

_OPTIONS = ("unix_socket_directories=", "listen_addresses=127.0.0.1", "shared_buffers=16MB")


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server; `url` is what Prefect's server is given."""

    program: Program
    port: int
    url: str

    def start(self) -> None:
        """Start it, or start it again after it was killed: it mends its files and answers."""
        self.program.start(partial(_answers, self.port), _START_SECONDS)

    def kill(self) -> None:
        """SIGKILL to the process that looks after the others, which end with it."""
        children = psutil.Process(self.program.number).children()
        self.program.kill()
        assert not still_running(children)


@contextmanager
def running(*, durable: bool = False) -> Iterator[Postgres]:
    """A PostgreSQL with an empty database, for the length of a block.

    Args:
        durable: flush to the disk what is committed. Otherwise what a killed process wrote is the kernel's, and only
            the machine could lose it.
    """
    user, port, password = _user(), free_port(), secrets.token_hex(8)
    # Not below pytest's own folder, into which nobody else may look.
    folder = Path(tempfile.mkdtemp(prefix="plansmith-postgres-"))
    command = [
        _binary("postgres"),
        "-D",
        str(folder / "data"),
        "-p",
        str(port),
        *(f"-c{option}" for option in _OPTIONS),
    ]
    command += [] if durable else ["-cfsync=off"]
    program = Program(
        command,
        folder / "log",
        own_environment(),
        user=user,
        folder=folder,
        scratch=folder,
        asked_by=signal.SIGINT,  # which does not wait for clients
    )
    try:
        _make(folder, user, password)
        database = Postgres(program, port, f"postgresql+asyncpg://{_OWNER}:{password}@127.0.0.1:{port}/postgres")
        database.start()
        yield database
    finally:
        program.stop()


def _make(folder: Path, user: str | None, password: str) -> None:
    """The files of a server whose owner logs in with a password."""
    (folder / "password").write_text(password)
    if user is not None:
        for path in (folder, folder / "password"):
            os.chown(path, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    command = [_binary("initdb"), "--pgdata", "data", "--username", _OWNER, "--pwfile", "password"]
    command += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
    done = subprocess.run(command, cwd=folder, user=user, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _user() -> str | None:
    """Who runs it; None for this user."""
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _USERS if name in users)


def _binary(name: str) -> str:
    paths = sorted(_INSTALLED.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    assert paths, "PostgreSQL is not installed: apt-get install postgresql, or make debian, which does"
    return str(paths[-1])


def _answers(port: int) -> bool:
    """Whether it takes connections: pg_isready asks as a client would, without a login."""
    command = [_binary("pg_isready"), "--quiet", "--host", "127.0.0.1", "--port", str(port)]
    return subprocess.run(command, check=False).returncode == 0
