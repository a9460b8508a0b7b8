"""Run the tests beyond the fast tier and the journeys, area by area; a table tells of each at the end.

An area is a folder of `tests/`; most bear the name of the package that they test. `make test-all` runs all of them,
`make test-all AREA=stores` one, `make test-changed` those that what has changed since main can reach by imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import grimp

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
RESULTS = ROOT / "artifacts" / "tests"
SELECTION = "(slow or services) and not journey and not gpu and not tensorrt"

_NO_AREAS = {"gpu", "journeys", "support", "__pycache__"}
"""Folders that have a target of their own, or no tests."""
_HERE = "house"
"""The area of the tests that lie in `tests/` itself."""
_PARALLEL = {"flows": ("-n", "4", "--no-loadscope-reorder"), "soak": ("-n", "3")}
"""How tests run side by side where they mostly wait; in two processes elsewhere."""
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
    parallel = [*_PARALLEL.get(area, ("-n", "2")), "--dist", "loadgroup", "--randomly-dont-reorganize"]
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
        sum(outcome.tests for outcome in outcomes),
        sum(outcome.failed for outcome in outcomes),
        sum(outcome.seconds for outcome in outcomes),
        0,
    )
    rows = sorted(outcomes, key=lambda outcome: -outcome.seconds)
    lines = [
        f"{outcome.area:<14}{outcome.tests:>6}{outcome.failed:>8}{outcome.seconds:>9.0f}"
        for outcome in (*rows, everything)
    ]
    return "\n".join([f"{'AREA':<14}{'TESTS':>6}{'FAILED':>8}{'SECONDS':>9}", *lines])


@cache
def _graph() -> grimp.ImportGraph:
    """Which modules of plansmith and of its tests import which, at once or later."""
    return grimp.build_graph("plansmith", "tests", cache_dir=None)


def reached(area: str) -> set[str]:
    """The modules of an area: its tests, the package of its name, and all that these import.

    The command line imports everything: where tests of another area call it, what they test is imported by them, too.
    """
    own = ("tests.test_",) if area == _HERE else (f"tests.{area}.", f"plansmith.{area}.")
    left = [name for name in _graph().modules if f"{name}.".startswith(own)]
    names: set[str] = set()
    while left:
        if (module := left.pop()) not in names:
            names.add(module)
            if area == "cli" or not module.startswith("plansmith.cli"):
                left += _graph().find_modules_directly_imported_by(module)
    return names


def module_of(name: str) -> str:
    """The module that a file is, or the package that it lies in; "" for neither. Its path is relative to the root."""
    path = Path(name.removeprefix("src/")).with_suffix("")
    if path.parts[0] in {"compilers", "flows"}:
        path = "plansmith" / path
    module = ".".join(path.parts)
    while module and module not in _graph().modules:
        module = module.rpartition(".")[0]
    return module


def changed_files(base: str) -> list[str]:
    """What differs from where this branch left `base`, what is not committed included.

    Raises:
        click.ClickException: git refuses, as where there is no such branch.
    """

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{done.stderr.strip()}\nNext: make test-changed BASE=<a branch or commit>")
        return done.stdout.splitlines()

    (fork,) = git("merge-base", base, "HEAD")
    return sorted({*git("diff", "--name-only", fork), *git("ls-files", "--others", "--exclude-standard")})


def areas_of(changed: list[str]) -> list[str]:
    """The areas that changed files can reach.

    A file that is no module counts as the package that it lies in, with all of its modules; files outside of packages
    and tests count for the area of their folder's name.
    """
    if set(changed) & set(_ALL):
        return areas()
    named = {part for name in changed for part in Path(name).parts[:2] if part in areas()}
    named |= {"config"} if any(name.startswith("configs/") for name in changed) else set()
    touched = tuple(f"{module}." for module in map(module_of, changed) if module)
    return [
        area
        for area in areas()
        if area in named or any(f"{candidate}.".startswith(touched) for candidate in reached(area))
    ]


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
    click.echo(f'The same again: make test-all AREA="{" ".join(picked)}" SEED={os.environ.get("PYTHONHASHSEED", "")}')
    sys.exit(max(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    main()
