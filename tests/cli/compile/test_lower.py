"""Lower precision from the command line: a graph of one's own, a release, and what both tell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ...support.cli.command import BERT, CommandLine, Refused, check_nothing_made, check_refusal
from ...support.cli.screen import in_terminal
from ..conftest import Compiled

_SAMPLES, _LENGTH = 48, 16
_MODEL = {"bert/config.json": json.dumps(BERT), "bert/model.safetensors": "weights"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Inputs for `bert` with labels, which are beyond what it could have learnt."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, _LENGTH + 1, _SAMPLES)
    path = tmp_path / "inputs.npz"
    np.savez(
        path,
        input_ids=rng.integers(0, BERT["vocab_size"], (_SAMPLES, _LENGTH)),
        attention_mask=(np.arange(_LENGTH) < lengths[:, None]).astype(np.int64),
        token_type_ids=np.zeros((_SAMPLES, _LENGTH), np.int64),
        label=rng.integers(0, 2, _SAMPLES),
    )
    return path


def _spec(finished: Compiled, *more: str) -> None:
    lines = (
        f"source: {finished.command[1]}",
        "name: tiny",
        "precision: int8",
        "check_served: false",
        "data: {path: inputs.npz, calibration: 16, evaluation: 32}",
        *more,
    )
    (finished.folder / "int8.yaml").write_text("\n".join(lines))


@pytest.mark.slow
def test_int8_release_tells_its_recipe(finished: Compiled, data: Path, run: CommandLine) -> None:
    """An INT8 release tells its recipe, data and accuracy wherever it is asked."""
    _spec(finished)
    answer = run("compile", "int8.yaml")
    assert answer.status == 0, answer
    assert "tiny published, version 2: onnxruntime, int8, gate passed\n  INT8, " in answer.stdout
    patterns = [
        r"^  INT8, .* lowered; \d+ nodes? stays? higher$",
        r"^  [\d.]+ KiB, 0\.\d\d of FP32$",
        r"^  [\d.]+ times as fast as FP32 \(95 % interval ",
        rf"^  32 held-out samples of {data.name} ",
        r"^    logits: mean cosine .*, SQNR .*, KL .* nats",
        r"^    top-1 accuracy .*: .*, allowed -",
        r"^  report      artifacts/repository\.plansmith/releases/tiny/2/report\.html$",
    ]
    assert not [line for line in patterns if not re.search(line, answer.stdout, re.MULTILINE)], answer.stdout
    report = run("compile", "int8.yaml", "--json").document
    assert (report["precision"], report["unchanged"]) == ("int8", True)
    assert Path(report["report"]).is_file()
    assert report["lowering"]["calibration_samples"] == 16
    assert 0 < report["lowering"]["file_bytes"] < report["lowering"]["fp32_bytes"]
    assert report["lowering"]["tried"] >= 1
    assert report["lowering"]["speed"]["repeats"] > 1
    assert report["evaluation"]["samples"] == 32
    assert [metric["name"] for metric in report["evaluation"]["metrics"]] == ["top-1 accuracy"]
    shown = run("show", "tiny").stdout
    assert "calibration: 16 of 48 samples" in shown
    assert "evaluation: 32 others, looked at once" in shown
    assert f"    {re.search(patterns[0], answer.stdout, re.MULTILINE)[0].strip()}" in shown  # type: ignore[index]
    for arguments in (("compile", "int8.yaml"), ("show", "tiny")):
        screen = in_terminal(finished.folder, *arguments, columns=80).screen
        assert max(map(len, screen)) <= 80
        cut = {word for word in run(*arguments).stdout.split() if len(word) < 60} - {*" ".join(screen).split()}
        assert not cut, "\n".join(screen)
    repeated = run("validate", "tiny").stdout
    assert f"when it was compiled, 32 held-out samples of {data.name}" in repeated
    assert "ok top-1 accuracy" in repeated
    assert "judged on" not in repeated
    assert run("history").stdout.splitlines()[1].split()[3:6] == ["unchanged", "2,", "int8"]


@pytest.mark.slow
def test_lowered_graph_written_for_tensorrt(finished: Compiled, data: Path, run: CommandLine) -> None:
    """A lowered graph for TensorRT is written with what is known of it."""
    del data
    _spec(finished)
    answer = run("lower", "int8.yaml", "--engine", "tensorrt", "--output", "made/graph")
    assert answer.status == 0, answer
    assert answer.stdout.startswith("tiny: int8 graph for tensorrt, gate passed\n  INT8, explicit Q/DQ for TensorRT: ")
    assert "\n  not validated: TensorRT's own INT8 kernels" in answer.stdout
    assert "\n  graph       made/graph/model.onnx\n  record      made/graph/lowered.json\nNext: " in answer.stdout
    assert "QuantizeLinear: " in run("inspect", "made/graph/model.onnx").stdout
    output = run("inspect", "made/graph").stdout
    assert all(text in output for text in ("model: tiny", "made for: tensorrt", "calibration: 16 of 48", "tried:"))
    assert run("inspect", "made/graph/lowered.json").stdout == output
    (run.folder / "lowered.json").write_text("{}")
    check_refusal(
        run("inspect", "lowered.json", "--json"), 2, ("is no record of a lowered graph", "lower the model again")
    )
    record = json.loads((run.folder / "made/graph/lowered.json").read_text())
    again = ("lower", "int8.yaml", "--engine", "tensorrt", "--output")
    assert run(*again, "second", "--json", "--quiet").document == record | {"folder": "second"}
    check_refusal(run(*again, "second", "--json"), 2, ("second is there already", "another --output"))


@pytest.mark.slow
def test_refused_lowering_names_report(finished: Compiled, data: Path, run: CommandLine) -> None:
    """A refused lowering names its report."""
    del data
    _spec(finished, "lowering: {budget: 0}", "tolerances: {logits: {min_cosine: 1, max_relative: 1e-9}}")
    answer = run("compile", "int8.yaml", "--json")
    check_refusal(answer, 5, ("tiny · lower: none of ", "is accurate enough", "raise `lowering: budget`"))
    report = re.search(r"^Report: (.*\.html)$", answer.message, re.MULTILINE)
    assert report is not None
    assert "<title>Failed: tiny" in Path(report[1]).read_text(encoding="utf-8")
    assert answer.document["log"] == report[1]
    assert run("history", "--json").document["runs"][0]["made"] is None


REFUSED = {
    "nothing to lower": Refused(("lower", "hf:bert"), 2, ("nothing to lower", "--precision int8"), _MODEL),
    "BF16 for ONNX Runtime": Refused(
        ("lower", "hf:bert", "--precision", "bf16"), 2, ("no BF16 kernels for a CPU", "--engine tensorrt"), _MODEL
    ),
    "FP8 for ONNX Runtime": Refused(
        ("lower", "hf:bert", "--precision", "fp8"), 2, ("no FP8 kernels for a CPU", "--engine tensorrt"), _MODEL
    ),
    "a choice by speed for TensorRT": Refused(
        ("lower", "hf:bert", "--precision", "auto", "--engine", "tensorrt"), 2, ("auto goes by speed",), _MODEL
    ),
    "an engine without graphs": Refused(
        ("lower", "hf:bert", "--precision", "int8", "--engine", "python"), 2, ("engine python runs no graph",), _MODEL
    ),
    "INT8 of ONNX Runtime for a GPU": Refused(
        ("lower", "hf:bert", "--precision", "int8", "--target", "triton-26.08"), 6, ("no INT8 kernels", "fp16"), _MODEL
    ),
    "several models": Refused(
        ("lower", "two.yaml"),
        2,
        ("two.yaml holds 2 models", "pick one with --model"),
        {"two.yaml": "models: [{source: hf:a, name: a}, {source: hf:b, name: b}]"},
    ),
    "an unknown option": Refused(("lower", "hf:bert", "--repository", "r"), 2, ("--repository", "--help")),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_impossible_lowering_refused_early(case: Refused, run: CommandLine) -> None:
    """What cannot be lowered is refused before any work."""
    case.lay_out(run.folder)
    check_refusal(run(*case.arguments, "--json"), case.status, case.says)
    check_nothing_made(run.folder)
    assert not (run.folder / "artifacts").exists()
