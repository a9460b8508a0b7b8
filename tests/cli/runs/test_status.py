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
def test_models_shown_with_versions(finished: Compiled, run: CommandLine) -> None:
    """Models stand with their versions and last runs."""
    answer = run("status")
    assert (answer.status, answer.stderr) == (0, "")
    counted, head, tiny, hint = answer.stdout.splitlines()
    assert counted == "1 model"
    columns = ["MODEL", "TARGET", "VERSION", "COMPILED (UTC)", "PRECISION", "ENGINE", "LAST RUN (UTC)"]
    assert head.split() == " ".join(columns).split()
    assert finished.document["version"] == 1
    assert tiny.split()[:3] == ["tiny", "local-cpu", "1"]
    assert "fp32" in tiny
    assert "onnxruntime" in tiny
    assert " published 20" in tiny
    assert hint == "what is stale is known of specs: plansmith status PLACE..."
    (model,) = run("status", "--json").document["models"]
    assert (model["state"], model["versions"], model["newest"]["version"]) == ("unknown", [1], 1)
    assert model["newest"]["is_shown"]
    assert model["newest"]["source"]["address"].startswith("hf:")
    assert model["last_run"]["outcome"] == "published"


@pytest.mark.slow
def test_unreadable_history_is_said(finished: Compiled, run: CommandLine) -> None:
    """A history that cannot be read is said, and the models stand."""
    damaged = finished.folder / "artifacts" / "history" / "999999.json"
    damaged.mkdir()
    try:
        answer = run("status")
        (model,) = run("status", "--json").document["models"]
    finally:
        damaged.rmdir()
    assert answer.status == 0
    assert answer.stderr.startswith("plansmith: last runs are unknown: [Errno 21] Is a directory")
    assert " unknown" in answer.stdout
    assert (model["versions"], model["last_run"]) == ([1], None)
    assert model["runs_unknown"].startswith("[Errno 21]")


@pytest.mark.slow
def test_specs_tell_staleness_and_failure(finished: Compiled, run: CommandLine, models: Path) -> None:
    """Specs tell what is stale and why and how the last run failed."""
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
    rows = run("status", "specs", "--model", "lacking", "--json").document["models"]
    assert [(row["model"], row["state"], row["newest"]) for row in rows] == [("lacking", "stale", None)]
    assert rows[0]["last_run"]["exit_code"] == 3
    assert rows[0]["last_run"]["step"]


@pytest.mark.slow
def test_model_without_spec_listed_last(finished: Compiled, run: CommandLine, models: Path) -> None:
    """A model without a spec among others is listed after them."""
    write_spec(finished.folder / "b.yaml", models / "three-labels", "three")
    rows = run("status", "b.yaml", "--json").document["models"]
    assert [(row["model"], row["state"], row["why"]) for row in rows] == [
        ("three", "stale", "there is no version of it yet"),
        ("tiny", "unknown", "no spec of it was looked at"),
    ]


@pytest.mark.slow
def test_damaged_files_hide_nothing(finished: Compiled, run: CommandLine) -> None:
    """A damaged manifest and a spec that cannot be read hide nothing else."""
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


def test_empty_status_is_one_line(run: CommandLine) -> None:
    """Where there is nothing, one line says so with what to type."""
    answer = run("status")
    assert (answer.status, answer.stdout) == (0, "0 models\n")
    assert answer.stderr.startswith("plansmith: there is no model in artifacts/repository; next: plansmith compile ")
    assert "plansmith status PLACE..." in answer.stderr


def test_first_refused_spec_gives_code(run: CommandLine) -> None:
    """The first spec that is refused gives the exit code."""
    assert "where specs are refused, that of the first of them" in " ".join(run("status", "--help").stdout.split())
    missing = run("status", "nowhere")
    assert (missing.status, missing.stdout.splitlines()[0]) == (2, "1 model: 1 refused")
    assert "plansmith: nowhere: there is no spec and no folder" in missing.stderr
    assert "name a .yaml file" in missing.stderr
    (run.folder / "a.yaml").write_text("source: onnx:gone.onnx\ntarget: a-toaster\n")
    (run.folder / "b.yaml").write_text("sauce: hot\n")
    for command in (("status",), ("fleet", "plan")):
        answer = run(*command, ".", "--json")
        assert (answer.status, [model["state"] for model in answer.document["models"]]) == (6, ["refused"] * 2), command


@pytest.mark.slow
def test_missing_model_refused(finished: Compiled, run: CommandLine) -> None:
    """A model that is not there is refused with those that are."""
    assert finished.document["name"] == "tiny"
    assert run("status", "--model", "tiny").status == 0
    fragments = ("artifacts/repository has no model 'gamma'", "choose from: tiny", "plansmith status PLACE...")
    check_refusal(run("status", "--model", "gamma", "--model", "tiny", "--json"), 2, fragments)
    elsewhere = run("status", "--model", "gamma", "--repository", "elsewhere", "--json")
    check_refusal(elsewhere, 2, ("elsewhere has no model 'gamma'", "compile a model into it first"))


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
def test_damaged_repository_hides_no_other(finished: Compiled, run: CommandLine) -> None:
    """A repository that is damaged hides no other and says why."""
    repository = finished.release.parents[2]
    (repository / "views").rename(repository / "no-views")
    (repository / "views").write_text("no folder")
    damaged = finished.folder / "artifacts" / "other.plansmith"
    damaged.mkdir()
    (damaged / "repository.json").write_text("{")
    answer = run("status", "--repository", "artifacts")
    assert answer.status == 0, answer
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("2 models: ")
    message = "artifacts/other.plansmith/repository.json, which names the repository's target, is damaged"
    assert f" {message}" in answer.stdout
    assert any(line.split()[:2] == ["tiny", "local-cpu"] for line in lines)
