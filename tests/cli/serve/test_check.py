"""`plansmith check`: what it says to people, programs and code review, and its exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from plansmith.triton.checker.checker import all_rules

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.cli.screen import in_terminal
from ...support.documentation import code_blocks, read_page, section
from ..conftest import Compiled

SOUND = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
PROGRAM = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


@pytest.fixture
def run(run: InProcess) -> InProcess:
    """A folder with the repository `models`: sound, odd (a warning) and broken (an error)."""
    odd = SOUND + 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'
    for name, config in (("sound", SOUND), ("odd", odd), ("broken", SOUND.replace(": 8", ": -8"))):
        folder = run.folder / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(config)
        (folder / "1" / "model.py").write_text(PROGRAM)
    return run


def test_findings_told_by_model(run: InProcess) -> None:
    """Findings are told by model with place and what to do."""
    answer = run("check", "models")
    assert answer.status == 7
    assert answer.stderr == ""
    assert answer.stdout.splitlines() == [
        "broken",
        "  ✗ config.pbtxt:2  error  [config.max-batch-size]",
        "      max_batch_size is -8",
        "      → write 0 where the model has no batch dimension, else the largest batch",
        "",
        "odd",
        "  ! config.pbtxt:4  warning  [config.duplicate-output]",
        "      output 'y' is listed 2 times",
        "      → keep one of them",
        "",
        "3 models checked: 1 error, 1 warning in 2.",
        "More: plansmith explain config.max-batch-size",
    ]


def test_sound_repository_is_one_line(run: InProcess) -> None:
    """A sound repository is told in one line."""
    answer = run("check", "models", "sound")
    assert (answer.status, answer.stdout) == (0, "1 model checked: nothing found.\n")


@pytest.mark.parametrize(
    ("models", "fail_on", "status"),
    [
        (["odd"], "error", 0),
        (["odd"], "warning", 7),
        (["odd"], "note", 7),
        (["sound"], "note", 0),
        (["odd", "broken"], "error", 7),
    ],
)
def test_exit_code_follows_worst_finding(run: InProcess, models: list[str], fail_on: str, status: int) -> None:
    """The exit code follows the worst that counts."""
    assert run("check", "models", *models, "--fail-on", fail_on).status == status


def test_programs_get_one_document(run: InProcess) -> None:
    answer = run("check", "models", "--json", "--fail-on", "warning")
    assert answer.status == 7
    assert answer.document["counts"] == {"error": 1, "warning": 1, "note": 0}
    assert answer.document["models"] == ["broken", "odd", "sound"]
    assert answer.document["exit_code"] == 7
    assert answer.document["findings"][0] == {
        "rule": "config.max-batch-size",
        "severity": "error",
        "model": "broken",
        "place": "broken/config.pbtxt",
        "line": 2,
        "message": "max_batch_size is -8",
        "remedy": "write 0 where the model has no batch dimension, else the largest batch",
    }


def test_log_names_working_directory_lines(run: InProcess) -> None:
    """The log for code review names lines of the working directory."""
    assert run("check", "models", "--sarif", "check.sarif").status == 7
    log = json.loads((run.folder / "check.sarif").read_text())
    places = [
        (result["ruleId"], place["artifactLocation"]["uri"], place["region"]["startLine"])
        for result in log["runs"][0]["results"]
        for place in (result["locations"][0]["physicalLocation"],)
    ]
    assert places == [
        ("config.max-batch-size", "models/broken/config.pbtxt", 2),
        ("config.duplicate-output", "models/odd/config.pbtxt", 4),
    ]
    assert run("check", "models", "sound", "--sarif", "check.sarif").status == 0
    assert json.loads((run.folder / "check.sarif").read_text())["runs"][0]["results"] == []


def test_log_names_outside_folder_in_full(run: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log names a folder elsewhere in full, and any name that a folder may have."""
    odd = run.folder / os.fsdecode(b"models/m\xff")
    odd.mkdir()
    inner = run.folder / "inner"
    inner.mkdir()
    assert run("check", "models", "--sarif", "check.sarif").status == 7
    results = json.loads((run.folder / "check.sarif").read_text())["runs"][0]["results"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    assert "models/m%FF" in places
    monkeypatch.chdir(inner)
    assert run("check", "../models", "--sarif", "check.sarif").status == 7
    results = json.loads((inner / "check.sarif").read_text())["runs"][0]["results"]
    for result in results:
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert artifact["uri"].startswith(f"{(run.folder / 'models').as_uri()}/")
        assert "uriBaseId" not in artifact


def test_unwritable_log_refused(run: InProcess) -> None:
    """A log that cannot be written is refused."""
    check_refusal(
        run("check", "models", "--sarif", "nowhere/check.sarif", "--json"), 2, ("cannot write nowhere/check.sarif",)
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cache-config=local,size=1048576"],
        ["--cache-config local,size=1048576"],
        ["--cache-config", "local,size=1048576"],
    ],
)
def test_server_argument_forms_understood(run: InProcess, arguments: list[str]) -> None:
    """An argument of the server is understood however it is typed."""
    config = run.folder / "models" / "sound" / "config.pbtxt"
    config.write_text(SOUND + "response_cache { enable: true }\n")
    command = ["check", "models", "sound", "--fail-on", "note"]
    assert run(*command).status == 7
    assert run(*command, *(f"--server-argument={argument}" for argument in arguments)).status == 0


def test_every_rule_can_be_read(run: InProcess) -> None:
    answer = run("check", "--rules")
    assert answer.status == 0
    listed = json.loads(run("check", "--rules", "--json").stdout)["rules"]
    assert [rule["id"] for rule in listed] == [rule.id for rule in all_rules()]
    for rule in listed:
        assert f"{rule['id']} ({rule['severity']})\n    {rule['summary']}\n    {rule['source']}\n" in answer.stdout


REFUSALS = {
    "nothing is named": ((), 2, ("name a repository",)),
    "it is not there": (("nowhere",), 7, ("nowhere does not exist",)),
    "it is one model": (
        ("models/sound",),
        7,
        ("models/sound is the folder of one model", "plansmith check ", " sound"),
    ),
    "it has no such model": (("models", "another"), 7, ("has no model 'another'", "broken, odd, sound")),
    "the target is unknown": (("models", "--target", "triton-99"), 6, ("there is no target 'triton-99'",)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_uncheckable_input_refused(run: InProcess, name: str) -> None:
    """A folder that cannot be checked is refused with what to type."""
    arguments, status, fragments = REFUSALS[name]
    check_refusal(run("check", *arguments, "--json"), status, fragments)


def test_model_without_configuration_is_no_repository(run: InProcess) -> None:
    """A model without a configuration is not taken for a repository."""
    (run.folder / "models" / "sound" / "config.pbtxt").unlink()
    check_refusal(run("check", "models/sound", "--json"), 7, ("is the folder of one model",))


def test_nothing_is_written(run: InProcess) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    run("check", "models")
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")} == before


def test_terminal_gets_colours(run: InProcess) -> None:
    """A terminal gets wrapped lines with colours."""
    shown = in_terminal(run.folder, "check", "models", columns=50)
    assert shown.status == 7
    assert shown.colours
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.written)
    indented = [line for line in plain.splitlines() if line.startswith("      ")]
    assert "      → write 0 where the model has no batch" in indented
    assert max(map(len, indented)) <= 50


@pytest.mark.slow
def test_own_repository_is_sound(
    finished: Compiled, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Our own repository is sound and held against its target."""
    run = InProcess(finished.folder, monkeypatch, capfd)
    answer = run("check", "artifacts/repository", "--fail-on", "note")
    assert (answer.status, answer.stdout) == (0, "1 model checked: nothing found.\n")
    config = Path("artifacts/repository/tiny/config.pbtxt")
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
    assert "local-cpu has none" in run("check", "artifacts/repository").stdout
    assert run("check", "artifacts/repository", "--target", "triton-26.08").status == 0
    shutil.rmtree("artifacts/repository.plansmith/releases")
    assert run("check", "artifacts/repository", "--target", "triton-26.08").status == 0


RANKER = """backend: "python"
max_batch_size: 16
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]
model_warmup [ {
  name: "full"
  batch_size: 16
  inputs {
    key: "ids"
    value { data_type: TYPE_INT64 dims: [ 16, 128 ] zero_data: true }
  }
} ]
"""


def test_documented_example_is_printed(run: InProcess) -> None:
    """Documented example is what is printed."""
    shutil.rmtree(run.folder / "models")
    for version in ("1", "01"):
        (run.folder / "models" / "ranker" / version).mkdir(parents=True)
        (run.folder / "models" / "ranker" / version / "model.py").write_text(PROGRAM)
    (run.folder / "models" / "ranker" / "config.pbtxt").write_text(RANKER)
    (block,) = code_blocks(section(read_page("triton"), "Checking a repository"), "console")
    command, _, printed = block.removeprefix("$ plansmith check ").partition("\n")
    assert run("check", *command.split()).stdout == printed
