"""The running plansmith goes into an environment as it is, as no index has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from plansmith.compilers.python_backend.environment.own_wheel import own_digest, own_files, write_own_wheel
from plansmith.compilers.python_backend.environment.wheels import read_wheel

from ....support.source import source_files


def test_the_wheel_has_every_module_and_the_same_bytes_at_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = write_own_wheel(tmp_path / "one"), write_own_wheel(tmp_path / "two")
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()
    with ZipFile(one) as archive:
        names = set(archive.namelist())
        assert archive.testzip() is None
    modules = {f"{module.replace('.', '/')}.py" for module, path in source_files() if path.name != "__init__.py"}
    assert modules <= names
    assert {"plansmith/__init__.py", "plansmith/configs/targets/local-cpu.yaml"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_can_be_read_as_any_other(tmp_path: Path) -> None:
    wheel = read_wheel(write_own_wheel(tmp_path))
    assert wheel.name == "plansmith"
    assert any(need.startswith("pydantic") for need in wheel.needs)


def test_plansmith_starts_from_its_wheel(tmp_path: Path) -> None:
    wheel = write_own_wheel(tmp_path)
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    script = "import plansmith.compilers.python_backend.model as module; print(module.__file__)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == tmp_path / "site" / "plansmith/compilers/python_backend/model.py"


def test_what_python_compiled_has_no_part_in_the_digest() -> None:
    assert own_digest() == own_digest()
    assert not [place for place, _ in own_files() if place.endswith(".pyc")]
