"""How far a build has come, and what ends it; and what is said where TensorRT is not."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from plansmith.compilers.trt.api import building
from plansmith.compilers.trt.api.building import Watch
from plansmith.compilers.trt.api.runtime import version
from plansmith.errors import EnvironmentFault


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(building, "_SECONDS_BETWEEN_WORDS", 0)
    return []


def test_longest_phase_is_told(messages: list[str]) -> None:
    """Words tell of the longest phase that is going on."""
    watch = Watch(messages.append, 60)
    watch.start("Building Engine", "", 1)
    watch.start("Timing graph nodes", "Building Engine", 300)
    for step in range(119):
        assert watch.step("Timing graph nodes", step)
    watch.start("Finding the fastest tactic", "Timing graph nodes", 20)
    messages.clear()
    assert watch.step("Finding the fastest tactic", 4)
    assert watch.step("Timing graph nodes", 119)
    assert messages == [
        "building: Timing graph nodes, 119 of 300 (39 %)",
        "building: Timing graph nodes, 120 of 300 (40 %)",
    ]
    watch.finish("Timing graph nodes")
    assert watch.step("Finding the fastest tactic", 9)
    assert messages[-1] == "building: Finding the fastest tactic, 10 of 20 (50 %)"
    assert watch.step("a phase that never began", 3)


def test_single_step_has_no_count(messages: list[str]) -> None:
    """A phase of one step is told without a count."""
    Watch(messages.append, 60).start("Building Engine", "", 1)
    assert messages == ["building: Building Engine"]


def test_crowded_words_left_out() -> None:
    """Words that come at once are left out."""
    messages: list[str] = []
    watch = Watch(messages.append, 60)
    watch.start("Timing graph nodes", "", 300)
    assert all(watch.step("Timing graph nodes", step) for step in range(300))
    assert 1 <= len(messages) < 300


def test_late_build_stops() -> None:
    """A build that is late goes no further."""
    watch = Watch(lambda _: None, 0)
    watch.start("Timing graph nodes", "", 300)
    assert not watch.step("Timing graph nodes", 0)
    assert watch.is_late


def test_unheard_build_stops(messages: list[str]) -> None:
    """A build whose words nobody takes goes no further."""

    def hang_up(text: str) -> None:
        messages.append(text)
        raise BrokenPipeError

    watch = Watch(hang_up, 60)
    watch.start("Timing graph nodes", "", 300)
    assert not watch.step("Timing graph nodes", 0)
    assert isinstance(watch.failure, BrokenPipeError)
    assert len(messages) == 1


def test_missing_tensorrt_says_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no TensorRT, it is told how to get it."""
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EnvironmentFault, match="is not here") as raised:
        version()
    assert "tensorrt-cu13-bindings==<version>" in raised.value.remedy


@pytest.mark.parametrize(
    "problem", [ImportError("libnvinfer.so.10: cannot open"), OSError("bad"), RuntimeError("none")]
)
def test_broken_tensorrt_says_why(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TensorRT that does not load says why."""

    class Broken:
        def find_spec(self, name: str, *_: object) -> ModuleType | None:
            if name == "tensorrt":
                raise problem
            return None

    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(EnvironmentFault, match="does not load") as raised:
        version()
    assert str(problem) in raised.value.message
    assert "doctor" in raised.value.remedy
