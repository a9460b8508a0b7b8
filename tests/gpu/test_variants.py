"""Plans that are built otherwise, and what is refused before or instead of a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..support.cli.command import check_nothing_made
from .compiles import Workshop, version_in
from .machine import Device, other_target, tensorrt_version
from .subjects import subject

pytestmark = pytest.mark.tensorrt


def test_compatible_plan_needs_triton_flag(alone: Workshop, saved: Path) -> None:
    """A version-compatible plan is published with the flag that Triton needs."""
    release = alone.compile(subject("tiny-bert", saved), version_compatible=True)
    assert release.manifest["engine"]["build"]["version_compatible"] is True
    assert release.document["verdict"] == "passed"
    files = [file for file in release.folder.iterdir() if file.is_file() and file.suffix in {".sh", ".json", ".md"}]
    assert [file.name for file in files if "version-compatible=true" in file.read_text()]
    plain = alone.compile(subject("tiny-bert", saved))
    assert release.plan_file.stat().st_size > plain.plan_file.stat().st_size, "it has a runtime of its own"


def test_stripped_plan_whole_in_release(alone: Workshop, saved: Path) -> None:
    """A stripped plan is small in the cache and whole in the release."""
    release = alone.compile(subject("resnet50", saved), "--precision", "fp16", strip_weights=True)
    whole = release.plan_file.stat().st_size
    cached = [file.stat().st_size for file in (alone.artifacts / "cache").rglob("*.plan")]
    assert min(cached) < 0.5 * whole
    assert whole > 2 * 25_000_000, "ResNet-50 has 25.6 million weights of two bytes"
    assert version_in(release.plan_file) == release.plan["tensorrt"]
    assert (release.document["verdict"], release.manifest["validation"]["ran"]) == (
        "passed",
        list(release.manifest["engine"]["plans"]),
    )


@pytest.mark.parametrize("level", ["same_compute_capability", "ampere_plus"])
def test_plan_for_other_gpus_answers(level: str, alone: Workshop, saved: Path, gpu: Device) -> None:
    """A plan for other GPUs too answers on this one."""
    if level == "ampere_plus" and float(gpu.capability) < 8:
        pytest.skip("this GPU is older than Ampere")
    release = alone.compile(subject("tiny-bert", saved), hardware_compatibility=level)
    assert release.manifest["engine"]["build"]["hardware_compatibility"] == level
    assert release.document["verdict"] == "passed"


def test_plan_for_other_tensorrt_refused(tmp_path: Path, saved: Path) -> None:
    """A plan for another target's TensorRT is refused before anything is built."""
    place = Workshop(tmp_path, other_target(tmp_path))
    answer = place.run(place.command_line(subject("tiny-bert", saved)))
    assert answer.status == 9, answer
    assert tensorrt_version() in answer.message
    assert place.target.removesuffix(".yaml").rpartition("-")[2] in answer.message
    assert "\nNext: " in answer.message
    check_nothing_made(place.artifacts)


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "a workspace above the GPU's memory": ({"memory_pools": {"workspace": "4096G"}}, 6, "workspace"),
    "a kind of GPU that is none": ({"gpus": ["Voodoo 2"]}, 2, "Voodoo 2"),
    "a plugin library that is not there": ({"plugins": ["no/such/library.so"]}, 6, "library.so"),
    "a profile of an input that is none": ({"profiles": {"one": {"pixels": "1x8:4x16:8x32"}}}, 2, "pixels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_plan_refused(case: str, alone: Workshop, saved: Path) -> None:
    """What cannot become a plan is refused with what to type."""
    keys, status, fragment = REFUSED[case]
    answer = alone.run(alone.command_line(subject("tiny-bert", saved), **keys))
    assert answer.status == status, answer
    assert fragment in answer.message
    assert "\nNext: " in answer.message
    assert "Traceback" not in answer.stderr
    check_nothing_made(alone.artifacts)
