"""How far a build has come, and what ends it; and what is said where TensorRT is not."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from plansmith.compilers.trt.api import progress
from plansmith.compilers.trt.api.probe import version
from plansmith.compilers.trt.api.progress import Watch
from plansmith.errors import EnvironmentFault


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_WORDS", 0)
    return []


def test_words_tell_of_the_longest_phase_that_is_going_on(words: list[str]) -> None:
    watch = Watch(words.append, 60)
    watch.start("Building Engine", "", 1)
    watch.start("Timing graph nodes", "Building Engine", 300)
    for step in range(119):
        assert watch.step("Timing graph nodes", step)
    watch.start("Finding the fastest tactic", "Timing graph nodes", 20)
    words.clear()
    assert watch.step("Finding the fastest tactic", 4)
    assert watch.step("Timing graph nodes", 119)
    assert words == [
        "building: Timing graph nodes, 119 of 300 (39 %)",
        "building: Timing graph nodes, 120 of 300 (40 %)",
    ]
    watch.finish("Timing graph nodes")
    assert watch.step("Finding the fastest tactic", 9)
    assert words[-1] == "building: Finding the fastest tactic, 10 of 20 (50 %)"
    assert watch.step("a phase that never began", 3)


def test_a_phase_of_one_step_is_told_without_a_count(words: list[str]) -> None:
    Watch(words.append, 60).start("Building Engine", "", 1)
    assert words == ["building: Building Engine"]


def test_words_that_come_at_once_are_left_out() -> None:
    words: list[str] = []
    watch = Watch(words.append, 60)
    watch.start("Timing graph nodes", "", 300)
    assert all(watch.step("Timing graph nodes", step) for step in range(300))
    assert 1 <= len(words) < 300


def test_a_build_that_is_late_goes_no_further() -> None:
    watch = Watch(lambda _: None, 0)
    watch.start("Timing graph nodes", "", 300)
    assert not watch.step("Timing graph nodes", 0)
    assert watch.is_late


def test_a_build_whose_words_nobody_takes_goes_no_further(words: list[str]) -> None:
    def hang_up(text: str) -> None:
        words.append(text)
        raise BrokenPipeError

    watch = Watch(hang_up, 60)
    watch.start("Timing graph nodes", "", 300)
    assert not watch.step("Timing graph nodes", 0)
    assert isinstance(watch.failure, BrokenPipeError)
    assert len(words) == 1


def test_where_there_is_no_tensorrt_it_is_told_how_to_come_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EnvironmentFault, match="is not here") as raised:
        version()
    assert "tensorrt-cu13-bindings==<version>" in raised.value.remedy


@pytest.mark.parametrize(
    "problem", [ImportError("libnvinfer.so.10: cannot open"), OSError("bad"), RuntimeError("none")]
)
def test_a_tensorrt_that_does_not_load_says_why(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
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
