"""Archives of releases: what lies in them, and which ones are refused."""

from __future__ import annotations

import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plansmith.config.targets import load_target
from plansmith.errors import EngineError, PlansmithError, RepositoryError, UsageError
from plansmith.sagemaker.archives import Archive, plan_archives, write_archive
from plansmith.sagemaker.selection import PackageRequest
from plansmith.triton.checker.archive import unpacked
from plansmith.triton.checker.checker import check_repository
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.repository import ModelRepository

from ..support.sagemaker.releases import publish_ensemble, publish_onnx, publish_plans
from ..support.tensorrt.engines import engine


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "repository")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Takes what releases are made of, and archives."""
    return tmp_path


def package(repository: ModelRepository, output: Path, *releases: str, **options: object) -> list[Archive]:
    request = PackageRequest(releases=releases, **options)  # type: ignore[arg-type]
    return [write_archive(plan) for plan in plan_archives(repository, request, output)]


def names(archive: Archive) -> list[str]:
    with tarfile.open(archive.file) as opened:
        return opened.getnames()


def config_of(archive: Archive, model: str) -> object:
    with unpacked(Path(archive.file)) as root:
        return parse_config((root / model / "config.pbtxt").read_text())


def test_layout_of_one_model(repository: ModelRepository, folder: Path) -> None:
    for _ in range(2):
        publish_onnx(repository, folder, "tiny")
    (archive,) = package(repository, folder / "out", "tiny")
    assert names(archive) == ["tiny", "tiny/2", "tiny/2/model.onnx", "tiny/config.pbtxt"]
    assert (archive.models, archive.default_model, archive.releases) == (("tiny",), "tiny", ("tiny@2",))
    assert (archive.target, archive.device, archive.compute_capabilities) == ("sagemaker-26.05-cpu", "cpu", ())
    assert archive.environment == {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "tiny"}
    assert archive.bytes == Path(archive.file).stat().st_size
    assert Path(archive.file).name.startswith("tiny-2-")
    with unpacked(Path(archive.file)) as root:
        assert check_repository(root, target=load_target(archive.target)) == []


def test_older_version_has_own_name(repository: ModelRepository, folder: Path) -> None:
    """An older version has a name of its own."""
    for _ in range(2):
        publish_onnx(repository, folder, "tiny")
    (older,), (newer,) = package(repository, folder / "out", "tiny@1"), package(repository, folder / "out", "tiny")
    assert names(older)[2] == "tiny/1/model.onnx"
    assert older.file != newer.file


def test_same_release_same_bytes(folder: Path) -> None:
    """The same release gives the same bytes."""
    contents = set()
    for place in ("here", "there"):
        repository = ModelRepository(folder / place / "repository")
        publish_ensemble(repository, folder / place, "whole")
        (archive,) = package(repository, folder / place / "out", "whole")
        contents.add((Path(archive.file).name, Path(archive.file).read_bytes()))
    assert len(contents) == 1


def test_existing_archive_is_left_alone(repository: ModelRepository, folder: Path) -> None:
    publish_onnx(repository, folder, "tiny")
    (first,) = package(repository, folder / "out", "tiny")
    before = Path(first.file).stat()
    (second,) = package(repository, folder / "out", "tiny")
    assert second == first.model_copy(update={"unchanged": True})
    after = Path(first.file).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [entry.name for entry in (folder / "out").iterdir()] == [Path(first.file).name]


@pytest.mark.parametrize("same_size", [True, False])
def test_other_content_is_not_overwritten(same_size: bool, repository: ModelRepository, folder: Path) -> None:
    publish_onnx(repository, folder, "tiny")
    (archive,) = package(repository, folder / "model.tar.gz", "tiny")
    content = Path(archive.file).read_bytes()[:-1] + (b"!" if same_size else b"")
    Path(archive.file).write_bytes(content)
    with pytest.raises(RepositoryError, match="already, with other content"):
        package(repository, folder / "model.tar.gz", "tiny")
    assert Path(archive.file).read_bytes() == content


def test_ensemble_brings_its_members(repository: ModelRepository, folder: Path) -> None:
    publish_ensemble(repository, folder, "whole")
    (archive,) = package(repository, folder / "out", "whole")
    parts = [member.model for member in repository.manifest("whole", 1).package.members]
    assert archive.models == ("whole", *parts)
    paths = names(archive)
    assert {name for name in paths if "/" not in name} == {"whole", *parts}
    for part in parts:
        assert {f"{part}/config.pbtxt", f"{part}/notes.txt", f"{part}/1/model.py"} <= set(paths)
    assert not [name for name in paths if Path(name).name.startswith(".")]


def test_script_has_its_members_loaded(repository: ModelRepository, folder: Path) -> None:
    publish_ensemble(repository, folder, "asker", script=True)
    (archive,) = package(repository, folder / "out", "asker")
    parts = archive.models[1:]
    arguments = archive.environment["SAGEMAKER_TRITON_ADDITIONAL_ARGS"].split()
    assert len(parts) == 2
    assert sorted(arguments) == sorted(f"--load-model={part}" for part in parts)


def test_multi_model_archives_hold_version_1(repository: ModelRepository, folder: Path) -> None:
    """Multi-model archives hold version 1."""
    for _ in range(2):
        publish_onnx(repository, folder, "tiny")
    publish_onnx(repository, folder, "other")
    archives = package(repository, folder / "out", "tiny", "tiny@1", "other", "tiny@2", multi_model=True)
    assert [archive.releases for archive in archives] == [("tiny@2",), ("tiny@1",), ("other@1",)]
    assert len({archive.file for archive in archives}) == 3
    assert {names(archive)[2] for archive in archives} == {"tiny/1/model.onnx", "other/1/model.onnx"}
    assert [archive.environment for archive in archives] == [{"SAGEMAKER_TRITON_PING_MODE": "live"}] * 3


def test_copies_are_renamed_everywhere(repository: ModelRepository, folder: Path) -> None:
    publish_ensemble(repository, folder, "whole")
    archives = package(repository, folder / "out", "whole", multi_model=True, copies=3)
    assert [archive.default_model for archive in archives] == ["whole-copy1", "whole-copy2", "whole-copy3"]
    assert [Path(archive.file).name.rpartition("-")[0] for archive in archives] == [
        f"{archive.default_model}-1" for archive in archives
    ]
    assert len({archive.digest for archive in archives}) == 3
    for archive in archives:
        config = config_of(archive, archive.default_model)
        assert config.name == archive.default_model  # type: ignore[attr-defined]
        steps = [step.model_name for step in config.ensemble_scheduling.step]  # type: ignore[attr-defined]
        assert steps == list(archive.models[1:])
        with unpacked(Path(archive.file)) as root:
            assert 'platform: "ensemble"' in (root / archive.default_model / "config.pbtxt").read_text()


def test_policy_names_archive_version(repository: ModelRepository, folder: Path) -> None:
    """The version policy names the version of the archive."""
    changes = {"version_policy { latest { num_versions: 1 } }": "version_policy { specific { versions: [ 1, 2 ] } }"}
    for _ in range(2):
        publish_onnx(repository, folder, "tiny", changes=changes)
    (single,) = package(repository, folder / "out", "tiny")
    (many,) = package(repository, folder / "out", "tiny", multi_model=True)
    for archive, number in ((single, 2), (many, 1)):
        assert list(config_of(archive, "tiny").version_policy.specific.versions) == [number]  # type: ignore[attr-defined]


def test_default_model_comes_first(repository: ModelRepository, folder: Path) -> None:
    for model in ("one", "two"):
        publish_onnx(repository, folder, model)
    (archive,) = package(repository, folder / "out", "one", "two", default_model="two")
    assert archive.models == ("two", "one")
    assert archive.environment == {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "two"}


def test_plans_name_gpus_and_tensorrt(repository: ModelRepository, folder: Path) -> None:
    """Plans name their GPUs and TensorRT."""
    publish_plans(
        repository, folder, "plans", engine("L4", "A10G", version_compatible=True),
        version="10.16.0.72", target="sagemaker-26.05",
    )  # fmt: skip
    (archive,) = package(repository, folder / "out", "plans")
    assert (archive.device, archive.compute_capabilities, archive.tensorrt) == ("gpu", ("8.6", "8.9"), "10.16.0.72")
    assert archive.version_compatible
    assert "version-compatible=true" in archive.environment["SAGEMAKER_TRITON_ADDITIONAL_ARGS"]


def refuse(
    kind: type[PlansmithError],
    message: str,
    repository: ModelRepository,
    output: Path,
    *releases: str,
    **options: object,
) -> str:
    """The remedy of what is refused, and leaves nothing behind."""
    with pytest.raises(kind, match=message) as failure:
        package(repository, output, *releases, **options)
    assert not output.exists()
    return failure.value.remedy


def test_tensorrt_11_plan_refused(repository: ModelRepository, folder: Path) -> None:
    """A plan of TensorRT 11 is refused."""
    publish_plans(repository, folder, "plans", engine("L4"), version="11.0.0.114", target="sagemaker-26.05")
    remedy = refuse(RepositoryError, "sagemaker.tensorrt", repository, folder / "out", "plans")
    assert "TensorRT 10.16" in remedy


def test_other_tensorrt_plan_refused(repository: ModelRepository, folder: Path) -> None:
    """A plan of another TensorRT is refused."""
    publish_plans(repository, folder, "plans", engine("L4"), version="10.13.3.9", target="triton-26.05")
    target = load_target("sagemaker-26.05")
    refuse(RepositoryError, "10.13.3.9", repository, folder / "out", "plans", target=target)


def test_other_target_needs_image(repository: ModelRepository, folder: Path) -> None:
    """Release for another target needs an image."""
    publish_onnx(repository, folder, "tiny", target="local-cpu")
    remedy = refuse(EngineError, "tiny@1 was compiled for local-cpu", repository, folder / "out", "tiny")
    assert "--target sagemaker-26.05-cpu" in remedy
    refuse(
        EngineError, "triton-26.05 is no image", repository, folder / "out", "tiny", target=load_target("triton-26.05")
    )
    target = load_target("sagemaker-25.09-cpu")
    (archive,) = package(repository, folder / "out", "tiny", target=target)
    assert archive.target == "sagemaker-25.09-cpu"


def test_gpu_release_needs_gpu_image(repository: ModelRepository, folder: Path) -> None:
    """A release for GPUs needs an image with GPUs."""
    publish_onnx(repository, folder, "tiny", target="sagemaker-26.05", changes={"KIND_CPU": "KIND_GPU"})
    target = load_target("sagemaker-26.05-cpu")
    refuse(EngineError, "to run on a GPU", repository, folder / "out", "tiny", target=target)


def test_withdrawn_version_is_refused(repository: ModelRepository, folder: Path) -> None:
    for _ in range(2):
        publish_onnx(repository, folder, "tiny")
    repository.withdraw("tiny", 2, "it answers wrongly")
    remedy = refuse(RepositoryError, "it answers wrongly", repository, folder / "out", "tiny@2")
    assert remedy == "name another version: tiny@1"
    (archive,) = package(repository, folder / "out", "tiny")
    assert archive.releases == ("tiny@1",)


@pytest.mark.parametrize(
    ("releases", "options", "words"),
    [
        (("one", "two"), {}, "there are 2 models"),
        (("one", "two"), {"default_model": "three"}, "none of the models"),
        (("one@1", "one@2"), {"default_model": "one"}, "one version of one"),
        (("one",), {"copies": 2}, "copies"),
        (("one",), {"default_model": "one", "multi_model": True}, "no default"),
    ],
)
def test_models_and_options_fit_together(
    releases: tuple[str, ...], options: dict[str, object], words: str, repository: ModelRepository, folder: Path
) -> None:
    """Models and options must fit together."""
    for model in ("one", "one", "two"):
        publish_onnx(repository, folder, model)
    refuse(UsageError, words, repository, folder / "out", *releases, **options)


def test_multi_model_needs_a_folder(repository: ModelRepository, folder: Path) -> None:
    publish_onnx(repository, folder, "tiny")
    refuse(UsageError, "is one file", repository, folder / "model.tar.gz", "tiny", multi_model=True)


def test_script_refused_for_multi_model(repository: ModelRepository, folder: Path) -> None:
    """A script is refused for multi-model endpoints."""
    publish_ensemble(repository, folder, "asker", script=True)
    refuse(RepositoryError, "loads the script alone", repository, folder / "out", "asker", multi_model=True)


def test_name_with_space_refused(repository: ModelRepository, folder: Path) -> None:
    """Name with a space is refused."""
    publish_onnx(repository, folder, "my model")
    remedy = refuse(RepositoryError, "sagemaker.name", repository, folder / "out", "my model")
    assert "letters, digits, dots" in remedy


def test_broken_configuration_is_refused(repository: ModelRepository, folder: Path) -> None:
    publish_onnx(repository, folder, "tiny", changes={"max_batch_size: 8": "max_batchsize: 8"})
    with pytest.raises(RepositoryError, match="max_batchsize"):
        package(repository, folder / "out", "tiny")


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_damaged_release_is_refused(damage: str, repository: ModelRepository, folder: Path) -> None:
    publish_onnx(repository, folder, "tiny")
    file = repository.release("tiny", 1) / "model" / "model.onnx"
    content = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(content[:-1] + (b"!" if damage == "changed" else b""))
    with pytest.raises(RepositoryError, match=r"model\.onnx"):
        package(repository, folder / "out", "tiny")
    assert not list((folder / "out").glob("*")) + list((folder / "out").glob(".*"))


def test_killed_run_remains_overwritten(repository: ModelRepository, folder: Path) -> None:
    """Remains of a killed run are overwritten."""
    publish_onnx(repository, folder, "tiny")
    left = folder / ".model.tar.gz.partial"
    left.write_bytes(b"half" * 10_000)
    (archive,) = package(repository, folder / "model.tar.gz", "tiny")
    assert Path(archive.file).stat().st_size == archive.bytes
    assert not left.exists()


def test_concurrent_runs_write_once(repository: ModelRepository, folder: Path) -> None:
    publish_onnx(repository, folder, "tiny")
    with ThreadPoolExecutor(4) as pool:
        archives = [*pool.map(lambda _: package(repository, folder / "out", "tiny")[0], range(8))]
    assert sorted(item.unchanged for item in archives) == [False] + [True] * 7
    assert len({item.digest for item in archives}) == 1
    assert [item.name for item in (folder / "out").iterdir()] == [Path(archives[0].file).name]
