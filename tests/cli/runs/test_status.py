"""How the models stand, told at once: newest versions, what is stale and why, the last compile of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ...support.cli.command import CommandLine, check_refusal, environment, listing
from ...support.source import heavy_libraries
from ..conftest import Compiled
from .test_fleet import write_spec


@pytest.mark.slow
def test_models_stand_with_their_versions_and_last_runs(finished: Compiled, run: CommandLine) -> None:
    answer = run("status")
    assert (answer.status, answer.stderr) == (0, "")
    counted, head, tiny, hint = answer.stdout.splitlines()
    assert counted == "1 model"
    columns = ["MODEL", "TARGET", "VERSION", "MADE (UTC)", "PRECISION", "ENGINE", "LAST RUN (UTC)"]
    assert head.split() == " ".join(columns).split()
    assert finished.document["version"] == 1
    assert tiny.split()[:3] == ["tiny", "local-cpu", "1"]
    assert "fp32" in tiny
    assert "onnxruntime" in tiny
    assert " published 20" in tiny
    assert hint == "what is stale is known of specs: plansmith status PLACE..."
    (one,) = run("status", "--json").document["models"]
    assert (one["state"], one["versions"], one["newest"]["version"]) == ("unknown", [1], 1)
    assert one["newest"]["is_shown"]
    assert one["newest"]["source"]["address"].startswith("hf:")
    assert one["last_run"]["outcome"] == "published"


@pytest.mark.slow
def test_a_history_that_cannot_be_read_is_said_and_the_models_stand(finished: Compiled, run: CommandLine) -> None:
    damaged = finished.folder / "artifacts" / "history" / "999999.json"
    damaged.mkdir()
    try:
        answer = run("status")
        (one,) = run("status", "--json").document["models"]
    finally:
        damaged.rmdir()
    assert answer.status == 0
    assert answer.stderr.startswith("plansmith: last runs are unknown: [Errno 21] Is a directory")
    assert " unknown" in answer.stdout
    assert (one["versions"], one["last_run"]) == ([1], None)
    assert one["runs_unknown"].startswith("[Errno 21]")


@pytest.mark.slow
def test_specs_tell_what_is_stale_and_why_and_how_the_last_run_failed(
    finished: Compiled, run: CommandLine, models: Path
) -> None:
    specs = finished.folder / "specs"
    specs.mkdir()
    write_spec(specs / "a.yaml", models / "bert", "tiny")
    write_spec(specs / "b.yaml", models / "lacking", "lacking")
    assert run("fleet", "run", "specs", "--quiet").status == 3
    before = listing(run.folder, folder_times=True)
    answer = run("status", "specs")
    assert listing(run.folder, folder_times=True) == before
    assert (answer.status, answer.stderr) == (0, "")
    counted, _, tiny, lacking, why = answer.stdout.splitlines()
    assert counted == "2 models: 1 stale, 1 fresh"
    assert tiny.endswith("nothing changed")
    assert " fresh " in tiny
    assert lacking.split()[:3] == ["lacking", "local-cpu", "none"]
    assert lacking.endswith("there is no version of it yet")
    assert " stale  failed in " in lacking
    assert why.startswith("      SourceError (exit code 3): ")
    found = run("status", "specs", "--model", "lacking", "--json").document["models"]
    assert [(one["model"], one["state"], one["newest"]) for one in found] == [("lacking", "stale", None)]
    assert found[0]["last_run"]["exit_code"] == 3
    assert found[0]["last_run"]["step"]


@pytest.mark.slow
def test_a_model_without_a_spec_among_others_is_listed_after_them(
    finished: Compiled, run: CommandLine, models: Path
) -> None:
    write_spec(finished.folder / "b.yaml", models / "three-labels", "three")
    found = run("status", "b.yaml", "--json").document["models"]
    assert [(one["model"], one["state"], one["why"]) for one in found] == [
        ("three", "stale", "there is no version of it yet"),
        ("tiny", "unknown", "no spec of it was looked at"),
    ]


@pytest.mark.slow
def test_a_damaged_manifest_and_a_spec_that_cannot_be_read_hide_nothing_else(
    finished: Compiled, run: CommandLine
) -> None:
    (finished.release / "manifest.json").write_text("{}")
    (finished.folder / "wrong.yaml").write_text("sauce: hot\n")
    answer = run("status", "wrong.yaml")
    assert answer.status == 2, answer
    assert answer.stderr.startswith("plansmith: wrong.yaml: ")
    assert "; next: mend these and run it again" in answer.stderr
    assert "; next: " not in answer.stdout
    counted, _, wrong, tiny = answer.stdout.splitlines()
    assert counted == "2 models: 1 refused"
    assert wrong.split()[0] == "wrong.yaml"
    assert " refused " in wrong
    assert tiny.split()[:5] == ["tiny", "local-cpu", "1", "unknown", "unknown"]


def test_nothing_there_is_said_in_a_line_with_what_to_type(run: CommandLine) -> None:
    answer = run("status")
    assert (answer.status, answer.stdout) == (0, "0 models\n")
    assert answer.stderr.startswith("plansmith: there is no model in artifacts/repository; next: plansmith compile ")
    assert "plansmith status PLACE..." in answer.stderr


def test_the_first_spec_that_is_refused_gives_the_exit_code(run: CommandLine) -> None:
    assert "where specs are refused, that of the first of them" in " ".join(run("status", "--help").stdout.split())
    missing = run("status", "nowhere")
    assert (missing.status, missing.stdout.splitlines()[0]) == (2, "1 model: 1 refused")
    assert "plansmith: nowhere: there is no spec and no folder" in missing.stderr
    assert "name a .yaml file" in missing.stderr
    (run.folder / "a.yaml").write_text("source: onnx:gone.onnx\ntarget: a-toaster\n")
    (run.folder / "b.yaml").write_text("sauce: hot\n")
    for words in (("status",), ("fleet", "plan")):
        answer = run(*words, ".", "--json")
        assert (answer.status, [one["state"] for one in answer.document["models"]]) == (6, ["refused"] * 2), words


@pytest.mark.slow
def test_a_model_that_is_not_there_is_refused_with_those_that_are(finished: Compiled, run: CommandLine) -> None:
    assert finished.document["name"] == "tiny"
    assert run("status", "--model", "tiny").status == 0
    words = ("there is no model 'gamma' in artifacts/repository", "there are tiny", "plansmith status PLACE...")
    check_refusal(run("status", "--model", "gamma", "--model", "tiny", "--json"), 2, words)
    elsewhere = run("status", "--model", "gamma", "--repository", "elsewhere", "--json")
    check_refusal(elsewhere, 2, ("there is no model 'gamma' in elsewhere", "there is none"))


@pytest.mark.slow
@pytest.mark.parametrize("words", [("status", "spec.yaml"), ("fleet", "plan", "spec.yaml")], ids=" ".join)
def test_a_look_imports_nothing_heavy(words: tuple[str, ...], finished: Compiled, models: Path) -> None:
    write_spec(finished.folder / "spec.yaml", models / "bert", "tiny")
    done = subprocess.run(
        [sys.executable, "-m", "plansmith", *words],
        cwd=finished.folder,
        env={**environment(), "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert " fresh" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "plansmith.fleet.plan" in imported
    assert not (heavy_libraries() | {"numpy"}) & {name.partition(".")[0] for name in imported}


@pytest.mark.slow
def test_a_repository_that_is_damaged_hides_no_other_and_says_why(finished: Compiled, run: CommandLine) -> None:
    repository = finished.release.parents[2]
    (repository / "views").rename(repository / "no-views")
    (repository / "views").write_text("no folder")
    other = finished.folder / "artifacts" / "other.plansmith"
    other.mkdir()
    (other / "repository.json").write_text("{")
    answer = run("status", "--repository", "artifacts")
    assert answer.status == 0, answer
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("2 models: ")
    said = "artifacts/other.plansmith/repository.json, which names the repository's target, is damaged"
    assert f" {said}" in answer.stdout
    assert any(line.split()[:2] == ["tiny", "local-cpu"] for line in lines)
