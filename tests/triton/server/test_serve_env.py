"""Servers and runtimes enter the private folder whole or not at all."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.system.files import abandoned_folders
from plansmith.triton.server import environment


class FakePip:
    """Stands for `subprocess.run`: makes the target folder, or fails."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> CompletedProcess[str]:
        self.commands.append(command)
        target = Path(command[command.index("--target") + 1])
        target.mkdir()
        (target / "package.py").touch()
        noise = "".join(f"line {number}\n" for number in range(20))
        return CompletedProcess(command, self.status, noise, "ERROR: no matching distribution\n")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr("plansmith.triton.server.environment.subprocess.run", fake)
    return fake


def left_in(private: Path) -> list[Path]:
    """What is in a private folder; nothing may be staged any more."""
    assert [path.name for path in (private / ".staging").iterdir()] == [".lock"]
    return [path for path in private.iterdir() if path.name != ".staging"]


def test_server_unpacked_once(pip: FakePip, tmp_path: Path) -> None:
    """The server is unpacked alone and once."""
    messages: list[str] = []
    folder = environment.install_server(messages.append, private=tmp_path)
    assert environment.install_server(messages.append, private=tmp_path) == folder
    (command,) = pip.commands
    assert command[-2:] == ["--no-deps", "nvidia-pytriton==0.7.0"]
    assert (folder / "package.py").is_file()
    assert messages[-1] == f"{folder} is there already"
    assert left_in(tmp_path) == [folder]


def test_newer_python_refused(monkeypatch: pytest.MonkeyPatch, pip: FakePip, tmp_path: Path) -> None:
    """A Python without wheels of NumPy 1 is refused before anything is downloaded or built from source."""
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(EnvironmentFault, match=r"no wheels for Python 3\.13") as refused:
        environment.install_server(lambda _: None, private=tmp_path)
    assert "PLANSMITH_TRITONSERVER" in refused.value.remedy
    assert not pip.commands


def test_runtime_brings_matching_numpy(pip: FakePip, tmp_path: Path) -> None:
    """A runtime brings the NumPy that the server understands."""
    folder = environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    assert pip.commands[0][-2:] == ["onnxruntime==1.23.2", "numpy==1.26.4"]
    assert not [word for word in pip.commands[0] if "index" in word]
    assert environment.runtime_folder("1.23.2", private=tmp_path) == folder


def test_failed_pip_quoted_leaves_nothing(pip: FakePip, tmp_path: Path) -> None:
    """A failing pip is quoted and leaves nothing."""
    pip.status = 1
    with pytest.raises(EnvironmentFault) as fault:
        environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    assert fault.value.message.endswith("line 19\nERROR: no matching distribution")
    assert "line 3\n" not in fault.value.message
    assert left_in(tmp_path) == []


def test_folder_made_meanwhile_kept(monkeypatch: pytest.MonkeyPatch, pip: FakePip, tmp_path: Path) -> None:
    """A folder that another process made meanwhile is kept."""

    def race(command: list[str], **options: Any) -> CompletedProcess[str]:
        existing = tmp_path / "onnxruntime-1.23.2"
        existing.mkdir()
        (existing / "first.py").touch()
        return pip(command, **options)

    monkeypatch.setattr("plansmith.triton.server.environment.subprocess.run", race)
    folder = environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    assert [path.name for path in folder.iterdir()] == ["first.py"]
    assert left_in(tmp_path) == [folder]


def test_killed_installation_removed_by_next(pip: FakePip, tmp_path: Path) -> None:
    """What a killed installation left is found and goes with the next one."""
    program = (
        "import os, pathlib, sys; from plansmith.triton.server import environment as serve_env;"
        "serve_env._pip_install = lambda target, _: (target.mkdir(), os.kill(os.getpid(), 9));"
        "serve_env.install_runtime('1.23.2', print, private=pathlib.Path(sys.argv[1]))"
    )
    status = os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", program, str(tmp_path))
    assert status == -signal.SIGKILL
    (left,) = abandoned_folders(environment.staging_place(private=tmp_path))
    assert [path.name for path in left.iterdir()] == ["onnxruntime-1.23.2"]
    folder = environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    assert (left_in(tmp_path), len(pip.commands)) == ([folder], 1)


def test_missing_runtime_says_remedy(tmp_path: Path) -> None:
    """A missing runtime says how to get it."""
    with pytest.raises(EnvironmentFault, match=r"ONNX Runtime 9\.9") as fault:
        environment.runtime_folder("9.9", private=tmp_path)
    assert fault.value.remedy == "plansmith serve-env add <target>"


def test_numpy_installed_alone_for_own_packages(pip: FakePip, tmp_path: Path) -> None:
    """NumPy is installed alone for models that bring their own packages."""
    with pytest.raises(EnvironmentFault, match="NumPy") as fault:
        environment.numpy_folder(private=tmp_path)
    assert fault.value.remedy == "plansmith serve-env add"
    folder = environment.install_numpy(lambda _: None, private=tmp_path)
    (command,) = pip.commands
    assert command[-2:] == ["--no-deps", "numpy==1.26.4"]
    assert environment.numpy_folder(private=tmp_path) == folder
    assert [(part.folder, part.onnxruntime) for part in environment.installed_parts(private=tmp_path)] == [
        (folder, None)
    ]


def test_dali_brings_matching_numpy(pip: FakePip, tmp_path: Path) -> None:
    """DALI brings the NumPy that the server understands, and goes whole."""
    with pytest.raises(EnvironmentFault, match=r"DALI 2\.4\.0 is not installed") as fault:
        environment.dali_folder("2.4.0", private=tmp_path)
    assert fault.value.remedy == "plansmith serve-env add <target> --dali, or write preprocessing: python into the spec"
    folder = environment.install_dali("2.4.0", lambda _: None, private=tmp_path)
    assert pip.commands[0][-2:] == ["nvidia-dali-cuda130==2.4.0", "numpy==1.26.4"]
    assert environment.dali_folder("2.4.0", private=tmp_path) == folder
    assert [(p.folder, p.onnxruntime, p.dali) for p in environment.installed_parts(private=tmp_path)] == [
        (folder, None, "2.4.0")
    ]
    environment.install_dali("1.48.0", lambda _: None, private=tmp_path)
    assert pip.commands[1][-2:] == ["nvidia-dali-cuda120==1.48.0", "numpy==1.26.4"], "older than CUDA 13"
    environment.remove_dali("1.48.0", private=tmp_path)
    environment.remove_dali("2.4.0", private=tmp_path)
    assert not environment.has_dali("2.4.0", private=tmp_path)
    assert left_in(tmp_path) == []


def test_nvidia_only_dali_says_where(pip: FakePip, tmp_path: Path) -> None:
    """Where pip cannot get a DALI that PyPI has no wheel of, the message says who has it, and of others it does not."""
    pip.status = 1
    results = {}
    for version in ("1.51.2", "1.53.0"):
        with pytest.raises(EnvironmentFault, match="no matching distribution") as fault:
            environment.install_dali(version, lambda _: None, private=tmp_path)
        results[version] = "NVIDIA's package index" in fault.value.remedy
    assert results == {"1.51.2": True, "1.53.0": False}


def test_installed_runtimes_listed_and_removed(pip: FakePip, tmp_path: Path) -> None:
    """What is installed is listed, and a runtime is taken away whole."""
    assert environment.installed_parts(private=tmp_path / "nothing") == []
    server = environment.install_server(lambda _: None, private=tmp_path)
    runtime = environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    (runtime / "package.py").write_text("x" * 100)
    assert len(pip.commands) == 2
    parts = environment.installed_parts(private=tmp_path)
    assert [(p.folder, p.onnxruntime, p.bytes) for p in parts] == [(runtime, "1.23.2", 100), (server, None, 0)]
    assert environment.has_runtime("1.23.2", private=tmp_path)
    environment.remove_runtime("1.23.2", private=tmp_path)
    assert not environment.has_runtime("1.23.2", private=tmp_path)
    assert [p.folder for p in environment.installed_parts(private=tmp_path)] == [server]


def test_environment_names_private_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment names another private folder."""
    monkeypatch.setenv("PLANSMITH_SERVE_ENV", str(tmp_path / "elsewhere"))
    assert environment.server_folder().parent == tmp_path / "elsewhere"
    monkeypatch.delenv("PLANSMITH_SERVE_ENV")
    assert environment.private_folder().parts[-2:] == ("share", "plansmith")
