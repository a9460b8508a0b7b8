"""Several models of one spec file from the command line, and the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.config.schema import spec_schema

from ...support.cli.command import CommandLine, check_refusal, listing
from ..conftest import Compiled

_GONE = {"source": "hf:../not/there", "name": "gone"}


def _write(folder: Path, models: list[dict[str, Any]], **defaults: Any) -> Path:
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump({"defaults": {"check_served": False, **defaults}, "models": models}))
    return path


def _tiny(finished: Compiled, **values: Any) -> dict[str, Any]:
    return {"source": finished.command[1], "name": "tiny", **values}


@pytest.mark.slow
def test_models_are_compiled_in_turn_and_a_failure_stops_none_of_the_others(
    finished: Compiled, run: CommandLine
) -> None:
    """The exit code is that of the first failure: 3 for a source, not 6 for a target."""
    toaster = _tiny(finished, name="toaster", target="a-toaster")
    _write(run.folder, [_GONE, _tiny(finished), toaster, _tiny(finished, name="other")])
    answer = run("compile", "models.yaml")
    assert answer.status == 3, answer
    lines = answer.stderr.splitlines()
    assert [line for line in lines if line.endswith("of 4)")] == [
        "gone (1 of 4)",
        "tiny (2 of 4)",
        "toaster (3 of 4)",
        "other (4 of 4)",
    ]
    assert lines[1].startswith("plansmith: gone · fetch: there is no directory ")
    assert "plansmith: toaster: there is no target 'a-toaster'" in lines
    assert "other published, version 1" in answer.stdout
    assert answer.stdout.splitlines()[-5:] == [
        "4 model(s): 2 failed, 1 unchanged, 1 published",
        "  gone     failed at fetch, exit code 3",
        "  tiny     unchanged, version 1",
        "  toaster  failed, exit code 6",
        "  other    published, version 1",
    ]
    assert (run.folder / "artifacts" / "repository" / "other").is_symlink()


@pytest.mark.slow
def test_one_json_document_holds_all_models(finished: Compiled, run: CommandLine) -> None:
    _write(run.folder, [_tiny(finished), _GONE])
    answer = run("compile", "models.yaml", "--json", "--quiet")
    assert answer.status == 3
    compiled, failed = answer.document["models"]
    assert compiled.keys() == finished.document.keys()
    assert (compiled["name"], compiled["unchanged"]) == ("tiny", True)
    assert (failed["name"], failed["error"], failed["exit_code"]) == ("gone", "SourceError", 3)
    assert failed["message"] in answer.stderr
    assert "of 2)" not in answer.stderr


@pytest.mark.slow
def test_one_picked_model_keeps_the_form_of_its_file(finished: Compiled, run: CommandLine) -> None:
    _write(
        run.folder, [_tiny(finished), _GONE, _tiny(finished, name="third")], triton={"instance_group": [{"count": 2}]}
    )
    words = ("compile", "models.yaml", "--model", "third", "--name", "typed", "--json")
    answer = run(*words)
    assert answer.status == 0, answer
    assert [model["name"] for model in answer.document["models"]] == ["typed"]
    assert "count: 2" in (run.folder / "artifacts" / "repository" / "typed" / "config.pbtxt").read_text()


@pytest.mark.slow
def test_a_dry_run_plans_every_model_and_does_nothing(finished: Compiled, run: CommandLine) -> None:
    _write(run.folder, [_tiny(finished), _tiny(finished, name="new")])
    before = listing(run.folder, folder_times=True)
    found = run("compile", "models.yaml", "--dry-run", "--json").document["models"]
    assert [(model["name"], model["plan"]["package"]) for model in found] == [("tiny", "cached"), ("new", "would run")]
    answer = run("compile", "models.yaml", "--dry-run")
    assert (answer.status, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[-3:] == [
        "2 model(s): 1 unchanged, 1 to do",
        "  tiny  nothing to do",
        "  new   would run from package on",
    ]
    assert listing(run.folder, folder_times=True) == before


def test_models_are_picked_of_spec_files_only(run: CommandLine) -> None:
    answer = run("compile", "hf:bert", "--model", "bert", "--json")
    check_refusal(answer, 2, ("--model picks models of a spec", "name a .yaml file"))


@pytest.mark.slow
def test_wrong_models_are_refused_before_any_is_compiled(finished: Compiled, run: CommandLine) -> None:
    _write(run.folder, [_tiny(finished, name="new"), _tiny(finished, name="$NAME")])
    before = listing(run.folder, folder_times=True)
    answer = run("compile", "models.yaml", "--json")
    check_refusal(answer, 2, ("models.yaml:", "'name' holds the environment variable $NAME", '--name "$NAME"'))
    assert listing(run.folder, folder_times=True) == before


@pytest.mark.slow
def test_the_schema_is_printed_or_written_for_an_editor(run: CommandLine) -> None:
    assert run("schema").document == spec_schema()
    (run.folder / "schema.json").write_text("an older one")
    answer = run("schema", "--output", "schema.json")
    assert (answer.status, answer.stdout) == (0, "")
    assert json.loads((run.folder / "schema.json").read_text()) == spec_schema()
    assert [path.name for path in run.folder.iterdir()] == ["schema.json"]


def test_a_schema_that_cannot_be_written_is_said(run: CommandLine) -> None:
    answer = run("schema", "--output", "no/where.json")
    assert answer.status == 2
    assert (
        answer.message
        == "plansmith: cannot write no/where.json: No such file or directory\nNext: choose another --output\n"
    )
