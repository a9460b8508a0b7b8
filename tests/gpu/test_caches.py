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


def test_repeated_compile_does_nothing(alone: Workshop, saved: Path) -> None:
    """The same compile again does nothing."""
    model = subject("tiny-bert", saved)
    first, again = (alone.compile(model, "--precision", "fp16") for _ in range(2))
    assert not first.cached()["compile"]
    assert all(again.cached().values())
    assert again.document["unchanged"]
    assert again.folder == first.folder


def test_cached_plan_published_without_gpu(alone: Workshop, saved: Path, gpu: Device) -> None:
    """A plan of the cache is published by a machine without a GPU."""
    model = subject("tiny-bert", saved)
    command = alone.command_line(model, "--precision", "fp16", "--gpu", gpu.name, "--no-check-served", "--json")
    first = released(alone.run(command))
    elsewhere = [*command, "--repository", str(alone.folder / "elsewhere")]
    second = released(alone.run(elsewhere, CUDA_VISIBLE_DEVICES=""))
    assert second.cached()["compile"]
    assert second.folder != first.folder
    assert second.plan_file.read_bytes() == first.plan_file.read_bytes()
    unknown = alone.run([*elsewhere, "--force"], CUDA_VISIBLE_DEVICES="")
    assert unknown.status == 9, unknown


def test_second_build_reuses_measurements(
    alone: Workshop, saved: Path, builder: str, gpu: Device, figures: Figures
) -> None:
    """The second build starts from what the first measured."""
    cold, warm = _twice(alone, saved, builder)
    for release in (cold, warm):
        figures.add("tiny-bert", release, gpu)
    assert not _WARM.search(cold.plan["timing_cache"])
    assert _WARM.search(warm.plan["timing_cache"])
    assert not warm.cached()["compile"]


def test_build_without_timing_cache(alone: Workshop, saved: Path, builder: str) -> None:
    """A build without timing cache reads and keeps nothing."""
    for release in _twice(alone, saved, builder, timing_cache=False):
        assert not _WARM.search(release.plan["timing_cache"])
    assert not list(alone.artifacts.rglob("*.cache"))


def test_damaged_timing_cache_measured_anew(alone: Workshop, saved: Path, builder: str) -> None:
    """A damaged timing cache is told and measured anew."""
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


def test_unmeasured_build_needs_others(alone: Workshop, saved: Path) -> None:
    """A build that may measure nothing needs what others measured."""
    model = subject("tiny-bert", saved)
    refused = alone.run(alone.command_line(model, error_on_timing_cache_miss=True))
    assert refused.status == 6, refused
    assert "error_on_timing_cache_miss" in refused.message
    alone.compile(model)
    release = alone.compile(model, "--force", error_on_timing_cache_miss=True)
    assert release.document["verdict"] == "passed"


def _twice(place: Workshop, saved: Path, builder: str, **keys: bool) -> list[Release]:
    """Two builds of one plan; the second does every step again."""
    model = subject("tiny-bert", saved)
    arguments = ("--precision", "fp16", "--builder", builder)
    return [place.compile(model, *arguments, *more, **keys) for more in ((), ("--force",))]
