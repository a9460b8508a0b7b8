"""Many models at once: what is stale and why, what comes of building that, and what stops none of the others."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from ...support.cli.command import COMMAND, CommandLine, check_refusal, environment, listing
from ..conftest import Compiled

HEAD = ["MODEL", "TARGET", "STATE", "WHY"]


@pytest.fixture
def specs(finished: Compiled, models: Path) -> Path:
    """A folder of specs: `tiny`, which is compiled as it says, `three`, which never was, and one with a wrong key."""
    folder = finished.folder / "specs"
    (folder / "more").mkdir(parents=True)
    write_spec(folder / "a.yaml", models / "bert", "tiny")
    write_spec(folder / "b.yaml", models / "three-labels", "three")
    (folder / "more" / "c.yml").write_text("source: hf:./none\nsauce: hot\n")
    return folder


def write_spec(file: Path, source: Path, name: str, more: str = "") -> None:
    file.write_text(f"source: hf:{source}\nname: {name}\ncheck_served: false\n{more}")


def rows(text: str) -> list[list[str]]:
    """The cells of an indented table, of which the last may hold spaces."""
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    return [line.split(maxsplit=3) for line in lines]


@pytest.mark.slow
def test_plan_tells_stale_models(specs: Path, run: CommandLine) -> None:
    """A plan tells what is stale and why and does nothing."""
    before = listing(run.folder, folder_times=True)
    answer = run("fleet", "plan", "specs")
    assert listing(run.folder, folder_times=True) == before
    assert answer.status == 2
    assert answer.stdout.splitlines()[0] == "3 models: 1 stale, 1 fresh, 1 refused"
    head, tiny, three, wrong = rows(answer.stdout)
    assert head == HEAD
    assert tiny == ["tiny", "local-cpu", "fresh", "nothing changed"]
    assert three == ["three", "local-cpu", "stale", "there is no version of it yet"]
    assert wrong[0] == "specs/more/c.yml"
    assert "'sauce'" in answer.stderr
    (specs / "more" / "c.yml").unlink()
    document = run("fleet", "plan", specs, "--json")
    assert (document.status, document.stderr) == (0, "")
    assert [(model["model"], model["state"], model["version"]) for model in document.document["models"]] == [
        ("tiny", "fresh", 1),
        ("three", "stale", None),
    ]


@pytest.mark.slow
def test_changed_spec_says_what_changed(specs: Path, run: CommandLine, models: Path) -> None:
    """A spec that changed says what in it did."""
    write_spec(specs / "a.yaml", models / "bert", "tiny", "precision: fp16\n")
    (model,) = run("fleet", "plan", "specs/a.yaml", "--json").document["models"]
    assert model["state"] == "stale"
    assert model["reasons"][0]["cause"] == "spec"
    assert "precision" in model["reasons"][0]["words"]
    assert "fp32" in model["reasons"][0]["words"]
    assert "fp16" in model["reasons"][0]["words"]
    forced = run("fleet", "plan", "specs/a.yaml", "--force", "--model", "tiny").stdout
    assert "1 model: 1 stale" in forced
    assert "it was asked for" in forced
    check_refusal(run("fleet", "plan", "specs/a.yaml", "--model", "other", "--json"), 2, ("'other'", "tiny"))


@pytest.mark.slow
def test_run_builds_stale_models(specs: Path, run: CommandLine, models: Path) -> None:
    """A run builds what is stale and a failure stops none of the others."""
    write_spec(specs / "aa.yaml", models / "lacking", "lacking")
    (specs / "more" / "c.yml").unlink()
    assert run("fleet", "run", "specs", "--dry-run").stdout.startswith("3 models: 2 stale, 1 fresh\n")
    answer = run("fleet", "run", "specs")
    assert answer.status == 3, "that of the first failure"
    lines = answer.stderr.splitlines()
    assert lines[0] == "lacking for local-cpu (1 of 2)"
    assert "three for local-cpu (2 of 2)" in lines
    assert [line for line in lines if line.startswith("plansmith: lacking · ")]
    assert "Next: " in answer.stderr
    assert [line for line in lines if line.startswith("  publish ")], "with the compile's own progress"
    counted, *table = answer.stdout.splitlines()
    assert counted.startswith("3 models: 1 published, 1 fresh, 1 failed; ")
    assert [line.split()[:4] for line in table[1:]] == [
        ["tiny", "local-cpu", "fresh,", "version"],
        ["lacking", "local-cpu", "failed", "at"],
        ["three", "local-cpu", "published", "version"],
    ]
    again = run("fleet", "run", "specs", "--json", "--quiet")
    assert again.status == 3
    assert [(model["model"], model["ended"], model["version"]) for model in again.document["models"]] == [
        ("tiny", "fresh", 1),
        ("lacking", "failed", None),
        ("three", "fresh", 1),
    ]
    assert again.document["models"][1]["failure"]["exit_code"] == 3
    assert [line for line in again.stderr.splitlines() if line.startswith("plansmith: lacking · ")]


@pytest.mark.slow
def test_interrupt_lists_the_rest(specs: Path, run: CommandLine, models: Path) -> None:
    """An interrupt leaves what is done and lists the rest."""
    (specs / "more" / "c.yml").unlink()
    write_spec(specs / "c.yaml", models / "three-labels", "third")
    command = [*COMMAND, "fleet", "run", "specs"]
    logs = run.folder / "artifacts" / "logs"
    before = set(logs.iterdir())
    with subprocess.Popen(
        command, cwd=run.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while set(logs.iterdir()) == before:
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        printed, messages = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in messages
    assert "run the same command again" in messages
    counted, *table = printed.splitlines()
    assert counted.startswith("3 models: 1 fresh, 2 interrupted; ")
    assert [line.split()[:3] for line in table[1:]] == [
        ["tiny", "local-cpu", "fresh,"],
        ["three", "local-cpu", "interrupted"],
        ["third", "local-cpu", "interrupted"],
    ]
    assert run("history", "--limit", "1", "--json").document["runs"][0]["outcome"] == "interrupted"


@pytest.mark.slow
def test_targets_have_own_rows(finished: Compiled, run: CommandLine, models: Path) -> None:
    """Several targets have a row each."""
    write_spec(finished.folder / "spec.yaml", models / "bert", "tiny")
    arguments = ("--target", "local-cpu", "--target", "triton-26.03", "--repository", "many", "--json")
    rows = run("fleet", "plan", "spec.yaml", *arguments).document["models"]
    assert [(row["model"], row["target"], row["state"]) for row in rows] == [
        ("tiny", "local-cpu", "stale"),
        ("tiny", "triton-26.03", "stale"),
    ]


@pytest.mark.parametrize("command", ["plan", "run"])
def test_place_without_specs_refused(command: str, run: CommandLine) -> None:
    """A place without specs is refused."""
    answer = run("fleet", command, "nowhere")
    assert answer.status == 2
    assert "plansmith: nowhere: there is no spec and no folder" in answer.stderr
    assert "name a .yaml file" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout.splitlines()[-1].endswith("there is no spec and no folder nowhere")


@pytest.mark.parametrize("words", [("fleet", "plan"), ("fleet", "run"), ("status",)], ids=" ".join)
def test_same_name_specs_told_apart(words: tuple[str, ...], run: CommandLine) -> None:
    """Two specs of one name are told apart, and what to do is said once."""
    specs = run.folder / "specs"
    specs.mkdir()
    for name in ("a", "b"):
        (specs / f"{name}.yaml").write_text("source: onnx:graph.onnx\nname: tiny\n")
    (run.folder / "specs" / "graph.onnx").write_bytes(b"a graph")
    answer = run(*words, "specs")
    assert answer.status == 2
    assert answer.stderr.count("\n") == answer.stderr.count("give each a `name` or a `repository` of its own") == 1
    assert answer.stderr.startswith(f"plansmith: tiny for local-cpu: {specs / 'a.yaml'} and {specs / 'b.yaml'} each ")
    first, two = answer.stdout.splitlines()[2:]
    assert first.startswith("  tiny (specs/a.yaml)  local-cpu  ")
    assert two.startswith("  tiny (specs/b.yaml)  local-cpu  ")
    why = "  specs/a.yaml and specs/b.yaml each have a model 'tiny', in the same repository, artifacts/repository"
    assert first.endswith(why)
    assert "next: " not in answer.stdout


def test_missing_place_is_usage_error(run: CommandLine) -> None:
    """No place at all is a matter of usage."""
    check_refusal(run("fleet", "plan", "--json"), 2, ("Missing argument 'PLACE...'", "plansmith fleet plan --help"))
