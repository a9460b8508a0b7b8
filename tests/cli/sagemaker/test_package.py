"""`plansmith sagemaker package` as a person types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.sagemaker.archives import Archive
from plansmith.triton.repository.repository import ModelRepository

from ...support.cli.command import check_refusal
from ...support.cli.in_process import InProcess
from ...support.sagemaker.releases import publish_ensemble, publish_onnx, publish_plans
from ...support.tensorrt.engines import engine


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """Where the command looks, with an ensemble and a model."""
    opened = ModelRepository(tmp_path / "artifacts" / "repository")
    publish_ensemble(opened, tmp_path / "made", "whole")
    publish_onnx(opened, tmp_path / "made", "tiny")
    return opened


@pytest.mark.usefixtures("repository")
def test_one_archive(run: InProcess) -> None:
    answer = run("sagemaker", "package", "whole")
    assert answer.status == 0, answer
    first, *lines = answer.stdout.splitlines()
    assert first.startswith("artifacts/sagemaker/whole-1-")
    assert (run.folder / first).is_file()
    assert [line.split()[0] for line in lines] == [
        *("release", "models", "size", "SHA-256", "served", "set", "Next:", "the")
    ]
    assert "whole and 2 more" in lines[1]
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=whole" in lines[-3]
    assert lines[-2].endswith(f" serve --sagemaker whole --repository {first}")
    assert lines[-1] == "      the same command with --upload s3://BUCKET/PREFIX sends it"
    assert answer.stderr == ""
    again = run("sagemaker", "package", "whole")
    assert "was there already" in again.stdout
    checked = run("check", first, "--sagemaker", "--fail-on", "error")
    assert checked.status == 0, checked


@pytest.mark.usefixtures("repository")
def test_multi_model_endpoint_archives(run: InProcess) -> None:
    """The archives of a multi-model endpoint are written."""
    answer = run("sagemaker", "package", "whole", "tiny@1", "--multi-model", "--copies", "2", "--output", "out")
    head, *rows, environment, following, last = answer.stdout.splitlines()
    assert head.split() == ["archive", "release", "models", "size", "SHA-256", "served", "by"]
    assert [row.split()[1] for row in rows] == ["whole@1", "whole@1", "tiny@1", "tiny@1"]
    assert {Path(row.split()[0]).name for row in rows} == {file.name for file in (run.folder / "out").iterdir()}
    assert environment == "set at the endpoint: SAGEMAKER_TRITON_PING_MODE=live"
    assert following == "Next: a model of SageMaker with Mode=MultiModel and ModelDataUrl=s3://BUCKET/PREFIX/"
    assert "TargetModel=whole-copy1-1-" in last


@pytest.mark.usefixtures("repository")
def test_json_and_dry_run(run: InProcess) -> None:
    planned = run("sagemaker", "package", "tiny", "--output", "model.tar.gz", "--dry-run", "--json").document
    assert planned["dry_run"] is True
    assert not (run.folder / "model.tar.gz").exists()
    package = run("sagemaker", "package", "tiny", "--output", "model.tar.gz", "--json").document
    (archive,) = (Archive.model_validate(entry) for entry in package["archives"])
    assert archive.bytes == (run.folder / "model.tar.gz").stat().st_size
    assert {**planned["archives"][0], "digest": archive.digest} == archive.model_dump(mode="json")
    assert len(archive.digest) == 64
    shown = run("sagemaker", "package", "tiny", "--dry-run")
    assert shown.stdout.endswith("1 archive would be made; nothing was written\n")


def test_gpus_of_plans(run: InProcess) -> None:
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    plans = engine("L4", "A10G", version_compatible=True)
    publish_plans(repository, run.folder, "plans", plans, version="10.16.0.72", target="sagemaker-26.05")
    answer = run("sagemaker", "package", "plans")
    assert "compute capability 8.6, 8.9, TensorRT 10.16.0.72 or newer" in answer.stdout
    assert "SAGEMAKER_TRITON_ADDITIONAL_ARGS=--backend-config=tensorrt,version-compatible=true" in answer.stdout


@pytest.mark.usefixtures("repository")
def test_models_that_no_request_reaches(run: InProcess) -> None:
    answer = run("sagemaker", "package", "tiny", "whole", "--default-model", "whole", "--output", "m.tar.gz")
    assert "the endpoint answers by whole alone: no request reaches tiny@1" in answer.stdout


def test_packages_of_the_image(run: InProcess) -> None:
    """A script names what it needs, and this one brings nothing with it."""
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    publish_ensemble(repository, run.folder, "asker", script=True)
    answer = run("sagemaker", "package", "asker", "--output", "asker.tar.gz")
    assert "asker brings no packages, and needs an image whose Python has numpy==1.26.4" in answer.stdout
    assert "python: {environment: packed}" in answer.stdout
    (archive,) = run("sagemaker", "package", "asker", "--dry-run", "--json").document["archives"]
    assert archive["image_packages"] == {"asker": ["numpy==1.26.4"]}


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("whole", "tiny"), 2, ("there are 2 models", "--default-model whole")),
        (("none",), 7, ("has no model 'none'", "tiny, whole")),
        (("tiny@9",), 7, ("has no version '9'",)),
        (("tiny", "--target", "triton-26.05"), 6, ("no image of SageMaker",)),
        (("tiny", "--target", "nothing"), 6, ("there is no target 'nothing'",)),
        (("tiny", "--copies", "2"), 2, ("--multi-model",)),
        (("tiny", "--upload", "folder"), 2, ("s3://BUCKET/PREFIX",)),
        (("tiny", "--region", "eu-west-1"), 2, ("--region is for --upload",)),
        (("tiny", "--output", "model.zip"), 2, ("model.zip is no name", "end in .tar.gz")),
        (("tiny", "--repository", "nowhere"), 7, ("there is no model repository", "name another repository")),
        (("tiny", "--output", "spoiled/out"), 7, ("cannot write to", "choose a writable --output")),
    ],
)
@pytest.mark.usefixtures("repository")
def test_refusals(words: tuple[str, ...], status: int, says: tuple[str, ...], run: InProcess) -> None:
    (run.folder / "spoiled").write_text("a file")
    check_refusal(run("sagemaker", "package", *words, "--json"), status, says)
