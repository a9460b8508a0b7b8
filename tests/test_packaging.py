"""The wheel holds all of plansmith and nothing else, and type checkers see through the linked folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from .support.source import source_files

# Their fixture is costly.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

ROOT = Path(__file__).parents[1]
MYPY = (sys.executable, "-m", "mypy", "--follow-imports=skip", "--no-incremental")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the distribution is built from, links as links."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    for name in ("src", "compilers", "flows", "configs"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel; by this environment's setuptools where that is new enough."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    isolation = ["--no-build-isolation"] if _has_setuptools() else []
    subprocess.run([*command, *isolation, "--wheel-dir", str(out), str(tree)], check=True)
    (built,) = out.glob("plansmith-*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed alone into an empty folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-compile", "--target", str(folder), str(wheel)], check=True)
    return folder


def test_wheel_holds_modules_and_data(wheel: Path) -> None:
    """The wheel holds every module and every data file."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "plansmith"
    modules = {path.relative_to(package.parent).as_posix() for _, path in source_files()}
    data = {"plansmith/py.typed", "plansmith/samples/sentences.txt"}
    configs = [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("configs/work_pools/*.json")]
    data |= {f"plansmith/{path.relative_to(ROOT).as_posix()}" for path in configs}
    data |= {path.relative_to(package.parent).as_posix() for path in package.glob("triton/standin/**/*.py")}
    data |= {path.relative_to(package.parent).as_posix() for path in package.glob("**/templates/*")}
    assert "plansmith/report/templates/report.css" in data
    assert {"plansmith/configs/targets/local-cpu.yaml", "plansmith/configs/zoo.yaml"} <= data
    assert "plansmith/triton/standin/onnxruntime/model.py" in data
    assert "plansmith/compilers/onnxrt.py" in modules
    assert not (modules | data) - names
    assert not {name for name in names if name.startswith("plansmith/")} - modules - data


def test_nothing_generic_beside_package(site: Path) -> None:
    """Nothing generic lands beside the package."""
    distribution = f"plansmith-{version('plansmith')}.dist-info"
    assert sorted(path.name for path in site.iterdir()) == ["bin", "plansmith", distribution]
    assert [path.name for path in (site / "bin").iterdir()] == ["plansmith"]


def test_wheel_modules_import(site: Path) -> None:
    """Every module of the wheel imports."""
    modules = [name for name, _ in source_files() if not name.endswith("__main__")]
    script = "import importlib, sys\nfor name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    done = run_installed(site, "-W", "error", "-c", script, *modules)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(modules)
    assert all(Path(line).is_relative_to(site) for line in done.stdout.splitlines())


def test_installed_command_finds_targets(site: Path) -> None:
    """The installed command finds its targets."""
    done = run_installed(site, "-m", "plansmith", "compile", "hf:x", "--target", "none", "--no-check-served")
    assert done.returncode == 6
    assert "local-cpu" in done.stderr


def test_installed_command_finds_model_list(site: Path) -> None:
    """The installed command finds its list of models."""
    done = run_installed(site, "-m", "plansmith", "zoo", "--only", "no such model")
    assert done.returncode == 2
    assert "names are like bert BertForSequenceClassification" in done.stderr


def run_installed(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the installed wheel before everything else, outside of the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=site.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_mypy_sees_beyond_linked_folder(tree: Path, tmp_path: Path) -> None:
    """Mypy sees a wrong type beyond the linked folder."""
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy, symlinks=True)
    assert (copy / "src" / "plansmith" / "compilers").is_symlink()
    inside, across = copy / "compilers" / "onnxrt.py", copy / "src" / "plansmith" / "steps" / "worker" / "__main__.py"
    for path in (copy / "src").rglob("*.py"):
        if not path.samefile(inside) and path != across:
            path.write_text("")  # mypy finds it as before, and is done with it at once
    with inside.open("a") as stream:
        stream.write('\nplanted: int = "a"\n')
    with across.open("a") as stream:
        stream.write("\nfrom plansmith.compilers.onnxrt import PROVIDER\n\nplanted: int = PROVIDER\n")
    output = subprocess.run([*MYPY, "src"], cwd=copy, capture_output=True, text=True, check=False).stdout
    for place, path in (
        ("src/plansmith/compilers/onnxrt.py", inside),
        ("src/plansmith/steps/worker/__main__.py", across),
    ):
        line = len(path.read_text().splitlines())
        assert f"{place}:{line}: error: Incompatible types in assignment" in output


def _has_setuptools() -> bool:
    try:
        return int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        return False
