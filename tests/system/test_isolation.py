"""Isolated workers: what they reach of the network, of credentials and of files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.records.model import Isolation
from plansmith.system.process import Worker

from ..support.faults.groups import namespaces_allowed

ROOT = Path(__file__).parents[2]
TINY = "tests.support.faults.tiny_worker"
ALLOWED = namespaces_allowed()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """An isolated worker of a user with credentials in the usual places."""
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text("aws_secret_access_key = much")
    (home / ".netrc").write_text("machine example.org password much")
    (home / "notes").write_text("no secret")
    (tmp_path / "key.json").write_text("much")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "much")
    monkeypatch.setenv("PREFECT_API_URL", "https://me:much@prefect.example.org/api")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setenv("HF_HUB_CACHE", "/models")
    monkeypatch.setenv("PLAIN", "kept")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.chdir(ROOT)
    with Worker(TINY, tmp_path / "worker.log", isolated=True) as started:
        status = Isolation.model_validate_json(started.call("variable", name="PLANSMITH_ISOLATION"))
        assert (status.complete, bool(status.problem)) == (ALLOWED, not ALLOWED)
        yield started


def test_isolated_worker_has_no_network(worker: Worker) -> None:
    """A server of this very machine cannot be reached, where the kernel allows that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = worker.call("connect", port=server.getsockname()[1])
    assert answer == ("Network is unreachable" if ALLOWED else "connected")


def test_isolated_worker_sees_no_credentials(worker: Worker, tmp_path: Path) -> None:
    """Places of credentials are empty, and stay so if the worker tries to uncover them; other files are there."""
    home = tmp_path / "home"
    assert worker.call("read", path=str(home / "notes")) == "no secret"
    for file in (home / ".netrc", tmp_path / "key.json"):
        assert (worker.call("read", path=str(file)) == "") == ALLOWED
    for unmount in (False, True):
        answer = worker.call("read", path=str(home / ".aws" / "credentials"), unmount=unmount)
        assert (answer == "No such file or directory") == ALLOWED


def test_isolated_worker_has_no_secret_variables(worker: Worker) -> None:
    """Variables that look like secrets are gone; its home is a folder of its own."""
    gone = ("AWS_SECRET_ACCESS_KEY", "PREFECT_API_URL", "GOOGLE_APPLICATION_CREDENTIALS")
    assert [worker.call("variable", name=name) for name in gone] == [None] * len(gone)
    assert [worker.call("variable", name=name) for name in ("PLAIN", "HF_HUB_CACHE")] == ["kept", "/models"]
    assert worker.call("variable", name="TOKENIZERS_PARALLELISM") == "false"
    assert worker.call("variable", name="HOME").startswith(worker.call("variable", name="TMPDIR"))


def test_isolated_worker_writes_as_its_user(worker: Worker, tmp_path: Path) -> None:
    """What an isolated worker writes belongs to the user who compiles."""
    worker.call("write", path=str(tmp_path / "graph"))
    assert (tmp_path / "graph").stat().st_uid == os.getuid()


def test_forbidden_isolation_is_told() -> None:
    """Where the kernel forbids namespaces, the module runs all the same and knows why it is not isolated."""
    program = """
from plansmith.system import isolation
def forbidden(_): raise PermissionError(1, "Operation not permitted")
isolation._enter = forbidden
isolation.main("keyword")
print(isolation.isolation_of_process())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "complete=False problem='Operation not permitted'\n"
