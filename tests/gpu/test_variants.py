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


def test_a_version_compatible_plan_is_published_with_the_flag_that_triton_needs(alone: Workshop, saved: Path) -> None:
    release = alone.compile(subject("tiny-bert", saved), version_compatible=True)
    assert release.manifest["engine"]["build"]["version_compatible"] is True
    assert release.document["verdict"] == "passed"
    told = [file for file in release.folder.iterdir() if file.is_file() and file.suffix in {".sh", ".json", ".md"}]
    assert [file.name for file in told if "version-compatible=true" in file.read_text()]
    plain = alone.compile(subject("tiny-bert", saved))
    assert release.plan_file.stat().st_size > plain.plan_file.stat().st_size, "it has a runtime of its own"


def test_a_stripped_plan_is_small_in_the_cache_and_whole_in_the_release(alone: Workshop, saved: Path) -> None:
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
def test_a_plan_for_other_gpus_too_answers_on_this_one(level: str, alone: Workshop, saved: Path, gpu: Device) -> None:
    if level == "ampere_plus" and float(gpu.capability) < 8:
        pytest.skip("this GPU is older than Ampere")
    release = alone.compile(subject("tiny-bert", saved), hardware_compatibility=level)
    assert release.manifest["engine"]["build"]["hardware_compatibility"] == level
    assert release.document["verdict"] == "passed"


def test_a_plan_for_another_targets_tensorrt_is_refused_before_anything_is_built(tmp_path: Path, saved: Path) -> None:
    place = Workshop(tmp_path, other_target(tmp_path))
    answer = place.run(place.words(subject("tiny-bert", saved)))
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
def test_what_cannot_become_a_plan_is_refused_with_what_to_type(case: str, alone: Workshop, saved: Path) -> None:
    keys, status, said = REFUSED[case]
    answer = alone.run(alone.words(subject("tiny-bert", saved), **keys))
    assert answer.status == status, answer
    assert said in answer.message
    assert "\nNext: " in answer.message
    assert "Traceback" not in answer.stderr
    check_nothing_made(alone.artifacts)
