"""Searches and comparisons on a Triton that runs already and serves others, too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plansmith.copies.release import loaded_models
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.control import ModelControlClient
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ..support.cli.command import CommandLine, check_refusal
from ..support.cli.in_process import InProcess
from ..support.sagemaker.releases import publish_onnx
from .conftest import SEARCH, SPACE, write_net

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("loadtest")]

OTHER = "other"
"""A model of somebody else on the server."""


@contextmanager
def running(installation: Installation, site: Path, folder: Path) -> Iterator[TritonServer]:
    """A Triton in explicit mode with a model of somebody else."""
    repository = ModelRepository(folder / "others")
    publish_onnx(repository, folder, OTHER)
    with TritonServer(repository.root, installation, folder / "triton.log", site=site, models=[OTHER]) as server:
        yield server


@pytest.fixture
def server(installation: Installation, site: Path, tmp_path: Path) -> Iterator[TritonServer]:
    with running(installation, site, tmp_path) as server:
        yield server


def models_there(server: TritonServer, folder: Path) -> dict[str, str]:
    """The models of the search in a folder, and that of somebody else, that a server has."""
    names = [file.read_text() for file in folder.rglob("server-name")]
    return loaded_models(ModelControlClient(f"grpc://{server.grpc_url}", load_seconds=30), [OTHER, *names])


def test_search_on_a_running_server(server: TritonServer, tmp_path: Path) -> None:
    """Each configuration is sent under a name of its own; what a killed search left there, the next unloads."""
    command, net = CommandLine(tmp_path), write_net(tmp_path)
    arguments = ("tune", net, *SEARCH, "--url", f"grpc://{server.grpc_url}")
    killed = command.start(*arguments)
    trials = tmp_path / "artifacts" / "tuning" / "net" / "trials.jsonl"
    while not trials.exists() or len(models_there(server, tmp_path)) == 1:
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    done = trials.read_text().count("\n")
    assert len(models_there(server, tmp_path)) == 2
    result = command.document(*arguments)
    assert result["search"]["measured"] == len(result["search"]["trials"]) - done
    assert result["better"]
    assert result["plan"]["host"].startswith(f"Triton {server.version} at grpc://127.0.0.1:")
    assert [outcome for outcome in result["outcomes"] if outcome["measurement"]["batch_size"]]
    assert {outcome["measurement"]["memory_bytes"] for outcome in result["outcomes"]} == {None}
    assert models_there(server, tmp_path) == {OTHER: "READY"}


def test_lost_server_ends_search(installation: Installation, site: Path, tmp_path: Path) -> None:
    """A running server that dies is nobody's result: the message says what it had, and how to go on."""
    command, net = CommandLine(tmp_path), write_net(tmp_path)
    with running(installation, site, tmp_path) as server:
        search = command.start("tune", net, *SEARCH, "--url", f"http://{server.http_url}")
        while len(models_there(server, tmp_path)) == 1:
            assert search.poll() is None
            time.sleep(0.05)
        os.killpg(server.group, signal.SIGKILL)
        _, stderr = search.communicate()
    assert search.returncode == 9, stderr
    assert "as plansmith-tune-net-" in stderr
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr


def test_comparison_on_a_running_server(server: TritonServer, tmp_path: Path) -> None:
    """Cells are sent to the server and measured as on one that is started for each."""
    arguments = ("--engines", "onnxruntime", "--instances", "1", "--users", "1", "--seconds", "1", "--rounds", "1")
    command, net = CommandLine(tmp_path), write_net(tmp_path)
    document = command.document("compare", net, *arguments, "--url", f"grpc://{server.grpc_url}")
    without, with_batching = (row["figures"] for row in document["rows"])
    assert with_batching["p50_ms"] > 300 > without["p50_ms"]  # one user waits for a batch for 0.3 s
    assert without["memory_bytes"] is None
    assert models_there(server, tmp_path) == {OTHER: "READY"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tritonserver", "/opt/triton"), "--url and --tritonserver are two servers"),
        (("--constraint", "memory<1G"), "does not tell what memory a model takes"),
        (("--encoding", "json"), "gRPC has no JSON bodies"),
    ],
)
def test_options_contradict_running_server(
    words: tuple[str, ...],
    message: str,
    net: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What a running server does not have is refused before any work."""
    answer = InProcess(net.parent, monkeypatch, capfd)("tune", net, "--url", "grpc://127.0.0.1:1", *words)
    assert answer.status == 2
    assert message in answer.stderr
    assert not (net.parent / "artifacts").exists()


def test_server_loading_nothing_refused(
    installation: Installation,
    site: Path,
    net: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A server that nobody answers at, or that takes no calls to load models, is refused before any work."""
    command, folder = InProcess(net.parent, monkeypatch, capfd), net.parent
    check_refusal(command("tune", net, *SPACE, "--url", "127.0.0.1:1", "--json"), 9, ("cannot be asked",))
    (folder / "others").mkdir()
    fixed = TritonServer(
        folder / "others",
        installation,
        folder / "triton.log",
        site=site,
        models=(),
        arguments=["--model-control-mode=none"],
    )
    with fixed:
        refused = command("tune", net, *SPACE, "--url", fixed.http_url, "--json")
    check_refusal(refused, 9, ("takes no calls to load models", "--model-control-mode=explicit"))
    assert not (folder / "artifacts" / "tuning" / "net" / "builds").exists()
