"""The commands that work on what a compile made: validate, inspect, serve; and the completion of all of them."""

from __future__ import annotations

import json
import shutil

import pytest

from ...support.cli.command import CommandLine, Refused, check_refusal
from ..conftest import Compiled

RELEASE = "artifacts/repository.plansmith/releases/tiny/1"
MODEL = f"{RELEASE}/model/model.onnx"


@pytest.mark.slow
def test_validate_repeats_gate(compiled: Compiled) -> None:
    """Validate repeats the gate on a folder and tells it as JSON."""
    answer = CommandLine(compiled.folder)("validate", RELEASE, "--json")
    assert answer.status == 0, answer
    assert answer.document["verdict"] == "passed"
    assert {row["output"] for row in answer.document["comparisons"]} == {"logits"}


@pytest.mark.slow
def test_validate_finds_model_version(compiled: Compiled) -> None:
    """Validate finds a version of a model and prints a line for each comparison."""
    answer = CommandLine(compiled.folder)("validate", "tiny@1")
    assert answer.status == 0, answer
    verdict, about, *rows = answer.stdout.splitlines()
    assert verdict.endswith("tiny/1: passed")
    assert "against PyTorch" in about
    assert len(rows) == len(json.loads((compiled.release / "manifest.json").read_text())["validation"]["comparisons"])
    assert all(row.startswith("  ok ") and "logits" in row for row in rows)


UNKNOWN = {
    "a model": Refused(("validate", "other"), 7, ("has no model 'other'", "choose from: tiny")),
    "a version": Refused(("validate", "tiny@9"), 7, ("tiny has no version '9'", "its versions: 1")),
    "a version that is no number": Refused(("validate", "tiny@x"), 7, ("tiny has no version 'x'",)),
    "a folder that is no release": Refused(("validate", "./artifacts"), 7, ("'./artifacts'", "tiny")),
    "a repository": Refused(("validate", "tiny", "--repository", "none"), 7, ("there is no model repository",)),
    "a path to inspect": Refused(("inspect", "missing"), 2, ("missing is no release", "artifacts/repository")),
    "a folder to inspect": Refused(("inspect", "artifacts"), 2, ("artifacts is no release", "artifacts/repository")),
    "a file to inspect": Refused(("inspect", "notes.txt"), 2, ("notes.txt is no release",), {"notes.txt": "x"}),
    "an ONNX file that is none": Refused(("inspect", "junk.onnx"), 2, ("junk.onnx",), {"junk.onnx": "junk"}),
    "a damaged manifest": Refused(
        ("inspect", "broken"),
        7,
        ("broken/manifest.json is damaged", "compile the model"),
        {"broken/manifest.json": "{"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_missing_release_refused(case: Refused, finished: Compiled, run: CommandLine) -> None:
    """What is not there is refused, with what is."""
    case.lay_out(finished.folder)
    check_refusal(run(*case.arguments, "--json"), case.status, case.says)


SERVED = {
    "a model": Refused(("serve", "other"), 7, ("has no model 'other'", "choose from: tiny")),
    "some of the models": Refused(("serve", "tiny", "b", "a"), 7, ("has no model 'a', 'b'", "choose from: tiny")),
    "an empty repository": Refused(("serve", "--repository", "none"), 7, ("none does not exist", "compile a model")),
    "a missing Triton": Refused(("serve", "--tritonserver", "/nope"), 9, ("/nope was given", "bin/tritonserver")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SERVED.values(), ids=SERVED.keys())
def test_unservable_release_refused(case: Refused, compiled: Compiled) -> None:
    """What cannot be served is refused."""
    answer = CommandLine(compiled.folder)(*case.arguments)
    assert (answer.status, answer.stdout) == (case.status, "")
    assert "\nNext: " in answer.message
    assert not [fragment for fragment in case.says if fragment not in answer.message], answer.message


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model/model.onnx", "config.pbtxt", "reference/max.npz"])
def test_flipped_byte_not_validated(file: str, finished: Compiled, run: CommandLine) -> None:
    """A release with one flipped byte is not validated."""
    shutil.copytree(finished.release, finished.folder / "copy")
    content = bytearray((finished.release / file).read_bytes())
    content[len(content) // 2] ^= 1
    (finished.folder / "copy" / file).write_bytes(content)
    answer = run("validate", "copy", "--json")
    check_refusal(answer, 7, (f"copy/{file} is missing, or its content is not what", "compile the model again"))


@pytest.mark.slow
def test_missing_file_not_validated(finished: Compiled, run: CommandLine) -> None:
    """A release without a file is not validated."""
    shutil.copytree(finished.release, finished.folder / "copy")
    (finished.folder / "copy" / "model" / "model.onnx").unlink()
    check_refusal(run("validate", "copy", "--json"), 7, ("copy/model/model.onnx is missing", "compile the model again"))


EXPLAINED = {
    RELEASE: ("model: tiny, version 1", "logits: float32 [batch, 2]", "verdict: passed", "served: not checked"),
    f"{RELEASE}/manifest.json": (
        "model: tiny, version 1",
        "exporter: torchscript",
        "input_ids: int64 [batch, sequence]",
    ),
    MODEL: ("made by:", "opset: 18", "logits: float32 [batch, 2]", "MatMul: "),
    "artifacts/repository": (
        "target: local-cpu",
        "versions: 1",
        "shown_to_triton: 1",
        "newest: onnxruntime, fp32, gate passed",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXPLAINED)
def test_inspect_prints_lines_and_json(path: str, compiled: Compiled) -> None:
    """Inspect explains in lines and in JSON."""
    run = CommandLine(compiled.folder)
    lines, document = run("inspect", path), run("inspect", path, "--json")
    assert (lines.status, lines.stderr, document.status, document.stderr) == (0, "", 0, "")
    assert not [fragment for fragment in EXPLAINED[path] if fragment not in lines.stdout], lines.stdout
    labels = [line.split(":")[0] for line in lines.stdout.splitlines() if not line.startswith(" ")]
    assert labels == [key for key, value in document.document.items() if value not in ([], {})]


@pytest.mark.parametrize(("shell", "sign"), [("bash", "complete "), ("zsh", "#compdef"), ("fish", "complete ")])
def test_shell_completion_is_printed(shell: str, sign: str, run: CommandLine) -> None:
    """The completion of a shell is printed."""
    answer = run(_PLANSMITH_COMPLETE=f"{shell}_source")
    assert answer.status == 0, answer
    assert sign in answer.stdout
    assert "_PLANSMITH_COMPLETE" in answer.stdout
