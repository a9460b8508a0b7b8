"""What was built is not built again, also where there is no GPU; what was measured is used by the next build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .compiles import Release, Workshop, released
from .figures import Figures
from .machine import Device
from .subjects import subject

pytestmark = pytest.mark.tensorrt

# As the Python API's builder and that of trtexec tell that a build began with what others had measured.
_WARM = re.compile(r"started from \d+ bytes|read \(\d+ bytes\)")


def test_the_same_compile_again_does_nothing(alone: Workshop, saved: Path) -> None:
    model = subject("tiny-bert", saved)
    first, again = (alone.compile(model, "--precision", "fp16") for _ in range(2))
    assert not first.cached()["compile"]
    assert all(again.cached().values())
    assert again.document["unchanged"]
    assert again.folder == first.folder


def test_a_plan_of_the_cache_is_published_by_a_machine_without_a_gpu(alone: Workshop, saved: Path, gpu: Device) -> None:
    model = subject("tiny-bert", saved)
    words = alone.words(model, "--precision", "fp16", "--gpu", gpu.name, "--no-check-served", "--json")
    first = released(alone.run(words))
    elsewhere = [*words, "--repository", str(alone.folder / "elsewhere")]
    second = released(alone.run(elsewhere, CUDA_VISIBLE_DEVICES=""))
    assert second.cached()["compile"]
    assert second.folder != first.folder
    assert second.plan_file.read_bytes() == first.plan_file.read_bytes()
    unknown = alone.run([*elsewhere, "--force"], CUDA_VISIBLE_DEVICES="")
    assert unknown.status == 9, unknown


def test_the_second_build_starts_from_what_the_first_measured(
    alone: Workshop, saved: Path, builder: str, gpu: Device, figures: Figures
) -> None:
    cold, warm = _twice(alone, saved, builder)
    for release in (cold, warm):
        figures.add("tiny-bert", release, gpu)
    assert not _WARM.search(cold.plan["timing_cache"])
    assert _WARM.search(warm.plan["timing_cache"])
    assert not warm.cached()["compile"]


def test_a_build_without_timing_cache_reads_and_keeps_nothing(alone: Workshop, saved: Path, builder: str) -> None:
    for release in _twice(alone, saved, builder, timing_cache=False):
        assert not _WARM.search(release.plan["timing_cache"])
    assert not list(alone.artifacts.rglob("*.cache"))


def test_a_damaged_timing_cache_is_told_and_measured_anew(alone: Workshop, saved: Path, builder: str) -> None:
    model = subject("tiny-bert", saved)
    alone.compile(model, "--builder", builder)
    files = list(alone.artifacts.rglob("*.cache"))
    assert files
    for file in files:
        file.write_bytes(b"no timing cache" * 100)
    release = alone.compile(model, "--builder", builder, "--force")
    assert not _WARM.search(release.plan["timing_cache"])
    assert "timing cache" in " ".join(release.plan["warnings"])
    assert release.document["verdict"] == "passed"
    again = alone.compile(model, "--builder", builder, "--force")
    assert _WARM.search(again.plan["timing_cache"])


def test_a_build_that_may_measure_nothing_needs_what_others_measured(alone: Workshop, saved: Path) -> None:
    model = subject("tiny-bert", saved)
    refused = alone.run(alone.words(model, error_on_timing_cache_miss=True))
    assert refused.status == 6, refused
    assert "error_on_timing_cache_miss" in refused.message
    alone.compile(model)
    release = alone.compile(model, "--force", error_on_timing_cache_miss=True)
    assert release.document["verdict"] == "passed"


def _twice(place: Workshop, saved: Path, builder: str, **keys: bool) -> list[Release]:
    """Two builds of one plan; the second does every step again."""
    model = subject("tiny-bert", saved)
    words = ("--precision", "fp16", "--builder", builder)
    return [place.compile(model, *words, *more, **keys) for more in ((), ("--force",))]
