"""What the server image starts and asks, tried with the Triton that is here, without a container."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triton.installation import Installation, find_installation
from plansmith.triton.server_process import end_server, start_server

from .instructions import read

SERVER = read()[1]["server"]
ENTRYPOINT = SERVER.last("ENTRYPOINT").words()
READY_SECONDS = 30


@pytest.fixture(scope="module")
def installation() -> Installation:
    try:
        return find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))


def _free_ports() -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        return [one.getsockname()[1] for one in sockets]


def _health(port: int) -> int:
    """The exit code of the image's own health check, asked of another port."""
    program, flag, code = SERVER.last("HEALTHCHECK").words()
    assert (program, flag) == ("python3", "-c")
    assert code.count(":8000/") == 1
    asked = [sys.executable, flag, code.replace(":8000/", f":{port}/")]
    return subprocess.run(asked, capture_output=True, check=False).returncode


def test_triton_takes_the_flags_of_the_image_and_the_health_check_knows_when_it_is_ready(
    installation: Installation, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    flags = ENTRYPOINT[ENTRYPOINT.index("tritonserver") + 1 :]
    flags = [f"--model-repository={repository}" if f.startswith("--model-repository=") else f for f in flags]
    assert f"--model-repository={repository}" in flags
    http, grpc, metrics = _free_ports()
    flags += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    flags += [f"--{protocol}-address=127.0.0.1" for protocol in ("http", "grpc", "metrics")]
    folders = os.pathsep.join(map(str, installation.library_path))
    assert _health(http) != 0
    with (tmp_path / "log").open("wb") as log:
        command = [str(installation.binary), *flags, f"--backend-directory={installation.backends}"]
        server = start_server(command, {**os.environ, "LD_LIBRARY_PATH": folders}, log)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while _health(http) != 0:
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
    finally:
        end_server(server)
    assert _health(http) != 0
