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

from ...support.cli.command import CommandLine, check_refusal, listing
from ..conftest import Compiled

STEPS = ["fetch", "export", "lower", "compile", "validate", "package", "publish"]
RANDOM_IDS = "plansmith: the checks use random token ids (the model has no tokenizer); real inputs would tell more"
METRICS = {"max_absolute", "max_relative", "quantile_absolute", "quantile_relative", "min_cosine"}
HEAVY = {"torch", "prefect", "onnxruntime", "boto3", "transformers", "timm", "onnx", "tritonclient"}
LATER = tuple(
    f"plansmith.{place}"
    for place in (
        *("attestations.bom", "compilers.precision", "compilers.trt", "data.reader", "pipelines", "report.render"),
        *("signing", "sources.dataset", "sources.hub", "sources.mlflow", "sources.s3", "steps.tensorrt"),
        *("steps.worker", "stores", "system.aws", "triton.client", "triton.server"),
    )
)
"""What only builds, checks on a Triton, or publishes to a store."""


@pytest.mark.slow
def test_compile_json_is_complete(compiled: Compiled) -> None:
    """One JSON document says everything about a compile."""
    report = compiled.document
    assert (report["name"], report["version"], report["verdict"]) == ("tiny", 1, "passed")
    assert (report["engine"], report["precision"], report["served"]) == ("onnxruntime", "fp32", None)
    assert report["repository"] == str(compiled.folder / "artifacts" / "repository")
    assert report["model_path"] == str(compiled.release)
    assert json.loads(Path(report["manifest"]).read_text())["version"] == 1
    assert [step["name"] for step in report["steps"]] == STEPS
    assert not [step for step in report["steps"] if step["cached"] or step["seconds"] < 0]
    assert {output: set(worst) for output, worst in report["validation"].items()} == {"logits": METRICS}


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [True, False])
def test_random_weights_said_in_summary(*, drawn: bool, compiled: Compiled, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary says that weights are random, and says nothing of other weights."""
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
def test_timm_name_compiles(run_alone: CommandLine) -> None:
    """A name that timm knows needs no hub where the weights are random, and the release says that they are."""
    arguments = (
        "--random-weights",
        "--no-check-served",
        "--shapes",
        "pixel_values=1x3x160x160:2x3x160x160:2x3x160x160",
    )
    report = run_alone.document("compile", "timm:test_resnet", *arguments)
    assert (report["name"], report["version"], report["verdict"]) == ("test_resnet", 1, "passed")
    source = json.loads(Path(report["manifest"]).read_text())["source"]
    assert (source["scheme"], source["random_weights"]) == ("timm", True)


@pytest.mark.slow
def test_triton_finds_repository_version(compiled: Compiled) -> None:
    """Triton finds the configuration and the version in the repository."""
    view = compiled.folder / "artifacts" / "repository" / "tiny"
    assert view.is_symlink()
    assert sorted(path.name for path in view.rglob("*")) == ["1", "config.pbtxt", "model.onnx"]


@pytest.mark.slow
def test_unchanged_compile_stays_light(finished: Compiled, run_alone: CommandLine) -> None:
    """An unchanged compile imports nothing heavy and starts no worker."""
    logs = listing(finished.folder / "artifacts" / "logs")
    answer = run_alone(*finished.command, PYTHONPROFILEIMPORTTIME="1")
    assert "unchanged, still version 1" in answer.stdout
    imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if "import time:" in line}
    assert "plansmith.steps.compilation" in imported
    assert not HEAVY & {name.partition(".")[0] for name in imported}
    assert not [name for name in imported if name.startswith(LATER)]
    assert listing(finished.folder / "artifacts" / "logs") == logs


@pytest.mark.slow
def test_force_repeats_every_step(finished: Compiled, run: CommandLine) -> None:
    """With --force every step is done again and the next version is published."""
    report = run(*finished.command, "--force", "--json").document
    assert (report["version"], report["unchanged"]) == (2, False)
    assert not [step["name"] for step in report["steps"] if step["cached"] and step["name"] != "fetch"]
    view = finished.folder / "artifacts" / "repository" / "tiny"
    assert sorted(path.name for path in view.iterdir()) == ["1", "2", "config.pbtxt"]
    answer = run("validate", "tiny")
    assert answer.stdout.startswith(str(finished.release.with_name("2")))
    page = (finished.release.with_name("2") / "report.html").read_text(encoding="utf-8")
    assert "<title>Passed: tiny, version 2</title>" in page


def test_dry_run_of_new_model(run: CommandLine, models: Path) -> None:
    """A dry run of a new model says what it would do and does nothing."""
    before = listing(run.folder, folder_times=True)
    arguments = ("compile", f"hf:{models / 'bert'}", "--no-check-served", "--dry-run")
    plan = run(*arguments, "--json").document["plan"]
    assert plan["check_served"] == "left out"
    assert {plan[step] for step in STEPS} == {"would run"}
    assert "bert: nothing was done" in run(*arguments).stdout
    assert listing(run.folder, folder_times=True) == before


def test_dry_run_refuses_missing_gpu(run: CommandLine, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run refuses a GPU that is not here and says what only the model tells."""
    monkeypatch.setattr("plansmith.triton.server.installation.has_gpu", lambda: False)
    arguments = ("compile", f"hf:{models / 'bert'}", "--no-check-served", "--dry-run", "--json")
    check_refusal(
        run(*arguments, "--device", "cuda"), 9, ("bert · export: device: cuda, and there is no NVIDIA GPU here",)
    )
    planned = run(*arguments, "--shapes", "nothing=1x8:2x8:4x8")
    assert planned.document["plan"]["export"] == "would run"
    assert "whether shapes fit the model is known once it is loaded" in planned.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "would_run"),
    [((), []), (("--force",), STEPS[1:]), (("--name", "other"), ["package", "publish"])],
    ids=["same", "forced", "renamed"],
)
def test_dry_run_shows_cached_steps(
    options: tuple[str, ...], would_run: list[str], finished: Compiled, run: CommandLine
) -> None:
    """A dry run says what is cached."""
    before = listing(finished.folder, folder_times=True)
    plan = run(*finished.command, *options, "--dry-run", "--json").document["plan"]
    assert [step for step in STEPS if plan[step] == "would run"] == would_run
    assert listing(finished.folder, folder_times=True) == before


@pytest.mark.slow
def test_compile_prints_line_per_step(finished: Compiled, run: CommandLine) -> None:
    """A compile prints a line for each step and says where things are."""
    answer = run(*finished.command)
    lines = answer.stderr.splitlines()
    assert [line.split() for line in lines if line != RANDOM_IDS] == [[step, "cached"] for step in STEPS]
    assert lines.count(RANDOM_IDS) == 1
    assert "repository  artifacts/repository" in answer.stdout
    assert re.search(r"^Next: .*plansmith serve tiny$", answer.stdout, re.MULTILINE)


@pytest.mark.slow
def test_quiet_prints_no_progress(finished: Compiled, run: CommandLine) -> None:
    answer = run(*finished.command, "--quiet")
    assert (answer.status, answer.stderr) == (0, f"{RANDOM_IDS}\n")
    assert "unchanged, still version 1" in answer.stdout


@pytest.mark.slow
def test_command_line_overrides_spec(finished: Compiled, models: Path) -> None:
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
    report = elsewhere("compile", "../specs/tiny.yaml", "--name", "typed", "--json").document
    assert report["name"] == "typed"
    assert Path(report["repository"]) == finished.folder / "models"
    assert [step["name"] for step in report["steps"] if step["cached"]] == STEPS[1:5]
    stated: dict[str, Any] = json.loads(Path(report["manifest"]).read_text())["spec"]
    assert (stated["name"], stated["triton"]["instance_group"][0]["count"]) == ("typed", 2)
    assert "count: 2" in (finished.folder / "models" / "typed" / "config.pbtxt").read_text()
    assert not list((finished.folder / "elsewhere").iterdir())
    assert sorted(path.name for path in place.iterdir()) == ["tiny.yaml"]


@pytest.mark.slow
def test_released_spec_works_anywhere(compiled: Compiled, run: CommandLine) -> None:
    """The spec in a release describes the same compile from anywhere."""
    report = run("compile", compiled.release / "spec.yaml", "--dry-run", "--json").document
    assert report["name"] == "tiny"
    assert report["plan"]["publish"] == "nothing: the newest version is this one"
    assert {report["plan"][step] for step in STEPS[:-1]} == {"cached"}


@pytest.mark.slow
def test_later_check_makes_new_version(finished: Compiled, run: CommandLine) -> None:
    """A check that came later is published as a version of the same files."""
    report = run(*finished.command, "--check-served", "--json").document
    assert (report["version"], report["unchanged"]) == (2, False)
    assert json.loads(Path(report["manifest"]).read_text())["served"]["requests"] == len(report["served"]["checks"])
    assert (Path(report["repository"]) / "tiny" / "2" / "model.onnx").is_file()
    again = run(*finished.command, "--no-check-served", "--json").document
    assert (again["version"], again["unchanged"]) == (2, True)


@pytest.mark.slow
def test_changed_interface_refused(finished: Compiled, run: CommandLine, models: Path) -> None:
    """Another interface is refused unless it is allowed."""
    arguments = ("compile", f"hf:{models / 'three-labels'}", "--name", "tiny", "--no-check-served", "--json")
    view = finished.folder / "artifacts" / "repository" / "tiny"
    before = listing(view.resolve())
    refused = run(*arguments)
    difference = "logits was float32['batch', 2], is float32['batch', 3]"
    check_refusal(refused, 7, ("tiny · publish", "version 1", difference, "--allow-interface-change"))
    assert listing(view.resolve()) == before
    assert sorted(path.name for path in finished.release.parent.iterdir()) == ["1"]
    report = run(*arguments, "--allow-interface-change").document
    assert report["version"] == 2
    assert sorted(path.name for path in view.iterdir()) == ["2", "config.pbtxt"]
    assert sorted(path.name for path in finished.release.parent.iterdir()) == ["1", "2"]
