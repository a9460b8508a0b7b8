"""What the tests on a GPU share.

Without a GPU, or without TensorRT, they are skipped; they fail with PLANSMITH_REQUIRE_GPU=1, which
`make test-gpu` sets. A machine that has one of the two builders of plans skips what needs the other.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .compiles import Workshop
from .figures import FILE, Figures
from .machine import BUILDERS, MARKERS, REQUIRED, Device, builders_here, device, missing, target_here

_FIGURES = pytest.StashKey[Figures]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker names what is not here, or fail it, before any fixture is made for it."""
    for marker in MARKERS:
        if item.get_closest_marker(marker) is not None and (why := missing(marker)):
            if os.environ.get(REQUIRED) == "1":
                pytest.fail(f"{why}, and {REQUIRED}=1 requires it", pytrace=False)
            pytest.skip(why)


def pytest_configure(config: pytest.Config) -> None:
    """Have a place for the figures."""
    config.stash[_FIGURES] = Figures()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of figures and keep it."""
    figures = config.stash[_FIGURES]
    if table := figures.table():
        figures.write()
        terminalreporter.write_line(f"\n{table}\n(kept in {FILE})")


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Takes the rows of the table."""
    return request.config.stash[_FIGURES]


@pytest.fixture(scope="session")
def gpu() -> Device:
    """The GPU that is here."""
    return device()


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The target that this machine can build plans for."""
    return target_here(tmp_path_factory.mktemp("target"))


@pytest.fixture(params=BUILDERS)
def builder(request: pytest.FixtureRequest) -> str:
    """Each of the two that is here."""
    if request.param not in builders_here():
        pytest.skip(f"this machine has no {request.param}")
    return str(request.param)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that have to be saved before they can be compiled."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, target: str) -> Workshop:
    """Compiles that may find each other's steps done."""
    return Workshop(tmp_path_factory.mktemp("shared"), target)


@pytest.fixture
def alone(tmp_path: Path, target: str) -> Workshop:
    """Compiles that start from nothing."""
    return Workshop(tmp_path, target)
