"""What `plansmith compile` promises to scripts and to people."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from plansmith.cli.compile import outcomes
from plansmith.records.release import Manifest, PublishedVersion
from plansmith.steps import compilation

from ...support.cli.command import CommandLine, check_refusal, listing
from ..conftest import Compiled

STEPS = ["fetch", "export", "lower", "compile", "validate", "package", "publish"]
RANDOM_IDS = "plansmith: the checks use random token ids (the model has no tokenizer); real inputs would tell more"
METRICS = {"max_absolute", "max_relative", "quantile_absolute", "quantile_relative", "min_cosine"}
HEAVY = {"torch", "prefect", "onnxruntime", "boto3", "transformers", "timm", "onnx", "tritonclient"}


@pytest.mark.slow
def test_one_json_document_says_everything_about_a_compile(compiled: Compiled) -> None:
    found = compiled.document
    assert (found["name"], found["version"], found["verdict"]) == ("tiny", 1, "passed")
    assert (found["engine"], found["precision"], found["served"]) == ("onnxruntime", "fp32", None)
    assert found["repository"] == str(compiled.folder / "artifacts" / "repository")
    assert found["model_path"] == str(compiled.release)
    assert json.loads(Path(found["manifest"]).read_text())["version"] == 1
    assert [step["name"] for step in found["steps"]] == STEPS
    assert not [step for step in found["steps"] if step["cached"] or step["seconds"] < 0]
    assert {output: set(worst) for output, worst in found["validation"].items()} == {"logits": METRICS}


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [True, False])
def test_random_weights_are_said_in_the_summary_and_others_are_not(
    *, drawn: bool, compiled: Compiled, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = Manifest.model_validate_json((compiled.release / "manifest.json").read_text())
    source = manifest.source.model_copy(update={"random_weights": drawn})
    stands: dict[str, Any] = {
        "repository": str(compiled.folder),
        "release": str(compiled.release),
        "manifest_digest": "",
    }
    published = PublishedVersion(name="tiny", version=1, published="", unchanged=False, **stands)
    outcomes.Compiled(published, manifest.model_copy(update={"source": source}), []).show()
    assert ("  the weights are random: its answers mean nothing\n" in capsys.readouterr().out) == drawn


@pytest.mark.slow
def test_timm_name_compiles_with_random_weights(run_alone: CommandLine) -> None:
    """A name that timm knows needs no hub where the weights are random, and the release says that they are."""
    words = ("--random-weights", "--no-check-served", "--shapes", "pixel_values=1x3x160x160:2x3x160x160:2x3x160x160")
    made = run_alone.document("compile", "timm:test_resnet", *words)
    assert (made["name"], made["version"], made["verdict"]) == ("test_resnet", 1, "passed")
    source = json.loads(Path(made["manifest"]).read_text())["source"]
    assert (source["scheme"], source["random_weights"]) == ("timm", True)


@pytest.mark.slow
def test_triton_finds_the_configuration_and_the_version_in_the_repository(compiled: Compiled) -> None:
    view = compiled.folder / "artifacts" / "repository" / "tiny"
    assert view.is_symlink()
    assert sorted(path.name for path in view.rglob("*")) == ["1", "config.pbtxt", "model.onnx"]


@pytest.mark.slow
def test_a_second_run_finds_every_step_in_the_cache_and_keeps_the_version(finished: Compiled) -> None:
    found = CommandLine(finished.folder)(*finished.command, "--json").document
    assert (found["version"], found["unchanged"]) == (1, True)
    assert [(step["name"], step["cached"]) for step in found["steps"]] == [(name, True) for name in STEPS]
    assert sorted(path.name for path in finished.release.parent.iterdir()) == ["1"]


@pytest.mark.slow
def test_an_unchanged_compile_imports_nothing_heavy_and_starts_no_worker(
    finished: Compiled, run_alone: CommandLine
) -> None:
    logs = listing(finished.folder / "artifacts" / "logs")
    answer = run_alone(*finished.command, PYTHONPROFILEIMPORTTIME="1")
    assert "unchanged, still version 1" in answer.stdout
    imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if "import time:" in line}
    assert "plansmith.steps.compilation" in imported
    assert not HEAVY & {name.partition(".")[0] for name in imported}
    assert listing(finished.folder / "artifacts" / "logs") == logs


@pytest.mark.slow
def test_force_does_every_step_again_and_publishes_the_next_version(finished: Compiled, run: CommandLine) -> None:
    found = run(*finished.command, "--force", "--json").document
    assert (found["version"], found["unchanged"]) == (2, False)
    assert not [step["name"] for step in found["steps"] if step["cached"] and step["name"] != "fetch"]
    view = finished.folder / "artifacts" / "repository" / "tiny"
    assert sorted(path.name for path in view.iterdir()) == ["1", "2", "config.pbtxt"]
    answer = run("validate", "tiny")
    assert answer.stdout.startswith(str(finished.release.with_name("2")))


def test_a_dry_run_of_a_new_model_says_what_it_would_do_and_does_nothing(run: CommandLine, models: Path) -> None:
    before = listing(run.folder, folder_times=True)
    words = ("compile", f"hf:{models / 'bert'}", "--no-check-served", "--dry-run")
    plan = run(*words, "--json").document["plan"]
    assert plan["check_served"] == "left out"
    assert {plan[step] for step in STEPS} == {"would run"}
    assert "bert: nothing was done" in run(*words).stdout
    assert listing(run.folder, folder_times=True) == before


def test_a_dry_run_refuses_a_gpu_that_is_not_here_and_says_what_only_the_model_tells(
    run: CommandLine, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "has_gpu", lambda: False)
    words = ("compile", f"hf:{models / 'bert'}", "--no-check-served", "--dry-run", "--json")
    check_refusal(run(*words, "--device", "cuda"), 9, ("bert · export: device: cuda, and there is no NVIDIA GPU here",))
    planned = run(*words, "--shapes", "nothing=1x8:2x8:4x8")
    assert planned.document["plan"]["export"] == "would run"
    assert "whether shapes fit the model is known once it is loaded" in planned.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "would_run"),
    [((), []), (("--force",), STEPS[1:]), (("--name", "other"), ["package", "publish"])],
    ids=["same", "forced", "renamed"],
)
def test_a_dry_run_says_what_is_cached(
    options: tuple[str, ...], would_run: list[str], finished: Compiled, run: CommandLine
) -> None:
    before = listing(finished.folder, folder_times=True)
    plan = run(*finished.command, *options, "--dry-run", "--json").document["plan"]
    assert [step for step in STEPS if plan[step] == "would run"] == would_run
    assert listing(finished.folder, folder_times=True) == before


@pytest.mark.slow
def test_a_compile_prints_a_line_a_step_and_where_things_are(finished: Compiled, run: CommandLine) -> None:
    answer = run(*finished.command)
    lines = answer.stderr.splitlines()
    assert [line.split() for line in lines if line != RANDOM_IDS] == [[step, "cached"] for step in STEPS]
    assert lines.count(RANDOM_IDS) == 1
    assert "repository  artifacts/repository" in answer.stdout
    assert re.search(r"^Next: .*plansmith serve tiny --repository artifacts/repository$", answer.stdout, re.MULTILINE)


@pytest.mark.slow
def test_quiet_prints_no_progress(finished: Compiled, run: CommandLine) -> None:
    answer = run(*finished.command, "--quiet")
    assert (answer.status, answer.stderr) == (0, f"{RANDOM_IDS}\n")
    assert "unchanged, still version 1" in answer.stdout


@pytest.mark.slow
def test_a_spec_holds_all_options_and_the_command_line_wins(finished: Compiled, models: Path) -> None:
    """Folders in a spec are relative to it, whatever the working directory is."""
    spec = {
        "source": "hf:../bert",
        "name": "from-the-spec",
        "artifacts": "../artifacts",
        "repository": "../models",
        "check_served": False,
        "shapes": {"input_ids": "1x8:2x8:4x8"},
        "triton": {"instance_group": [{"count": 2}]},
    }
    place = finished.folder / "specs"
    place.mkdir()
    shutil.copytree(models / "bert", finished.folder / "bert")
    (place / "tiny.yaml").write_text(yaml.safe_dump(spec))
    (finished.folder / "elsewhere").mkdir()
    elsewhere = CommandLine(finished.folder / "elsewhere")
    plan = elsewhere("compile", "../specs/tiny.yaml", "--dry-run", "--json").document
    assert (plan["name"], plan["plan"]["fetch"], plan["plan"]["export"]) == ("from-the-spec", "would run", "would run")
    del spec["shapes"]
    (place / "tiny.yaml").write_text(yaml.safe_dump(spec))
    found = elsewhere("compile", "../specs/tiny.yaml", "--name", "typed", "--json").document
    assert found["name"] == "typed"
    assert Path(found["repository"]) == finished.folder / "models"
    assert [step["name"] for step in found["steps"] if step["cached"]] == STEPS[1:5]
    stated: dict[str, Any] = json.loads(Path(found["manifest"]).read_text())["spec"]
    assert (stated["name"], stated["triton"]["instance_group"][0]["count"]) == ("typed", 2)
    assert "count: 2" in (finished.folder / "models" / "typed" / "config.pbtxt").read_text()
    assert not list((finished.folder / "elsewhere").iterdir())
    assert sorted(path.name for path in place.iterdir()) == ["tiny.yaml"]


@pytest.mark.slow
def test_the_spec_in_a_release_describes_the_same_compile_from_anywhere(compiled: Compiled, run: CommandLine) -> None:
    found = run("compile", compiled.release / "spec.yaml", "--dry-run", "--json").document
    assert found["name"] == "tiny"
    assert found["plan"]["publish"] == "nothing: the newest version is this one"
    assert {found["plan"][step] for step in STEPS[:-1]} == {"cached"}


@pytest.mark.slow
def test_a_check_that_came_later_is_published_as_a_version_of_the_same_files(
    finished: Compiled, run: CommandLine
) -> None:
    found = run(*finished.command, "--check-served", "--json").document
    assert (found["version"], found["unchanged"]) == (2, False)
    assert json.loads(Path(found["manifest"]).read_text())["served"]["requests"] == len(found["served"]["checks"])
    assert (Path(found["repository"]) / "tiny" / "2" / "model.onnx").is_file()
    again = run(*finished.command, "--no-check-served", "--json").document
    assert (again["version"], again["unchanged"]) == (2, True)


@pytest.mark.slow
def test_another_interface_is_refused_unless_it_is_allowed(finished: Compiled, run: CommandLine, models: Path) -> None:
    words = ("compile", f"hf:{models / 'three-labels'}", "--name", "tiny", "--no-check-served", "--json")
    view = finished.folder / "artifacts" / "repository" / "tiny"
    before = listing(view.resolve())
    refused = run(*words)
    difference = "logits was float32['batch', 2], is float32['batch', 3]"
    check_refusal(refused, 7, ("tiny · publish", "version 1", difference, "--allow-interface-change"))
    assert listing(view.resolve()) == before
    assert sorted(path.name for path in finished.release.parent.iterdir()) == ["1"]
    found = run(*words, "--allow-interface-change").document
    assert found["version"] == 2
    assert sorted(path.name for path in view.iterdir()) == ["2", "config.pbtxt"]
    assert sorted(path.name for path in finished.release.parent.iterdir()) == ["1", "2"]
