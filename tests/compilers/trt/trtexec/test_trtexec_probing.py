"""Which trtexec is here: found where NVIDIA puts it, asked for its version by its banner."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.compilers.trt.trtexec.output import find_trtexec, version
from plansmith.errors import EnvironmentFault

BANNER = "&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11] # trtexec"


def program(folder: Path, script: str, *, mode: int = 0o755) -> Path:
    path = folder / "trtexec"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


def test_trtexec_found_in_nvidia_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trtexec is found where NVIDIA puts it."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_trtexec((tmp_path,)) is None
    path = program(tmp_path, "exit 0", mode=0o644)
    assert find_trtexec((tmp_path,)) is None
    path.chmod(0o755)
    assert find_trtexec((tmp_path,)) == str(path)


def test_path_program_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program on PATH comes first."""
    for name in ("path", "nvidia"):
        (tmp_path / name).mkdir()
        program(tmp_path / name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_trtexec((tmp_path / "nvidia",)) == str(tmp_path / "path" / "trtexec")


@pytest.mark.parametrize("status", [0, 1])
def test_version_has_three_numbers(status: int, tmp_path: Path) -> None:
    """The version has three numbers however the program ends."""
    path = program(tmp_path, f"test $# -eq 0 && echo '{BANNER}'; echo '=== Model Options ==='; exit {status}")
    assert version(str(path)) == "10.16.1"


def test_missing_libraries_are_named(tmp_path: Path) -> None:
    """A program without its libraries says which ones it lacks."""
    complaint = "error while loading shared libraries: libnvinfer.so.10: cannot open shared object file"
    with pytest.raises(EnvironmentFault, match=r"libnvinfer\.so\.10") as refused:
        version(str(program(tmp_path, f"echo 'trtexec: {complaint}' >&2; exit 127")))
    assert "LD_LIBRARY_PATH" in refused.value.remedy


def test_silent_program_is_not_trtexec(tmp_path: Path) -> None:
    """A program that says nothing is not trtexec."""
    with pytest.raises(EnvironmentFault, match="prints nothing"):
        version(str(program(tmp_path, "exit 0")))


def test_unrunnable_program_is_said(tmp_path: Path) -> None:
    """A program that is not there or not executable is told."""
    for path in (tmp_path / "none", program(tmp_path, "exit 0", mode=0o644)):
        with pytest.raises(EnvironmentFault, match="cannot be run") as refused:
            version(str(path))
        assert "--builder api" in refused.value.remedy
