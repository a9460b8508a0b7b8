"""A Triton server is found, started, watched and taken down without a trace."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from plansmith.errors import EnvironmentFault, ServedCheckError
from plansmith.triton.server import installation as places
from plansmith.triton.server import server as server_module
from plansmith.triton.server.installation import Installation, find_installation
from plansmith.triton.server.server import TritonServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..conftest import Started

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def repository(tmp_path: Path, config: str, graph: Callable[[int | str], Any], write_model: Any) -> Path:
    """A repository of one good model, `good`."""
    write_model(tmp_path / "repository", "good", config, graph("n"))
    return tmp_path / "repository"


@pytest.fixture
def traces() -> Callable[[], set[Path]]:
    """What servers that were started since the test began keep outside their own folders while they run."""

    def present() -> set[Path]:
        pattern = f"plansmith-{os.getpid()}-*"
        return {*SHARED_MEMORY.glob(pattern), *Path(tempfile.gettempdir()).glob(pattern)}

    before = present()
    return lambda: present() - before


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def fake_installation(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "backends").mkdir()
    binary = root / "bin" / "tritonserver"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    return binary


FAMILY = ["sh", "tritonserver", "triton_python_backend_stub"]
"""The leader of the process group, the server, and the stub that it starts."""


def server_of(family: list[psutil.Process]) -> psutil.Process:
    """The server among the processes that were started with it."""
    return next(process for process in family if process.name() == "tritonserver")


@pytest.mark.slow
def test_started_server_answers_stopped_vanishes(
    repository: Path,
    installation: Installation,
    site: Path,
    tmp_path: Path,
    started: Started,
    traces: Callable[[], set[Path]],
) -> None:
    """A started server answers and a stopped one leaves nothing."""
    with TritonServer(repository, installation, tmp_path / "log", site=site) as server:
        assert server.version == installation.version
        connection = http.client.HTTPConnection(server.http_url)
        connection.request("GET", "/v2/models/good/ready")
        assert connection.getresponse().status == http.client.OK
        connection.close()
        children = started()
        assert [child.name() for child in children] == FAMILY
        assert len(traces()) == 2
    assert not any(is_running(child.pid) for child in children)
    assert not traces()
    assert "Started GRPCInferenceService" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_unloadable_models_named_with_reasons(
    repository: Path,
    installation: Installation,
    site: Path,
    tmp_path: Path,
    config: str,
    traces: Callable[[], set[Path]],
) -> None:
    """Triton takes every folder of a repository for a model, even one whose name starts with a dot."""
    (repository / ".notes").mkdir()
    (repository / "unread" / "1").mkdir(parents=True)
    (repository / "unread" / "config.pbtxt").write_text("max_batch_size 8")
    (repository / "empty" / "1").mkdir(parents=True)
    (repository / "empty" / "config.pbtxt").write_text(config)
    with (
        pytest.raises(ServedCheckError) as failure,
        TritonServer(repository, installation, tmp_path / "log", site=site),
    ):
        pytest.fail("the server must not be ready")
    lines = failure.value.message.splitlines()
    assert any(line.startswith(".notes: Not loaded: No model version was found") for line in lines)
    assert any(line.startswith("empty: UNAVAILABLE: ") and "unable to find" in line for line in lines)
    assert any(line.startswith("unread: failed to read text proto") for line in lines)
    assert not any(line.startswith("good") for line in lines)
    assert failure.value.log == tmp_path / "log"
    assert not traces()


@pytest.mark.slow
def test_shell_special_place_served(
    installation: Installation, site: Path, config: str, graph: Any, write_model: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """A place that means something to a shell is served like any other."""
    odd = tmp_path / 'it\'s "a" $HOME; place & модель'
    write_model(odd / "repository", "tiny", config, graph("n"))
    (odd / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd / "temporary"))
    with TritonServer(odd / "repository", installation, odd / "server.log", site=site) as server:
        connection = http.client.HTTPConnection(server.http_url)
        connection.request("GET", "/v2/models/tiny/ready")
        assert connection.getresponse().status == http.client.OK
        connection.close()
    assert not list((odd / "temporary").iterdir())


@pytest.mark.slow
def test_hidden_folder_harmless_with_names(
    repository: Path, installation: Installation, site: Path, tmp_path: Path
) -> None:
    """A hidden folder does no harm where models are named."""
    (repository / ".notes").mkdir()
    with TritonServer(repository, installation, tmp_path / "log", site=site, models=["good"]) as server:
        assert server.version


@pytest.mark.slow
def test_slow_server_ended(repository: Path, installation: Installation, tmp_path: Path, started: Started) -> None:
    """A server that takes too long is ended."""
    server = TritonServer(repository, installation, tmp_path / "log", models=[], deadline_seconds=0.01)
    with pytest.raises(ServedCheckError, match=r"not ready after 0\.01 s"), server:
        pytest.fail("the server must not be ready")
    assert not started()


@pytest.mark.slow
def test_taken_fixed_port_is_fault(installation: Installation, tmp_path: Path) -> None:
    """A fixed port is used, and a taken one is a fault."""
    (tmp_path / "empty").mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        server = TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[], ports=(0, port, 0))
        with pytest.raises(EnvironmentFault, match=f"port {port} .* cannot be used"), server:
            pytest.fail("the port is taken")
    with TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[], ports=(port, 0, 0)) as server:
        assert server.http_url == f"127.0.0.1:{port}"


@pytest.mark.slow
def test_port_taken_meanwhile_replaced(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that another program took meanwhile is replaced."""
    (tmp_path / "empty").mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        choices = iter(
            [[listener.getsockname()[1], *server_module._free_ports([0, 0])], server_module._free_ports([0] * 3)]
        )
        monkeypatch.setattr(server_module, "_free_ports", lambda _: next(choices))
        with TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[]) as server:
            assert server.version
    assert next(choices, None) is None


@pytest.mark.slow
def test_waiting_ends_with_server(installation: Installation, tmp_path: Path, started: Started) -> None:
    """Waiting ends when the server does."""
    (tmp_path / "empty").mkdir()
    with TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[]) as server:
        server_of(started()).terminate()
        assert server.wait() == 0


@pytest.mark.slow
def test_killed_server_keeps_log(
    repository: Path,
    installation: Installation,
    site: Path,
    tmp_path: Path,
    started: Started,
    traces: Callable[[], set[Path]],
) -> None:
    """A server that was killed says so, keeps its log and leaves no stub."""
    with TritonServer(repository, installation, tmp_path / "log", site=site) as server:
        family = started()
        assert [process.name() for process in family] == FAMILY
        assert server.wait(0) is None
        server_of(family).kill()
        status = server.wait()
        assert status == -signal.SIGKILL
        failure = server.obituary(status, "while it served")
    assert failure.message.startswith("Triton was killed while it served, ")
    assert failure.log == tmp_path / "log"
    assert "successfully loaded 'good'" in (tmp_path / "log").read_text()
    assert not any(is_running(process.pid) for process in family)
    assert not traces()


PARENT = """
import sys, time
from pathlib import Path
from plansmith.triton.server.installation import find_installation
from plansmith.triton.server.server import TritonServer
repository, site = map(Path, sys.argv[1:])
with TritonServer(repository, find_installation(), repository.parent / "log", site=site):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_server_dies_with_killed_parent(repository: Path, site: Path, tmp_path: Path) -> None:
    """A server does not outlive a parent that was killed."""
    command = [sys.executable, "-c", PARENT, str(repository), str(site)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        names = [process.name() for process in family]
        parent.send_signal(signal.SIGKILL)
    assert names == FAMILY
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (
        any(is_running(process.pid) for process in family) or list(SHARED_MEMORY.glob(f"plansmith-{parent.pid}-*"))
    ):
        time.sleep(0.1)
    assert not any(is_running(process.pid) for process in family)
    assert not list(SHARED_MEMORY.glob(f"plansmith-{parent.pid}-*"))


@pytest.mark.parametrize("form", ["bin/tritonserver", "."])
def test_given_server_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """A given server comes before every other."""
    binary = fake_installation(tmp_path / "given")
    monkeypatch.setenv(places.SERVER_VARIABLE, str(fake_installation(tmp_path / "named")))
    assert find_installation(tmp_path / "given" / form).binary == binary


def test_variable_before_container_before_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable comes before the container, and that before the private folder."""
    monkeypatch.setattr(places, "CONTAINER_ROOT", tmp_path / "container")
    private = fake_installation(tmp_path / "private" / "pytriton-0.7.0" / "pytriton" / "tritonserver")
    monkeypatch.delenv(places.SERVER_VARIABLE, raising=False)
    assert find_installation(private=tmp_path / "private").binary == private
    container = fake_installation(tmp_path / "container")
    assert find_installation(private=tmp_path / "private").binary == container
    named = fake_installation(tmp_path / "named" / "pytriton" / "tritonserver")
    monkeypatch.setenv(places.SERVER_VARIABLE, str(tmp_path / "named"))
    assert find_installation(private=tmp_path / "private").binary == named


def test_serverless_place_is_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that was asked for and holds no server is a fault."""
    with pytest.raises(EnvironmentFault, match="was given, but there is no Triton server"):
        find_installation(tmp_path)
    monkeypatch.setenv(places.SERVER_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentFault, match=places.SERVER_VARIABLE):
        find_installation()


def test_serverless_machine_told_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a server is told how to get one."""
    monkeypatch.setattr(places, "CONTAINER_ROOT", tmp_path / "container")
    monkeypatch.delenv(places.SERVER_VARIABLE, raising=False)
    with pytest.raises(EnvironmentFault) as fault:
        find_installation(private=tmp_path)
    assert fault.value.exit_code == 9
    assert "plansmith serve-env add" in fault.value.remedy


def test_container_tells_version_and_backend(tmp_path: Path) -> None:
    """A container says its version and that it has the real backend."""
    fake_installation(tmp_path)
    (tmp_path / "TRITON_VERSION").write_text("2.65.0\n")
    (tmp_path / "backends" / "onnxruntime").mkdir()
    (tmp_path / "backends" / "onnxruntime" / "libtriton_onnxruntime.so").touch()
    installation = find_installation(tmp_path)
    assert (installation.version, installation.real_onnxruntime, installation.stub) == ("2.65.0", True, None)


def test_python_without_library_is_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Python without a shared library is a fault."""
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"libpython3\.\d+\.so\.1\.0"):
        places.python_library_folder()
