"""Libraries that crash or hang and services that refuse: asked for real, in a process of their own."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli.doctor import probes
from plansmith.cli.doctor.findings import Ended, Probed, probed, run_probe, run_program

SECRET = "someone:something"
BASIC = f"Basic {base64.b64encode(SECRET.encode()).decode()}"


class Service(ThreadingHTTPServer):
    """Answers each path with a status, or with nothing until the end; `requests` holds (path, Authorization)."""

    def __init__(self, statuses: dict[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = statuses
        self.requests: list[tuple[str, str | None]] = []
        self.ending = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        status = self.server.statuses.get(self.path)
        if status is None:
            self.server.ending.wait()
            return
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the base class
        del format, args


@contextmanager
def service(statuses: dict[str, int]) -> Iterator[Service]:
    with Service(statuses) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            yield running
        finally:
            running.ending.set()
            running.shutdown()
            thread.join()


def look(name: str, *, online: bool = False, limit_seconds: float = 60) -> Probed:
    return asyncio.run(run_probe(name, online=online, limit_seconds=limit_seconds))


@pytest.fixture
def tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a `tensorrt` that children import."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path / "tensorrt.py"


def test_uninstalled_library_is_absent() -> None:
    """A library that is not installed is absent and not broken."""
    assert look("no_such_library").is_absent


def test_library_output_leaves_answer(tensorrt: Path) -> None:
    """What a library prints leaves the answer as it is."""
    tensorrt.write_text("print('{welcome')\n__version__ = '10.13.0'\n")
    assert look("tensorrt") == Probed({"version": "10.13.0"})


def test_missing_dependency_is_broken(tensorrt: Path) -> None:
    """A library that lacks another one is broken and not absent."""
    tensorrt.write_text("import no_such_library\n")
    assert look("tensorrt").broken == "ModuleNotFoundError: No module named 'no_such_library'"


def test_raising_library_is_broken(tensorrt: Path) -> None:
    """A library that raises is broken with the last line of its words."""
    tensorrt.write_text("raise ImportError('please read\\n\\n  libnvinfer.so.10: cannot open\\n')\n")
    assert look("tensorrt").broken == "ImportError: libnvinfer.so.10: cannot open"


def test_aborting_library_names_signal(tensorrt: Path) -> None:
    """A library that aborts names the signal and its last words."""
    tensorrt.write_text("import os\nos.write(2, b'CUDA initialisation\\nterminate called\\n')\nos.abort()\n")
    assert look("tensorrt").broken == "importing it was ended by SIGABRT: terminate called"


@pytest.mark.slow
def test_exiting_library_is_broken(tensorrt: Path) -> None:
    """A library that ends Python is broken."""
    tensorrt.write_text("import os\nos._exit(0)\n")
    assert look("tensorrt").broken == "importing it ended Python before there was an answer"
    tensorrt.write_text("raise SystemExit('no licence')\n")
    assert look("tensorrt").broken == "importing it ended with exit code 1: no licence"


@pytest.mark.slow
def test_hanging_library_ended_at_limit(tensorrt: Path) -> None:
    """A library that hangs is ended at its limit."""
    mark = tensorrt.parent / "pid"
    tensorrt.write_text(f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    assert look("tensorrt", limit_seconds=5).broken == "importing it did not end within 5 s"
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_unstartable_program_is_answer(tmp_path: Path) -> None:
    """A program that cannot be started is an answer too."""
    program = tmp_path / "trtexec"
    program.write_bytes(b"\x00not a program")
    program.chmod(0o755)
    ended = asyncio.run(run_program([str(program)]))
    assert ended.failure == f"ended with exit code 127: {program}: Exec format error"


def test_silent_failure_told_by_status() -> None:
    """A failure without words is told by its status."""
    assert probed(Ended(-11, "", "\n \n", 60)).broken == "importing it was ended by SIGSEGV"
    assert probed(Ended(3, "", "", 60)).broken == "importing it ended with exit code 3"


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 401])
def test_prefect_api_gets_credentials(status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The Prefect API gets the credentials, and its health route does not."""
    with service({"/api/health": 200, "/api/admin/version": status}) as api:
        monkeypatch.setenv("PREFECT_API_URL", f"http://{api.address}/api")
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", SECRET)
        monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
        probe = look("prefect", online=True)
        assert probe.facts is not None, probe.broken
        assert api.requests == [("/api/health", None), ("/api/admin/version", BASIC)]
    assert probe.facts["url"] == f"http://{api.address}/api"
    assert (probe.facts["health"], probe.facts["access"]) == ({"status": 200}, {"status": status})


def test_mlflow_password_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is asked without the password and reported without it."""
    with service({"/base/health": 200}) as mlflow:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{SECRET}@{mlflow.address}/base/")
        assert look("mlflow", online=True).facts == {
            "uri": f"http://{mlflow.address}/base/",
            "answer": {"status": 200},
        }
        assert look("mlflow").facts == {"uri": f"http://{mlflow.address}/base/"}
        assert mlflow.requests == [("/base/health", None)]


def test_hanging_service_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that hangs is given up."""
    monkeypatch.setattr(probes, "ANSWER_SECONDS", 0.2)
    with service({}) as hanging:
        assert probes.ask(f"http://{hanging.address}/health") == {"error": "no answer in 0.2 s"}


def test_credentials_skip_redirection() -> None:
    """Credentials do not follow a redirection."""
    with service({"/api": 302, "/elsewhere": 200}) as redirecting:
        assert probes.ask(f"http://{redirecting.address}/api", {"Authorization": BASIC}) == {"status": 302}
        assert redirecting.requests == [("/api", BASIC)]


def test_absent_service_is_answer() -> None:
    """Nobody at an address, or no address at all, is an answer too."""
    with service({}) as server:
        address = server.address
    assert probes.ask(f"http://{address}/") == {"error": "Connection refused"}
    assert "unknown url type" in probes.ask("prefect:4200/api")["error"]
