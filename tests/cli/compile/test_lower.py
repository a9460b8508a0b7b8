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
def test_an_int8_release_tells_its_recipe_data_and_accuracy_wherever_it_is_asked(
    finished: Compiled, data: Path, run: CommandLine
) -> None:
    _spec(finished)
    answer = run("compile", "int8.yaml")
    assert answer.status == 0, answer
    assert "tiny published, version 2: onnxruntime, int8, gate passed\n  INT8, " in answer.stdout
    told = [
        r"^  INT8, .* lowered; \d+ nodes? stays? higher$",
        r"^  [\d.]+ KiB, 0\.\d\d of FP32$",
        r"^  [\d.]+ times as fast as FP32 \(95 % interval ",
        rf"^  32 held-out samples of {data.name} ",
        r"^    logits: mean cosine .*, SQNR .*, KL .* nats",
        r"^    top-1 accuracy .*: .*, allowed -",
        r"^  report      artifacts/repository\.plansmith/releases/tiny/2/report\.html$",
    ]
    assert not [line for line in told if not re.search(line, answer.stdout, re.MULTILINE)], answer.stdout
    found = run("compile", "int8.yaml", "--json").document
    assert (found["precision"], found["unchanged"]) == ("int8", True)
    assert Path(found["report"]).is_file()
    assert found["lowering"]["calibration_samples"] == 16
    assert 0 < found["lowering"]["file_bytes"] < found["lowering"]["fp32_bytes"]
    assert found["lowering"]["tried"] >= 1
    assert found["lowering"]["speed"]["repeats"] > 1
    assert found["evaluation"]["samples"] == 32
    assert [metric["name"] for metric in found["evaluation"]["metrics"]] == ["top-1 accuracy"]
    shown = run("show", "tiny").stdout
    assert "calibration: 16 of 48 samples" in shown
    assert "evaluation: 32 others, looked at once" in shown
    assert f"    {re.search(told[0], answer.stdout, re.MULTILINE)[0].strip()}" in shown  # type: ignore[index]
    for words in (("compile", "int8.yaml"), ("show", "tiny")):
        screen = in_terminal(finished.folder, *words, columns=80).screen
        assert max(map(len, screen)) <= 80
        cut = {word for word in run(*words).stdout.split() if len(word) < 60} - {*" ".join(screen).split()}
        assert not cut, "\n".join(screen)
    repeated = run("validate", "tiny").stdout
    assert f"when it was compiled, 32 held-out samples of {data.name}" in repeated
    assert "ok top-1 accuracy" in repeated
    assert "judged on" not in repeated
    assert run("history").stdout.splitlines()[1].split()[3:6] == ["unchanged", "2,", "int8"]


@pytest.mark.slow
def test_a_lowered_graph_for_tensorrt_is_written_with_what_is_known_of_it(
    finished: Compiled, data: Path, run: CommandLine
) -> None:
    del data
    _spec(finished)
    answer = run("lower", "int8.yaml", "--engine", "tensorrt", "--output", "made/graph")
    assert answer.status == 0, answer
    assert answer.stdout.startswith("tiny: int8 graph for tensorrt, gate passed\n  INT8, explicit Q/DQ for TensorRT: ")
    assert "\n  not validated: TensorRT's own INT8 kernels" in answer.stdout
    assert "\n  graph       made/graph/model.onnx\n  record      made/graph/lowered.json\nNext: " in answer.stdout
    assert "QuantizeLinear: " in run("inspect", "made/graph/model.onnx").stdout
    told = run("inspect", "made/graph").stdout
    assert all(words in told for words in ("model: tiny", "made for: tensorrt", "calibration: 16 of 48", "tried:"))
    assert run("inspect", "made/graph/lowered.json").stdout == told
    (run.folder / "lowered.json").write_text("{}")
    check_refusal(
        run("inspect", "lowered.json", "--json"), 2, ("is no record of a lowered graph", "lower the model again")
    )
    record = json.loads((run.folder / "made/graph/lowered.json").read_text())
    again = ("lower", "int8.yaml", "--engine", "tensorrt", "--output")
    assert run(*again, "second", "--json", "--quiet").document == record | {"folder": "second"}
    check_refusal(run(*again, "second", "--json"), 2, ("second is there already", "another --output"))


@pytest.mark.slow
def test_a_refused_lowering_names_its_report(finished: Compiled, data: Path, run: CommandLine) -> None:
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
def test_what_cannot_be_lowered_is_refused_before_any_work(case: Refused, run: CommandLine) -> None:
    case.lay_out(run.folder)
    check_refusal(run(*case.words, "--json"), case.status, case.says)
    check_nothing_made(run.folder)
    assert not (run.folder / "artifacts").exists()
