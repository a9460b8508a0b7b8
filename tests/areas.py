"""Run the tests beyond the fast tier and the journeys, area by area; a table tells of each at the end.

An area is a folder of `tests/`; most bear the name of the package that they test. `make test-all` runs all of them,
`make test-all AREA=stores` one, `make test-changed` those that what has changed since main can reach by imports.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

from .import_rules import source_files

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
RESULTS = ROOT / "artifacts" / "tests"
SELECTION = "(slow or services) and not journey and not gpu and not tensorrt"

_NO_AREAS = {"gpu", "journeys", "support", "__pycache__"}
"""Folders that have a target of their own, or no tests."""
_HERE = "house"
"""The area of the tests that lie in `tests/` itself."""
_WORKERS = {"flows": 4}
"""Processes that test side by side, where they mostly wait for others; two elsewhere."""
_ALL = ("pyproject.toml", "constraints.txt", "Makefile", "tests/conftest.py")
"""What every area depends on."""
_NO_TESTS = 5
"""How pytest ends where it selects none."""


@dataclass(frozen=True)
class Outcome:
    """What came of an area's tests.

    Attributes:
        area: the folder's name.
        tests: how many ran.
        failed: how many of them failed, or could not be set up.
        seconds: how long all took together.
        status: how pytest ended.
    """

    area: str
    tests: int
    failed: int
    seconds: float
    status: int


def areas() -> list[str]:
    """All areas, by name."""
    return [*sorted(path.name for path in TESTS.iterdir() if path.is_dir() and path.name not in _NO_AREAS), _HERE]


def run_area(area: str, options: tuple[str, ...] = ()) -> Outcome:
    """Run an area's tests; what they print goes to the terminal.

    Those of a file that share a server tell of it in the order of the file.
    """
    places = [str(TESTS / area)] if area != _HERE else [str(path) for path in sorted(TESTS.glob("test_*.py"))]
    results = RESULTS / f"{area}.xml"
    results.unlink(missing_ok=True)
    parallel = ["-n", str(_WORKERS.get(area, 2)), "--dist", "loadgroup", "--randomly-dont-reorganize"]
    command = [sys.executable, "-m", "pytest", *parallel, "-m", SELECTION, f"--junitxml={results}", *options, *places]
    began = time.monotonic()
    status = _wait(subprocess.Popen(command, cwd=ROOT))
    seconds = time.monotonic() - began
    if not results.exists():
        return Outcome(area, 0, 0, seconds, status)
    counts = ET.parse(results).getroot().find("testsuite")
    assert counts is not None
    failed = int(counts.attrib["failures"]) + int(counts.attrib["errors"])
    status = 0 if status == _NO_TESTS else status
    return Outcome(area, int(counts.attrib["tests"]), failed, seconds, status)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """How a process ended; at an interrupt, which it gets too, it is left the time to end what its tests started."""
    with process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def table(outcomes: list[Outcome]) -> str:
    """Areas, tests, failures, seconds; the longest first."""
    everything = Outcome(
        "all",
        sum(one.tests for one in outcomes),
        sum(one.failed for one in outcomes),
        sum(one.seconds for one in outcomes),
        0,
    )
    rows = sorted(outcomes, key=lambda one: -one.seconds)
    lines = [f"{one.area:<14}{one.tests:>6}{one.failed:>8}{one.seconds:>9.0f}" for one in (*rows, everything)]
    return "\n".join([f"{'AREA':<14}{'TESTS':>6}{'FAILED':>8}{'SECONDS':>9}", *lines])


@cache
def modules() -> dict[str, Path]:
    """Dotted name and file of every module of plansmith and of its tests."""
    found = dict(source_files())
    for path in TESTS.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported(module: str) -> frozenset[str]:
    """The modules that a module imports, at once or later."""
    return frozenset(_imported(module, modules()[module])) & modules().keys()


def _imported(module: str, path: Path) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


@cache
def reached(area: str) -> frozenset[Path]:
    """The files of an area: its tests, the package of its name, and all that these import.

    The command line imports everything: where tests of another area call it, what they test is imported by them, too.
    """
    own = ("tests.test_",) if area == _HERE else (f"tests.{area}.", f"plansmith.{area}.")
    left = [name for name in modules() if f"{name}.".startswith(own)]
    found: set[str] = set()
    while left:
        if (module := left.pop()) not in found:
            found.add(module)
            left += [] if module.startswith("plansmith.cli") and area != "cli" else imported(module)
    return frozenset(modules()[module].resolve() for module in found)


def changed_files(base: str) -> list[str]:
    """What differs from where this branch left `base`, what is not committed included."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    (fork,) = git("merge-base", base, "HEAD")
    return sorted({*git("diff", "--name-only", fork), *git("ls-files", "--others", "--exclude-standard")})


def areas_of(changed: list[str]) -> list[str]:
    """The areas that changed files can reach.

    A file that is no module counts as the package that it lies in; files outside of packages and tests count for the
    area of their folder's name.
    """
    if set(changed) & set(_ALL):
        return areas()
    files: set[Path] = set()
    named: set[str] = set()
    for name in changed:
        path = (ROOT / name).resolve()
        named |= {part for part in Path(name).parts[:2] if part in areas()}
        named |= {"config"} if name.startswith("configs/") else set()
        package = next((folder / "__init__.py" for folder in path.parents if (folder / "__init__.py").exists()), None)
        files |= {path} if path.suffix == ".py" else {package.resolve()} if package else set()
    return [area for area in areas() if area in named or reached(area) & files]


@click.command()
@click.argument("chosen", nargs=-1, metavar="[AREA]...")
@click.option("--changed", "base", metavar="BRANCH", help="Areas that what changed since BRANCH can reach.")
@click.option("--dry-run", is_flag=True, help="Say which areas, and run none.")
@click.option("--pytest", "options", multiple=True, metavar="OPTION", help="An option for pytest; repeatable.")
def main(chosen: tuple[str, ...], base: str | None, dry_run: bool, options: tuple[str, ...]) -> None:
    """Run the tests of areas, all of them where none is named, and print a table."""
    unknown = sorted(set(chosen) - set(areas()))
    if unknown:
        raise click.UsageError(f"no area {', '.join(unknown)}; there are {', '.join(areas())}")
    picked = areas_of(changed_files(base)) if base else list(chosen) or areas()
    click.echo(f"areas: {', '.join(picked) or 'none'}")
    if dry_run or not picked:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    outcomes = [run_area(area, options) for area in picked]
    click.echo(table(outcomes))
    sys.exit(max(one.status for one in outcomes))


if __name__ == "__main__":
    main()
