"""What the server image starts and asks, tried with the Triton that is here, without a container."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from plansmith.errors import EnvironmentFault
from plansmith.system.process import ProcessGroup
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.live import RunningTriton
from plansmith.triton.server.process import end_server, start_server

from ..support.triton.installed import installation
from .instructions import COMPOSE_SYNC, read

__all__ = ["installation"]

pytestmark = pytest.mark.slow

SERVER = read()[1]["server"]
ENTRYPOINT = SERVER.last("ENTRYPOINT").command()
READY_SECONDS = 30


def _free_ports() -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        return [server.getsockname()[1] for server in sockets]


def _health(port: int) -> int:
    """The exit code of the image's own health check, asked of another port."""
    program, flag, code = SERVER.last("HEALTHCHECK").command()
    assert (program, flag) == ("python3", "-c")
    assert code.count(":8000/") == 1
    command = [sys.executable, flag, code.replace(":8000/", f":{port}/")]
    return subprocess.run(command, capture_output=True, check=False).returncode


@contextmanager
def _started(installation: Installation, repository: Path, *more: str) -> Iterator[int]:
    """Triton with the flags of the image and more, on another repository and at other ports; that of HTTP."""
    flags = ENTRYPOINT[ENTRYPOINT.index("tritonserver") + 1 :]
    flags = [f"--model-repository={repository}" if f.startswith("--model-repository=") else f for f in flags]
    assert f"--model-repository={repository}" in flags
    http, grpc, metrics = _free_ports()
    flags += [*more, f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    flags += [f"--{protocol}-address=127.0.0.1" for protocol in ("http", "grpc", "metrics")]
    folders = os.pathsep.join(map(str, installation.library_path))
    assert _health(http) != 0
    with repository.with_name("log").open("wb") as log:
        command = [str(installation.binary), *flags, f"--backend-directory={installation.backends}"]
        group = ProcessGroup()
        server = start_server(command, {**os.environ, "LD_LIBRARY_PATH": folders}, log, group)
    try:
        yield http
    finally:
        end_server(server, group)


def _wait(is_so: Callable[[], bool], repository: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, repository.with_name("log").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def test_triton_takes_image_flags(installation: Installation, repository: Path) -> None:
    """Triton takes the image's flags, and the health check knows when it is ready."""
    with _started(installation, repository) as http:
        _wait(lambda: _health(http) == 0, repository)
    assert _health(http) != 0


def test_triton_starts_beside_sync(installation: Installation, repository: Path) -> None:
    """With a sync beside it, Triton starts though a model does not load."""
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "config.pbtxt").write_text('backend: "none"')
    more = yaml.safe_load(COMPOSE_SYNC.read_text())["services"]["server"]["command"]
    with _started(installation, repository, *more) as http:
        triton = RunningTriton(f"http://127.0.0.1:{http}")
        _wait(lambda: _is_reachable(triton), repository)
        assert triton.ready("broken") == []


def _is_reachable(triton: RunningTriton) -> bool:
    try:
        triton.require_reachable()
    except EnvironmentFault:
        return False
    return True
