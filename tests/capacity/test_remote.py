"""`plansmith capacity` on a Triton that runs already: copies are sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.capacity.remote import RemoteTriton, memory_pools
from plansmith.copies.release import loaded_models
from plansmith.loadtest.monitor import parse_gauges
from plansmith.triton.server.control import ModelControlClient
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ..support.cli.command import check_refusal
from ..support.cli.in_process import InProcess

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("capacity")]


@pytest.fixture
def server(installation: Installation, site: Path, tmp_path: Path) -> Iterator[TritonServer]:
    (tmp_path / "others").mkdir()
    with TritonServer(tmp_path / "others", installation, tmp_path / "triton.log", site=site, models=()) as server:
        yield server


def place_of(server: TritonServer) -> tuple[str, ...]:
    return "--url", f"grpc://{server.grpc_url}", "--metrics", server.metrics_url


def names_there(server: TritonServer, *models: str) -> list[str]:
    """The copies of some models that a server has."""
    control = ModelControlClient(f"grpc://{server.grpc_url}", load_seconds=30)
    return sorted(loaded_models(control, [f"plansmith-{model}-copy{n}" for model in models for n in (1, 2, 3)]))


def test_copies_are_sent_and_unloaded(command: InProcess, server: TritonServer) -> None:
    """Copies answer on the server, its metrics tell the memory, and none of them stays."""
    report = command.document("capacity", "block", "onnx", "--max-copies", "3", *place_of(server))
    assert [copy["name"] for copy in report["copies"]] == [
        "plansmith-block-copy1",
        "plansmith-onnx-copy2",
        "plansmith-block-copy3",
    ]
    assert (report["ending"], report["still_loaded"], report["failed_answers"]) == ("max-copies", [], {})
    assert report["answers_ms"]["count"] == report["unload_seconds"]["count"] == 3
    (pool,) = report["memory_full"]
    assert 0 < pool["used_bytes"] < pool["total_bytes"]
    assert names_there(server, "block", "onnx") == []


def test_script_sent_with_members(command: InProcess, server: TritonServer) -> None:
    """Each copy of a script asks its own members; of an ensemble Triton looks for them in its repository."""
    report = command.document("capacity", "script", "--max-copies", "2", *place_of(server))
    assert (len(report["copies"]), report["answers_ms"]["count"], report["unload_seconds"]["count"]) == (2, 2, 2)
    refused = command("capacity", "whole", "--json", *place_of(server))
    check_refusal(refused, 2, ("whole-copy1 cannot be sent to a running server", "leave out --url"))


def test_an_interrupted_measurement_leaves_nothing(
    command: InProcess, server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a copy is loaded unloads that one, too."""
    load = RemoteTriton.load

    def interrupted(self: RemoteTriton, number: int) -> None:
        load(self, number)
        if number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RemoteTriton, "load", interrupted)
    answer = command("capacity", "onnx", "--json", *place_of(server))
    assert answer.status == 130
    assert (len(answer.document["copies"]), answer.document["still_loaded"]) == (1, [])
    assert names_there(server, "onnx") == []


def test_missing_server_features_refused(command: InProcess, server: TritonServer) -> None:
    """Options of a server that is started, and a server without metrics, are refused."""
    url, place, metrics, _ = place_of(server)
    check_refusal(command("capacity", "onnx", url, place, "--memory", "1G", "--json"), 2, ("--memory is about",))
    check_refusal(command("capacity", "onnx", metrics, "host:8002", "--json"), 2, ("--metrics goes with --url",))
    check_refusal(command("capacity", "onnx", url, place, "--json"), 9, ("--metrics HOST:PORT",))
    wrong = command("capacity", "onnx", url, place, metrics, "127.0.0.1:1", "--json")
    check_refusal(wrong, 9, ("127.0.0.1:1 does not answer", "--metrics-port"))
    shown = command.text("capacity", "onnx", "--dry-run", *place_of(server))
    assert "of host memory are free" in shown


def test_gpu_memory_read_from_metrics() -> None:
    """Each GPU has a pool, as Triton's gauges have it."""
    text = """\
nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"} 24000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 1000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 16000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 500
nv_cpu_memory_total_bytes 64000
nv_cpu_memory_used_bytes 4000
"""
    pools = [(pool.name, pool.total_bytes, pool.used_bytes) for pool in memory_pools(parse_gauges(text))]
    assert pools == [("host", 64000, 4000), ("gpu 0", 16000, 500), ("gpu 1", 24000, 1000)]
