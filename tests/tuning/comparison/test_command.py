"""`plansmith compare` from specs to a table, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ...support.cli.command import CommandLine, check_refusal
from ...support.cli.in_process import InProcess
from ..conftest import write_net

GRID = ("--engines", "onnxruntime,tensorrt", "--instances", "1", "--users", "1,4", "--seconds", "1", "--rounds", "2")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engines", "caffe"), "--engines has 'caffe'"),
        (("--batching", "maybe"), "--batching has 'maybe'"),
        (("--users", "1,x"), "--users has 'x'"),
        (("--instance-type", "ml.g5.xlarg"), "did you mean ml.g5.xlarge"),
        (("--target-rate", "5"), "--target-rate is about the number of instances and their cost"),
        (("--headroom", "0.2"), "--headroom is about the number of instances"),
        (("--usd-per-hour", "0"), "0 is no price per hour"),
        (("--csv", "nowhere/cells.csv"), "is in no folder that exists"),
        (("--protocol", "grpc", "--encoding", "json"), "gRPC has no JSON"),
    ],
)
def test_wrong_options_refused_early(
    words: tuple[str, ...],
    message: str,
    net: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A wrong option ends with exit code 2, and nothing is compiled."""
    answer = InProcess(net.parent, monkeypatch, capfd)("compare", net, *words)
    assert answer.status == 2
    assert message in answer.stderr
    assert not (net.parent / "artifacts").exists()


@pytest.mark.usefixtures("installation", "site")
def test_dry_run_lists_default_grid(
    net: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The default grid has eight cells per model, and a dry run compiles nothing."""
    run = InProcess(net.parent, monkeypatch, capfd)
    specs = ROOT / "configs" / "models" / "published-random.yaml"
    document = run("compare", specs, "--dry-run", "--json").document
    assert len(document["cells"]) == 6 * 8
    assert document["load_seconds"] == 6 * 8 * 3 * (8 * 10 + 5)
    default = run("compare", net, "--dry-run", "--json").document
    assert {cell["engine"] for cell in default["cells"]} == {"onnxruntime"}, "an ONNX file is no PyTorch model"
    shown = run("compare", net, "--dry-run", "--engines", "python,onnxruntime,tensorrt").stdout
    assert "  PyTorch, no batching, 1 instance ! onnx:net.onnx is no model of transformers or timm\n" in shown
    assert "  ONNX Runtime, dynamic batching, 2 instances\n" in shown
    assert "  TensorRT, no batching, 1 instance ! " in shown
    assert not (net.parent / "artifacts").exists()


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.xdist_group("loadtest")
@pytest.mark.usefixtures("installation", "site")
def test_comparison(tmp_path: Path) -> None:
    """Cells are measured on the real Triton, priced and compared; the same command again measures nothing."""
    net = write_net(tmp_path)
    command = CommandLine(tmp_path)
    priced = ("--usd-per-hour", "0.5", "--target-rate", "100000", "--csv", "cells.csv")
    done = command("compare", net, *GRID, *priced, "--json")
    assert done.status == 0, done
    rows = done.document["rows"]
    assert [(row["cell"]["engine"], row["cell"]["batching"]) for row in rows] == [
        ("onnxruntime", False),
        ("onnxruntime", True),
        ("tensorrt", False),
        ("tensorrt", True),
    ]
    for row in rows[:2]:
        assert row["problem"] == ""
        assert row["figures"]["samples_per_second"] > 0
        assert 0 < row["figures"]["p50_ms"] <= row["figures"]["p95_ms"]
        assert (row["figures"]["rounds"], row["figures"]["max_users"]) == (2, 4)
        assert row["figures"]["memory_bytes"] > 2**20
        assert row["cost"]["instances"] > 1
    # One user waits for a batch for 0.3 s, which the spec's batcher does and none without it.
    assert rows[1]["figures"]["p50_ms"] > 300 > rows[0]["figures"]["p50_ms"]
    assert rows[1]["differences"]["p50_ms"]["percent"] > 100
    for row in rows[2:]:
        assert row["figures"] is None
        assert row["problem"]
    with (tmp_path / "cells.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [line["dynamic_batching"] for line in lines] == ["off", "on", "off", "on"]
    assert float(lines[1]["p50_ms_percent"]) > 100
    again = command("compare", net, *GRID, *priced)
    assert again.status == 0, again
    assert again.stderr.count("measured before") == 4
    assert "  ONNX Runtime FP32, no batching, 1 instance" in again.stdout
    assert "! TensorRT, no batching, 1 instance failed: " in again.stdout
    assert "2 of 4 cells failed" in again.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("installation", "site")
def test_no_cell_can_be_measured(net: Path) -> None:
    """Where no cell can be served, that is the error, with the first reason."""
    refused = CommandLine(net.parent)("compare", net, "--engines", "tensorrt", "--json")
    check_refusal(refused, 8, ("none of 4 cells could be measured", "TensorRT, no batching, 1 instance"))
