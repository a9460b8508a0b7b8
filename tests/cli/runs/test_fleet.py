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
def test_a_plan_tells_what_is_stale_and_why_and_does_nothing(specs: Path, run: CommandLine) -> None:
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
    assert [(one["model"], one["state"], one["version"]) for one in document.document["models"]] == [
        ("tiny", "fresh", 1),
        ("three", "stale", None),
    ]


@pytest.mark.slow
def test_a_spec_that_changed_says_what_in_it_did(specs: Path, run: CommandLine, models: Path) -> None:
    write_spec(specs / "a.yaml", models / "bert", "tiny", "precision: fp16\n")
    (one,) = run("fleet", "plan", "specs/a.yaml", "--json").document["models"]
    assert one["state"] == "stale"
    assert one["reasons"][0]["cause"] == "spec"
    assert "precision" in one["reasons"][0]["words"]
    assert "fp32" in one["reasons"][0]["words"]
    assert "fp16" in one["reasons"][0]["words"]
    forced = run("fleet", "plan", "specs/a.yaml", "--force", "--model", "tiny").stdout
    assert "1 model: 1 stale" in forced
    assert "it was asked for" in forced
    check_refusal(run("fleet", "plan", "specs/a.yaml", "--model", "other", "--json"), 2, ("'other'", "tiny"))


@pytest.mark.slow
def test_a_run_builds_what_is_stale_and_a_failure_stops_none_of_the_others(
    specs: Path, run: CommandLine, models: Path
) -> None:
    write_spec(specs / "aa.yaml", models / "lacking", "lacking")
    (specs / "more" / "c.yml").unlink()
    assert run("fleet", "run", "specs", "--dry-run").stdout.startswith("3 models: 2 stale, 1 fresh\n")
    answer = run("fleet", "run", "specs")
    assert answer.status == 3, "that of the first failure"
    said = answer.stderr.splitlines()
    assert said[0] == "lacking for local-cpu (1 of 2)"
    assert "three for local-cpu (2 of 2)" in said
    assert [line for line in said if line.startswith("plansmith: lacking · ")]
    assert "Next: " in answer.stderr
    assert [line for line in said if line.startswith("  publish ")], "with the compile's own progress"
    counted, *table = answer.stdout.splitlines()
    assert counted.startswith("3 models: 1 published, 1 fresh, 1 failed; ")
    assert [line.split()[:4] for line in table[1:]] == [
        ["tiny", "local-cpu", "fresh,", "version"],
        ["lacking", "local-cpu", "failed", "at"],
        ["three", "local-cpu", "published", "version"],
    ]
    again = run("fleet", "run", "specs", "--json", "--quiet")
    assert again.status == 3
    assert [(one["model"], one["ended"], one["version"]) for one in again.document["models"]] == [
        ("tiny", "fresh", 1),
        ("lacking", "failed", None),
        ("three", "fresh", 1),
    ]
    assert again.document["models"][1]["failure"]["exit_code"] == 3
    assert again.stderr.startswith("plansmith: lacking · ")


@pytest.mark.slow
def test_an_interrupt_leaves_what_is_done_and_lists_the_rest(specs: Path, run: CommandLine, models: Path) -> None:
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
        printed, said = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "run the same command again" in said
    counted, *table = printed.splitlines()
    assert counted.startswith("3 models: 1 fresh, 2 interrupted; ")
    assert [line.split()[:3] for line in table[1:]] == [
        ["tiny", "local-cpu", "fresh,"],
        ["three", "local-cpu", "interrupted"],
        ["third", "local-cpu", "interrupted"],
    ]
    assert run("history", "--limit", "1", "--json").document["runs"][0]["outcome"] == "interrupted"


@pytest.mark.slow
def test_several_targets_have_a_row_each(finished: Compiled, run: CommandLine, models: Path) -> None:
    write_spec(finished.folder / "spec.yaml", models / "bert", "tiny")
    words = ("--target", "local-cpu", "--target", "triton-26.03", "--repository", "many", "--json")
    found = run("fleet", "plan", "spec.yaml", *words).document["models"]
    assert [(one["model"], one["target"], one["state"]) for one in found] == [
        ("tiny", "local-cpu", "stale"),
        ("tiny", "triton-26.03", "stale"),
    ]


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_place_without_specs_is_refused(command: str, run: CommandLine) -> None:
    answer = run("fleet", command, "nowhere")
    assert answer.status == 2
    assert "plansmith: nowhere: there is no spec and no folder" in answer.stderr
    assert "name a .yaml file" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout.splitlines()[-1].endswith("there is no spec and no folder nowhere")


@pytest.mark.parametrize("words", [("fleet", "plan"), ("fleet", "run"), ("status",)], ids=" ".join)
def test_two_specs_of_one_name_are_told_apart_and_what_to_do_is_said_once(
    words: tuple[str, ...], run: CommandLine
) -> None:
    specs = run.folder / "specs"
    specs.mkdir()
    for name in ("a", "b"):
        (specs / f"{name}.yaml").write_text("source: onnx:graph.onnx\nname: tiny\n")
    (run.folder / "specs" / "graph.onnx").write_bytes(b"a graph")
    answer = run(*words, "specs")
    assert answer.status == 2
    assert answer.stderr.count("\n") == answer.stderr.count("give each a `name` or a `repository` of its own") == 1
    assert answer.stderr.startswith(f"plansmith: tiny for local-cpu: {specs / 'a.yaml'} and {specs / 'b.yaml'} each ")
    one, two = answer.stdout.splitlines()[2:]
    assert one.startswith("  tiny (specs/a.yaml)  local-cpu  ")
    assert two.startswith("  tiny (specs/b.yaml)  local-cpu  ")
    why = "  specs/a.yaml and specs/b.yaml each have a model 'tiny', in the same repository, artifacts/repository"
    assert one.endswith(why)
    assert "next: " not in answer.stdout


def test_no_place_at_all_is_a_matter_of_usage(run: CommandLine) -> None:
    check_refusal(run("fleet", "plan", "--json"), 2, ("Missing argument 'PLACE...'", "plansmith fleet plan --help"))
