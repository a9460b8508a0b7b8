"""`plansmith init` writes a spec that a person can read and that compiles to what its source alone does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plansmith.config.loader import read_specs

from ...support.cli.command import CommandLine, check_refusal, listing
from ..conftest import Compiled


@pytest.mark.slow
def test_directory_spec_compiles_unchanged(finished: Compiled, run: CommandLine, models: Path) -> None:
    """The spec of a directory compiles unchanged to the release of its source."""
    shutil.copytree(models / "bert", run.folder / "models" / "bert")
    (run.folder / "specs").mkdir()
    answer = run("init", "hf:models/bert", "--name", "tiny", "--output", "specs/tiny.yaml", "--json", "--quiet")
    assert (answer.status, answer.stderr) == (0, "")
    assert (answer.document["name"], answer.document["output"]) == ("tiny", "specs/tiny.yaml")
    assert answer.document["signature"]["outputs"] == ["logits"]
    assert not answer.document["source"]["random_weights"]
    assert [path.name for path in (run.folder / "specs").iterdir()] == ["tiny.yaml"]
    text = (run.folder / "specs" / "tiny.yaml").read_text()
    assert answer.document["spec"] == text
    assert "source: hf:../models/bert\n" in text
    assert '  input_ids: "1x1:8x64:32x64"\n' in text
    assert "sequence at most 64 in this model" in text
    assert "#   logits:\n" in text
    assert "# artifacts: ../artifacts\n" in text
    assert "# pipeline: {}\n" in text
    (run.folder / "elsewhere").mkdir()
    elsewhere = CommandLine(run.folder / "elsewhere")
    plan = elsewhere("compile", "../specs/tiny.yaml", "--no-check-served", "--dry-run", "--json").document["plan"]
    assert plan["export"] == "would run"
    report = run("compile", "specs/tiny.yaml", "--no-check-served", "--json").document
    assert (report["version"], report["unchanged"]) == (1, True)
    assert [path.name for path in finished.release.parent.iterdir()] == ["1"]


def test_random_timm_model_drawn_once(run: CommandLine) -> None:
    """A timm model with random weights is drawn once and found by the compile."""
    answer = run("init", "timm:test_resnet", "--random-weights", "--artifacts", "made")
    assert answer.status == 0, answer
    path = run.folder / "resnet.yaml"
    path.write_text(answer.stdout)
    spec = read_specs(path, {}).models[0].spec
    assert (spec.name, spec.random_weights, spec.artifacts) == ("test_resnet", True, str(run.folder / "made"))
    assert list(spec.shapes) == ["pixel_values"]
    assert spec.shapes["pixel_values"].min[:2] == (1, 3)
    assert run("compile", path, "--no-check-served", "--dry-run", "--json").document["plan"]["fetch"] == "cached"


def test_existing_file_kept_unless_forced(run: CommandLine, models: Path) -> None:
    """A file that is there is kept unless it is forced."""
    arguments = ("init", f"hf:{models / 'bert'}", "--output", "mine.yaml")
    (run.folder / "mine.yaml").write_text("mine")
    before = listing(run.folder, folder_times=True)
    check_refusal(
        run(*arguments, "--json"), 2, ("mine.yaml is there already", "choose another --output, or pass --force")
    )
    assert listing(run.folder, folder_times=True) == before
    (run.folder / "mine.yaml").rename(run.folder / "kept")
    (run.folder / "mine.yaml").hardlink_to(run.folder / "kept")
    answer = run(*arguments, "--force")
    assert answer.status == 0, answer
    assert [line.split()[0] for line in answer.stderr.splitlines()] == ["fetch", "describe"]
    assert answer.stdout.startswith("bert: spec written to mine.yaml\nNext: ")
    assert answer.stdout.endswith("compile mine.yaml\n")
    assert (run.folder / "kept").read_text() == "mine"
    assert read_specs(run.folder / "mine.yaml", {}).models[0].name == "bert"
    assert sorted(path.name for path in run.folder.iterdir()) == ["artifacts", "kept", "mine.yaml"]


def test_impossible_spec_writes_nothing(run: CommandLine, models: Path) -> None:
    """What cannot become a spec is refused and nothing is written."""
    check_refusal(
        run("init", "hf:./no", "--output", "a.yaml", "--json"), 3, ("there is no directory", "check the path")
    )
    check_refusal(run("init", "bert", "--json"), 2, ("cannot tell what 'bert' is", "write hf:<id or directory>"))
    check_refusal(run("init", str(models / "bert"), "--json"), 2, (f"write hf:{models / 'bert'}",))
    arguments = ("init", f"hf:{models / 'bert'}", "--json")
    check_refusal(run(*arguments, "--name", "a/b"), 2, ("'name'", "at most 128"))
    check_refusal(run(*arguments, "--output", "no/a.yaml"), 2, ("there is no folder no", "--output"))
    check_refusal(run(*arguments, "--output", "a.json"), 2, ("a.json is no name for a spec", "ends in .yaml"))
    assert not list(run.folder.iterdir())
    lacking = run("init", f"hf:{models / 'lacking'}", "--output", "a.yaml", "--json")
    check_refusal(lacking, 3, ("lacking · describe", "lacks 16 weights", "Log: "))
    assert [path.name for path in run.folder.iterdir()] == ["artifacts"]
