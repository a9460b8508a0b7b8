"""The same packages give the same archive, and unpacked it is an environment with these packages alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plansmith.compilers.python_backend.environment.archive import write_archive
from plansmith.compilers.python_backend.environment.wheels import install_packages, read_requirements
from plansmith.config.engine_options import OWNER_FILE, OWNER_VARIABLE
from plansmith.triton.server.installation import RUNNING_PYTHON

from .tiny import TWELVE, write_wheel

SITE = "lib/python3.12/site-packages"


@pytest.fixture
def packages(index: Path, tmp_path: Path) -> Path:
    """Two installed packages; one has all that a wheel can have."""
    files = {
        "zoo.py": "",
        "zoo/__pycache__/a.cpython-312.pyc": "compiled",
        "zoo/tool": "#!/bin/sh",
        "zoo-1.0.data/purelib/zoo/extra.py": "",
        "zoo-1.0.data/scripts/zoo": "#!python",
        "zoo-1.0.data/data/share/man/zoo.1": "",
    }
    write_wheel(index, "zoo", files=files, programs=["zoo/tool"])
    write_wheel(index, "ape", needs=["zoo"])
    return install(tmp_path / "got")


def install(folder: Path) -> Path:
    folder.mkdir()
    return install_packages(read_requirements("ape"), TWELVE, {}, folder)[0]


@pytest.mark.slow
def test_archive_packages_sorted_without_origin(packages: Path, tmp_path: Path) -> None:
    """An archive holds the packages sorted, and nothing of when and by whom it was made."""
    unpacked_bytes = write_archive(packages, "3.12", tmp_path / "env.tar.gz")
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        entries = archive.getmembers()
        record = archive.extractfile(f"{SITE}/zoo-1.0.dist-info/RECORD")
        assert record is not None
        listed = {f"{SITE}/{line.partition(',')[0]}" for line in record.read().decode().splitlines()}
    assert [entry.name for entry in entries] == [
        "bin/activate",
        *(f"{SITE}/{name}" for name in ("ape-1.0.dist-info/METADATA", "ape-1.0.dist-info/RECORD")),
        *(f"{SITE}/{name}" for name in ("ape-1.0.dist-info/WHEEL", "ape.py", "share/man/zoo.1")),
        f"{SITE}/zoo-1.0.dist-info/METADATA",
        *(f"{SITE}/{name}" for name in ("zoo-1.0.dist-info/RECORD", "zoo-1.0.dist-info/WHEEL", "zoo.py")),
        *(f"{SITE}/{name}" for name in ("zoo/extra.py", "zoo/tool")),
    ]
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {
        (315_532_800, 0, 0, "", "")
    }
    assert [entry.name for entry in entries if entry.mode != 0o644] == [f"{SITE}/zoo/tool"]
    assert listed == {entry.name for entry in entries if "zoo" in entry.name}
    assert unpacked_bytes == sum(entry.size for entry in entries)


@pytest.mark.slow
def test_same_packages_same_bytes(packages: Path, tmp_path: Path) -> None:
    """The same packages give the same bytes when they are installed again elsewhere."""
    write_archive(packages, "3.12", tmp_path / "env.tar.gz")
    write_archive(install(tmp_path / "again"), "3.12", tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == (tmp_path / "env.tar.gz").read_bytes()
    write_archive(packages, "3.11", tmp_path / "other.tar.gz")
    assert (tmp_path / "other.tar.gz").read_bytes() != (tmp_path / "env.tar.gz").read_bytes()


def unpacked(packages: Path, python: str, tmp_path: Path) -> Path:
    """The folder of an environment."""
    write_archive(packages, python, tmp_path / "env.tar.gz")
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        archive.extractall(tmp_path / "env", filter="data")
    return tmp_path / "env"


def activated(environment: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command after what Triton does first."""
    own = {"PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}", **variables}
    script = f"source {environment}/bin/activate && exec {command}"
    return subprocess.run(["bash", "-c", script], env=own, capture_output=True, text=True, check=False)


ASK = "python3 -c 'import sys, ape, zoo; print(sys.prefix, sys.base_prefix, ape.__file__, *sys.path, sep=\"\\n\")'"


@pytest.mark.slow
def test_unpacked_environment_is_self_contained(packages: Path, tmp_path: Path) -> None:
    """An unpacked environment has its packages and no others wherever it lies."""
    environment = unpacked(packages, RUNNING_PYTHON, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "numpy").mkdir(parents=True)
    process = activated(
        environment, ASK, PYTHONPATH=str(elsewhere), PLANSMITH_SITE=str(elsewhere), PYTHONHOME="/nowhere"
    )
    assert process.returncode == 0, process.stderr
    prefix, base, module, *path = process.stdout.splitlines()
    site = environment / "lib" / f"python{RUNNING_PYTHON}" / "site-packages"
    assert (Path(prefix), Path(base), Path(module)) == (environment, Path(sys.base_prefix), site / "ape.py")
    assert str(elsewhere) not in path
    assert [place for place in path if "site-packages" in place] == [str(site)]
    assert activated(environment, "printenv PLANSMITH_SITE", PLANSMITH_SITE="/x").returncode == 1


@pytest.mark.slow
def test_simultaneous_instances_share_environment(packages: Path, tmp_path: Path) -> None:
    """Instances that start at once find the same environment."""
    environment = unpacked(packages, RUNNING_PYTHON, tmp_path)
    with ThreadPoolExecutor(8) as starts:
        processes = list(starts.map(lambda _: activated(environment, ASK), range(16)))
    assert [process.returncode for process in processes] == [0] * 16, processes[0].stderr
    assert len({process.stdout for process in processes}) == 1
    assert {path.name for path in (environment / "bin").iterdir()} == {"activate", "python3"}
    assert {path.name for path in environment.iterdir()} == {"bin", "lib", "pyvenv.cfg"}


@pytest.mark.slow
def test_environment_knows_its_server(packages: Path, tmp_path: Path) -> None:
    """An environment knows the server that unpacked it."""
    environment = unpacked(packages, RUNNING_PYTHON, tmp_path)
    assert activated(environment, "true", **{OWNER_VARIABLE: "plansmith-1-a"}).returncode == 0
    assert (environment / OWNER_FILE).read_text() == "plansmith-1-a"


@pytest.mark.slow
def test_missing_python_is_told(packages: Path, tmp_path: Path) -> None:
    """A machine without the environment's Python is told of, and the process starts."""
    environment = unpacked(packages, "3.99", tmp_path)
    process = activated(environment, "python3 -c 'import ape'")
    assert "there is no program python3.99 here" in process.stderr
    assert "No module named 'ape'" in process.stderr  # and not the packages of another Python
