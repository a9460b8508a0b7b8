"""Whether this is a target's image is told by the versions that lie in it, and what cannot be told is no yes."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.cli.info.image_check import InstalledVersion, compare_image, installed_versions, require_image
from plansmith.config.targets import Target, load_target
from plansmith.errors import EngineError

from ...support.cli.command import CommandLine

TARGET = "triton-26.08"
FULL = "11.2.1.2"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of NVIDIA's image that tell versions, and Debian's database with TensorRT's packages."""
    root = tmp_path / "image"
    lay_out(root, FULL, "2.72.0")
    dali = root / "opt" / "tritonserver" / "backends" / "dali" / "wheel" / "dali" / "nvidia" / "dali"
    dali.mkdir(parents=True)
    (dali / "__init__.py").write_text("from . import fn\n\n__version__ = '2.2.0'\n__cuda_version__ = 13\n")
    monkeypatch.setenv("PATH", str(root / "bin"))
    monkeypatch.setenv("CUDA_VERSION", "13.4.1.009")
    return root


def lay_out(root: Path, tensorrt: str, triton: str) -> None:
    major, short = tensorrt.partition(".")[0], ".".join(tensorrt.split(".")[:3])
    libraries = root / "usr" / "lib" / "x86_64-linux-gnu"
    for folder in (libraries, root / "opt" / "tritonserver", root / "bin"):
        folder.mkdir(parents=True)
    (root / "opt" / "tritonserver" / "TRITON_VERSION").write_text(f"{triton}\n")
    for name in (f"libnvinfer.so.{short}", f"libnvinfer.so.{major}", f"libnvinfer_plugin.so.{short}"):
        (libraries / name).touch()
    packages = (f"libnvinfer{major} {tensorrt}-1+cuda13.4 installed", "libnvinfer-dev 9.9.9.9-1 installed")
    removed = "libnvinfer8 8.6.1.6-1+cuda12.0 config-files"
    guard = 'test "$1 $3" = "--show libnvinfer*" || exit 2'
    tool = root / "bin" / "dpkg-query"
    tool.write_text("\n".join(("#!/bin/sh", guard, "cat <<'END'", *packages, removed, "END", "")))
    tool.chmod(0o755)
    (root / "bin" / "cat").symlink_to("/bin/cat")


def refusal(target: Target, root: Path) -> EngineError:
    with pytest.raises(EngineError) as refused:
        require_image(target, compare_image(target, installed_versions(root)))
    assert refused.value.remedy
    return refused.value


def test_version_places_all_read(image: Path) -> None:
    """Every place that tells a version is read."""
    versions = installed_versions(image)
    actual = {
        (entry.what, entry.version, entry.where.removeprefix(str(image)))
        for entry in versions
        if entry.what != "Python"
    }
    assert actual == {
        ("TensorRT", FULL, "Debian package libnvinfer11"),
        ("TensorRT", "11.2.1", "/usr/lib/x86_64-linux-gnu/libnvinfer.so.11.2.1"),
        ("Triton", "2.72.0", "/opt/tritonserver/TRITON_VERSION"),
        ("CUDA", "13.4.1.009", "CUDA_VERSION"),
        ("DALI", "2.2.0", "/opt/tritonserver/backends/dali/wheel/dali/nvidia/dali/__init__.py"),
    }


def test_own_image_taken(image: Path) -> None:
    """The target's own image is taken."""
    target = load_target(TARGET)
    compared = compare_image(target, installed_versions(image))
    require_image(target, compared)
    assert {comparison.what for comparison in compared if comparison.agrees} >= {"TensorRT", "Triton", "CUDA"}


@pytest.mark.parametrize(
    ("tensorrt", "triton", "said"),
    [
        ("11.2.1.3", "2.72.0", "TensorRT is 11.2.1.3 by Debian package libnvinfer11, not 11.2.1.2"),
        ("10.16.1.11", "2.72.0", "TensorRT is 10.16.1 by "),
        (FULL, "2.71.0", "Triton is 2.71.0 by "),
    ],
    ids=["another build", "another TensorRT", "another Triton"],
)
def test_other_image_refused(
    tensorrt: str, triton: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another image is refused with what differs."""
    lay_out(tmp_path / "other", tensorrt, triton)
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))
    refused = refusal(load_target(TARGET), tmp_path / "other")
    assert said in refused.message
    assert "tritonserver:26.08-py3" in refused.remedy


def test_other_tensorrt_package_refused(image: Path) -> None:
    """A Python package of another TensorRT than the library's is refused."""
    target = load_target(TARGET)
    stray = InstalledVersion(what="TensorRT", version="11.3.0.99", where="Python package tensorrt")
    with pytest.raises(EngineError, match=r"11\.3\.0\.99 by Python package tensorrt"):
        require_image(target, compare_image(target, (*installed_versions(image), stray)))


def test_partial_tensorrt_takes_every_build(tmp_path: Path) -> None:
    """A target that knows its TensorRT in part takes every build of it."""
    target = load_target("triton-26.05")
    assert target.tensorrt == "10.16"
    for version, agrees in (("10.16.1.11", True), ("10.16", True), ("10.1.6", False), ("10.15.1.29", False)):
        installed = (InstalledVersion(what="TensorRT", version=version, where=str(tmp_path)),)
        assert [
            comparison.agrees for comparison in compare_image(target, installed) if comparison.what == "TensorRT"
        ] == [agrees]


@pytest.mark.parametrize(
    ("stated", "agrees"),
    [("2.2.0", True), ("2.0.0", True), ("2.3.0", False), ("1.51.2", False)],
    ids=["same", "older", "newer", "of another kind"],
)
def test_newer_dali_agrees(stated: str, agrees: bool, image: Path) -> None:
    """The image's DALI agrees where it opens what the target's serialised, and decides nothing."""
    target = load_target(TARGET).model_copy(update={"dali": stated})
    compared = compare_image(target, installed_versions(image))
    require_image(target, compared)
    assert [comparison.agrees for comparison in compared if comparison.what == "DALI"] == [agrees]


def test_other_cuda_decides_nothing(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another CUDA is told and decides nothing."""
    monkeypatch.setenv("CUDA_VERSION", "13.4.0.1")
    target = load_target(TARGET)
    compared = compare_image(target, installed_versions(image))
    require_image(target, compared)
    assert [comparison.agrees for comparison in compared if comparison.what == "CUDA"] == [False]


def test_unknown_tensorrt_refused(image: Path) -> None:
    """A target whose TensorRT nobody knows is refused with the one that is here."""
    refused = refusal(load_target("triton-26.01"), image)
    assert f"which TensorRT triton-26.01 has; here is 11.2.1, {FULL}" in refused.message


def test_machine_without_tensorrt_is_refused(image: Path, tmp_path: Path) -> None:
    """A machine without TensorRT is no image for GPU instances."""
    (image / "bin" / "dpkg-query").unlink()
    (image / "usr" / "lib" / "x86_64-linux-gnu" / "libnvinfer.so.11.2.1").unlink()
    assert "there is no TensorRT here" in refusal(load_target(TARGET), image).message
    on_cpu = load_target(f"{TARGET}-cpu")
    require_image(on_cpu, compare_image(on_cpu, installed_versions(image)))
    assert "nothing here tells" in refusal(on_cpu, tmp_path / "empty").message


@pytest.mark.slow
def test_command_prints_or_refuses(tmp_path: Path) -> None:
    """The command prints what it found, or refuses."""
    run = CommandLine(tmp_path)
    for name in ("triton-26.01", "triton-24.10", "local-cpu"):
        answer = run("targets", name, "--check-image")
        assert (answer.status, answer.stdout) == (6, "")
        assert "\nNext: " in answer.message
    assert run("targets", "--check-image").status == 2
    (tmp_path / "ours.yaml").write_text('description: ours\nflavour: triton\ndevices: [gpu]\ntensorrt: "11.2"\n')
    lay_out(tmp_path / "image", FULL, "2.72.0")
    result = run("targets", "ours.yaml", "--check-image", PATH=str(tmp_path / "image" / "bin"))
    assert (result.status, result.stderr) == (0, "")
    assert f"11.2          here: {FULL} by Debian package libnvinfer11, the same" in result.stdout
    document = run("targets", "ours.yaml", "--check-image", "--json", PATH=str(tmp_path / "image" / "bin")).document
    assert [entry["found"] for entry in document["versions"] if entry["what"] == "TensorRT"] == [FULL]
