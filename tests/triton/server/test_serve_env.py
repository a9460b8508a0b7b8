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


def test_the_server_is_unpacked_alone_and_once(pip: FakePip, tmp_path: Path) -> None:
    told: list[str] = []
    folder = environment.install_server(told.append, private=tmp_path)
    assert environment.install_server(told.append, private=tmp_path) == folder
    (command,) = pip.commands
    assert command[-2:] == ["--no-deps", "nvidia-pytriton==0.7.0"]
    assert (folder / "package.py").is_file()
    assert told[-1] == f"{folder} is there already"
    assert left_in(tmp_path) == [folder]


def test_a_runtime_brings_the_numpy_that_the_server_understands(pip: FakePip, tmp_path: Path) -> None:
    folder = environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    assert pip.commands[0][-2:] == ["onnxruntime==1.23.2", "numpy==1.26.4"]
    assert not [word for word in pip.commands[0] if "index" in word]
    assert environment.runtime_folder("1.23.2", private=tmp_path) == folder


def test_a_failing_pip_is_quoted_and_leaves_nothing(pip: FakePip, tmp_path: Path) -> None:
    pip.status = 1
    with pytest.raises(EnvironmentFault) as fault:
        environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    assert fault.value.message.endswith("line 19\nERROR: no matching distribution")
    assert "line 3\n" not in fault.value.message
    assert left_in(tmp_path) == []


def test_a_folder_that_another_process_made_meanwhile_is_kept(
    monkeypatch: pytest.MonkeyPatch, pip: FakePip, tmp_path: Path
) -> None:
    def race(command: list[str], **options: Any) -> CompletedProcess[str]:
        other = tmp_path / "onnxruntime-1.23.2"
        other.mkdir()
        (other / "first.py").touch()
        return pip(command, **options)

    monkeypatch.setattr("plansmith.triton.server.environment.subprocess.run", race)
    folder = environment.install_runtime("1.23.2", lambda _: None, private=tmp_path)
    assert [path.name for path in folder.iterdir()] == ["first.py"]
    assert left_in(tmp_path) == [folder]


def test_what_a_killed_installation_left_is_found_and_goes_with_the_next_one(pip: FakePip, tmp_path: Path) -> None:
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


def test_a_missing_runtime_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"ONNX Runtime 9\.9") as fault:
        environment.runtime_folder("9.9", private=tmp_path)
    assert fault.value.remedy == "plansmith serve-env add <target>"


def test_numpy_is_installed_alone_for_models_that_bring_their_own_packages(pip: FakePip, tmp_path: Path) -> None:
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


def test_dali_brings_the_numpy_that_the_server_understands_and_goes_whole(pip: FakePip, tmp_path: Path) -> None:
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


def test_dali_that_nvidia_alone_has_says_where_it_is(pip: FakePip, tmp_path: Path) -> None:
    """Where pip cannot get a DALI that PyPI has no wheel of, the message says who has it, and of others it does not."""
    pip.status = 1
    told = {}
    for version in ("1.51.2", "1.53.0"):
        with pytest.raises(EnvironmentFault, match="no matching distribution") as fault:
            environment.install_dali(version, lambda _: None, private=tmp_path)
        told[version] = "NVIDIA's package index" in fault.value.remedy
    assert told == {"1.51.2": True, "1.53.0": False}


def test_what_is_installed_is_listed_and_a_runtime_taken_away_whole(pip: FakePip, tmp_path: Path) -> None:
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


def test_the_environment_names_another_private_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLANSMITH_SERVE_ENV", str(tmp_path / "elsewhere"))
    assert environment.server_folder().parent == tmp_path / "elsewhere"
    monkeypatch.delenv("PLANSMITH_SERVE_ENV")
    assert environment.private_folder().parts[-2:] == ("share", "plansmith")
