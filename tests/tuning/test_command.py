"""`plansmith tune`: what it refuses, and its dry run."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.triton.server.installation import has_gpu

from ..support.cli.command import CommandLine, check_refusal
from ..support.cli.in_process import InProcess
from .conftest import SEARCH


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--constraint", "p95"), "is no constraint"),
        (("--objective", "cost"), "needs the price of an hour"),
        (("--objective", "cost", "--instance-type", "ml.g5.xlarg"), "did you mean ml.g5.xlarge"),
        (("--usd-per-hour", "1"), "a price has no influence on the throughput"),
        (("--budget", "3"), "a search takes at least 14 runs"),
        (("--batch", "9"), "net takes batches of up to 8, and --batch is 9"),
        (("--batch", "4", "--max-batch-sizes", "1,2"), "none takes requests of 4 samples"),
        (("--max-batch-sizes", "16,8"), "--max-batch-sizes has 16, and the model takes batches of up to 8"),
        (("--users", "2", "--rate", "5"), "two loads"),
        (("--rate", "5"), "--rate 5 is the throughput itself"),
        (("--rate", "nan", "--objective", "latency"), "must be a finite number"),
        (("--delays", "1ms"), "--delays has '1ms'"),
        (("--instances", "1,1025"), "--instances has '1025'"),
        (("--engines", "caffe"), "--engines has 'caffe'"),
        (("--html", "nowhere/page.html"), "is in no folder that exists"),
        (("--dry-run", "--apply"), "a dry run publishes nothing"),
        (("--protocol", "grpc", "--encoding", "json"), "gRPC has no JSON"),
    ],
)
@pytest.mark.usefixtures("installation", "site")
def test_wrong_options_refused_early(
    words: tuple[str, ...],
    message: str,
    net: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A wrong option ends with exit code 2, and nothing is compiled."""
    answer = InProcess(net.parent, monkeypatch, capfd)("tune", net, *words)
    assert answer.status == 2
    assert message in answer.stderr
    assert not (net.parent / "artifacts").exists()


def test_spec_model_and_target_picked(
    net: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a spec with several models or targets, the refusal names one to type."""
    command = InProcess(net.parent, monkeypatch, capfd)
    net.write_text("models: [{source: onnx:net.onnx, name: a}, {source: onnx:net.onnx, name: b}]\n")
    check_refusal(command("tune", net, "--json"), 2, ("has 2 models", "--model a"))
    net.write_text("source: onnx:net.onnx\ntarget: [local-cpu, triton-26.03]\n")
    check_refusal(command("tune", net, "--json"), 2, ("is for 2 targets", "--target local-cpu"))
    check_refusal(command("tune", "net", "--target", "local-cpu", "--json"), 2, ("net is a release", "leave out"))


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
@pytest.mark.usefixtures("installation", "site")
def test_gpu_target_needs_gpu(net: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A model for GPUs is not measured on a machine without one."""
    net.write_text(f"{net.read_text()}target: triton-26.03\n")
    check_refusal(InProcess(net.parent, monkeypatch, capfd)("tune", net, "--json"), 9, ("no NVIDIA GPU",))


@pytest.mark.slow
@pytest.mark.usefixtures("installation", "site")
def test_dry_run_serves_nothing(net: Path) -> None:
    """A dry run shows space, budget and duration, and why TensorRT is left out on a machine without it."""
    command = CommandLine(net.parent)
    document = command.document("tune", net, *SEARCH, "--objective", "cost", "--usd-per-hour", "0.25", "--dry-run")
    assert (document["configurations"], document["runs"]) == (4, 14)
    assert document["seconds"] > 0
    assert document["goal"]["usd_per_hour"] == 0.25
    text = command.text("tune", net, *SEARCH[2:], "--dry-run")
    assert "left out     tensorrt fp32:" in text
    assert "nothing was served" in text
    assert not (net.parent / "artifacts" / "tuning" / "net" / "trials.jsonl").exists()
