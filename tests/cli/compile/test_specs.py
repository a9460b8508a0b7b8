"""Several models of one spec file from the command line, and the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.config.loader import spec_schema

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
def test_failed_model_stops_no_others(finished: Compiled, run: CommandLine) -> None:
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
        "4 models: 2 failed, 1 unchanged, 1 published",
        "  gone     failed at fetch, exit code 3",
        "  tiny     unchanged, version 1",
        "  toaster  failed, exit code 6",
        "  other    published, version 1",
    ]
    assert (run.folder / "artifacts" / "repository" / "other").is_symlink()


@pytest.mark.slow
def test_json_holds_all_models(finished: Compiled, run: CommandLine) -> None:
    """One JSON document holds all models."""
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
def test_picked_model_keeps_form(finished: Compiled, run: CommandLine) -> None:
    """One picked model keeps the form of its file."""
    _write(
        run.folder, [_tiny(finished), _GONE, _tiny(finished, name="third")], triton={"instance_group": [{"count": 2}]}
    )
    arguments = ("compile", "models.yaml", "--model", "third", "--name", "typed", "--json")
    answer = run(*arguments)
    assert answer.status == 0, answer
    assert [model["name"] for model in answer.document["models"]] == ["typed"]
    assert "count: 2" in (run.folder / "artifacts" / "repository" / "typed" / "config.pbtxt").read_text()


@pytest.mark.slow
def test_dry_run_plans_every_model(finished: Compiled, run: CommandLine) -> None:
    """A dry run plans every model and does nothing."""
    _write(run.folder, [_tiny(finished), _tiny(finished, name="new")])
    before = listing(run.folder, folder_times=True)
    entries = run("compile", "models.yaml", "--dry-run", "--json").document["models"]
    assert [(model["name"], model["plan"]["package"]) for model in entries] == [
        ("tiny", "cached"),
        ("new", "would run"),
    ]
    answer = run("compile", "models.yaml", "--dry-run")
    assert (answer.status, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[-3:] == [
        "2 models: 1 unchanged, 1 to do",
        "  tiny  nothing to do",
        "  new   would run from package on",
    ]
    assert listing(run.folder, folder_times=True) == before


def test_models_picked_from_specs_only(run: CommandLine) -> None:
    """Models are picked from spec files only."""
    answer = run("compile", "hf:bert", "--model", "bert", "--json")
    check_refusal(answer, 2, ("--model picks models of a spec", "name a .yaml file"))


@pytest.mark.slow
def test_wrong_models_refused_early(finished: Compiled, run: CommandLine) -> None:
    """Wrong models are refused before any is compiled."""
    _write(run.folder, [_tiny(finished, name="new"), _tiny(finished, name="$NAME")])
    before = listing(run.folder, folder_times=True)
    answer = run("compile", "models.yaml", "--json")
    check_refusal(answer, 2, ("models.yaml:", "'name' holds the environment variable $NAME", '--name "$NAME"'))
    assert listing(run.folder, folder_times=True) == before


@pytest.mark.slow
def test_schema_printed_or_written(run: CommandLine) -> None:
    """The schema is printed or written for an editor."""
    assert run("schema").document == spec_schema()
    (run.folder / "schema.json").write_text("an older one")
    answer = run("schema", "--output", "schema.json")
    assert (answer.status, answer.stdout) == (0, "")
    assert json.loads((run.folder / "schema.json").read_text()) == spec_schema()
    assert [path.name for path in run.folder.iterdir()] == ["schema.json"]


def test_unwritable_schema_is_said(run: CommandLine) -> None:
    """A schema that cannot be written is said."""
    answer = run("schema", "--output", "no/where.json")
    assert answer.status == 2
    assert (
        answer.message
        == "plansmith: cannot write no/where.json: No such file or directory\nNext: choose another --output\n"
    )
