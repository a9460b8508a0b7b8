"""The running plansmith goes into an environment as it is, as no index has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from plansmith.compilers.python_backend.environment.wheels import own_digest, own_files, write_own_wheel

from ....support.source import source_files


def test_wheel_has_every_module(tmp_path: Path) -> None:
    """The wheel has every module, and the same bytes at every time."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, two = write_own_wheel(tmp_path / "one"), write_own_wheel(tmp_path / "two")
    assert first.name == two.name
    assert first.read_bytes() == two.read_bytes()
    with ZipFile(first) as archive:
        names = set(archive.namelist())
        assert archive.testzip() is None
    modules = {f"{module.replace('.', '/')}.py" for module, path in source_files() if path.name != "__init__.py"}
    assert modules <= names
    assert {"plansmith/__init__.py", "plansmith/configs/targets/local-cpu.yaml"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_plansmith_starts_from_its_wheel(tmp_path: Path) -> None:
    wheel = write_own_wheel(tmp_path)
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    script = "import plansmith.compilers.python_backend.model as module; print(module.__file__)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == tmp_path / "site" / "plansmith/compilers/python_backend/model.py"


def test_compiled_python_left_out_of_digest() -> None:
    """What Python compiled has no part in the digest."""
    assert own_digest() == own_digest()
    assert not [place for place, _ in own_files() if place.endswith(".pyc")]
