"""The wheel holds all of plansmith and nothing else, and type checkers see through the linked folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .support.source import source_files

# Their fixture is costly.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

ROOT = Path(__file__).parents[1]
MYPY = (sys.executable, "-m", "mypy", "--follow-imports=skip", "--no-incremental")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the distribution is built from, links as links."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
        shutil.copy2(ROOT / name, copy)
    for name in ("src", "compilers", "flows", "configs", "docs/reference"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel; by this environment's setuptools where that is new enough."""
    return build_wheel(tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed alone into an empty folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-compile", "--target", str(folder), str(wheel)], check=True)
    return folder


@pytest.fixture(scope="module")
def core(site: Path) -> dict[str, Distribution]:
    """The packages that the wheel needs without an extra, by name, from the metadata of those installed here."""
    packages: dict[str, Distribution] = {}
    waiting = list(distributions(path=[str(site)]))
    while waiting:
        for requirement in map(Requirement, waiting.pop().requires or ()):
            name = canonicalize_name(requirement.name)
            if name not in packages and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                packages[name] = distribution(name)
                waiting.append(packages[name])
    return packages


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
    pages = (*package.glob("reference/*.md"), *package.glob("reference/errors/*"), *package.glob("reference/rules/*"))
    data |= {path.relative_to(package.parent).as_posix() for path in pages}
    assert "plansmith/report/templates/report.css" in data
    assert {"plansmith/configs/targets/local-cpu.yaml", "plansmith/configs/zoo.yaml"} <= data
    assert {"plansmith/triton/standin/onnxruntime/model.py", "plansmith/reference/errors/5.md"} <= data
    assert "plansmith/compilers/onnxrt.py" in modules
    assert not (modules | data) - names
    assert not {name for name in names if name.startswith("plansmith/")} - modules - data


def test_distributions_agree(tree: Path, wheel: Path, tmp_path: Path) -> None:
    """The wheel from the sdist has the same files, the sdist holds no tests, and twine accepts both."""
    isolation = ["--no-isolation"] if _has_setuptools() else []
    subprocess.run([sys.executable, "-m", "build", "--sdist", *isolation, "-o", str(tmp_path), str(tree)], check=True)
    (sdist,) = tmp_path.glob("plansmith-*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if name.partition("/")[2].startswith("tests")]
    again = build_wheel(sdist, tmp_path)
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(again)], check=True)


def test_core_needs_few_packages(core: dict[str, Distribution]) -> None:
    """A plain install brings at most twelve packages besides plansmith."""
    assert len(core) <= 12, sorted(core)


def test_core_commands_miss_nothing(site: Path, core: dict[str, Distribution], tmp_path: Path) -> None:
    """With the packages of a plain install a command that misses a library names the extra."""
    for package in core.values():
        for name in {file.parts[0] for file in package.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            (tmp_path / name).symlink_to(Path(str(package.locate_file(name))))
    (tmp_path / "repository" / "ranker" / "1").mkdir(parents=True)
    (tmp_path / "repository" / "ranker" / "config.pbtxt").write_text('backend: "nobody"')
    script = "import sys; sys.path[:0] = sys.argv[1:3]; del sys.argv[1:3]; from plansmith.cli import main; main()"
    for arguments, status, expected in (
        (("check", "repository"), 9, "plansmith[client]"),
        (("report", "ranker"), 7, "no model repository"),
        (("init", "timm:resnet18"), 9, "plansmith[compile]"),
        (("compile", "timm:resnet18"), 9, "plansmith[compile]"),
        (("demo",), 9, "plansmith[compile]"),
        (("triggers", "serve"), 9, "plansmith[triggers]"),
    ):
        isolated = [sys.executable, "-I", "-S", "-c", script, str(site), str(tmp_path), *arguments]
        done = subprocess.run(isolated, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, expected in done.stdout + done.stderr) == (status, True), done


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


def build_wheel(source: Path, out: Path) -> Path:
    """Build the wheel of a tree or an sdist."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    isolation = ["--no-build-isolation"] if _has_setuptools() else []
    subprocess.run([*command, *isolation, "--wheel-dir", str(out), str(source)], check=True)
    (built,) = out.glob("plansmith-*.whl")
    return built


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
