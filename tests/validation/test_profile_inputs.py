"""Inputs for the corners of profiles: real ones, cut or repeated; and the profile that takes given inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.data.reference import StoredCases, store_case
from plansmith.errors import UsageError
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import Component, Dim, InputRange, Tensor
from plansmith.validation.profile_inputs import FIXED, every_profile, profile_cases, profile_for


def component(**dims: tuple[Dim, ...]) -> Component:
    inputs = tuple(Tensor(name=name, dtype="int64", dims=found) for name, found in dims.items())
    return Component(file="model.onnx", external_files=(), inputs=inputs, outputs=(), opset=18, ir_version=9)


def one_profile(**shapes: tuple[Any, Any, Any]) -> OptimizationProfile:
    ranges = {name: InputRange(min=low, opt=usual, max=high) for name, (low, usual, high) in shapes.items()}
    return OptimizationProfile(name="default", shapes=ranges)


def stored(folder: Path, axes: tuple[str, ...], *feeds: dict[str, Any]) -> StoredCases:
    cases = []
    for place, feed in enumerate(feeds):
        sizes = dict(zip(axes, next(iter(feed.values())).shape, strict=True))
        cases.append(store_case(f"case-{place}", sizes, feed, {"y": np.zeros(1)}, folder / "reference"))
    return StoredCases(tuple(cases), folder)


TEXT = component(ids=("batch", "sequence"), mask=("batch", "sequence"))


def text(batch: int, length: int, first: int = 1) -> dict[str, Any]:
    ids = first + np.arange(batch * length).reshape(batch, length)
    return {"ids": ids, "mask": np.ones((batch, length), np.int64)}


def test_a_corner_is_cut_out_of_the_case_that_needs_the_least_change(tmp_path: Path) -> None:
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 9, 100), text(3, 4, 1), text(8, 8, 500))
    wanted = one_profile(ids=((1, 2), (2, 4), (2, 9)), mask=((1, 2), (2, 4), (2, 9)))
    found = [case.feed["ids"].tolist() for case in profile_cases([wanted], cases, TEXT)]
    assert found == [[[1, 2]], [[1, 2, 3, 4], [5, 6, 7, 8]], text(2, 9, 100)["ids"].tolist()]


def test_what_is_too_small_repeats_samples_and_tokens(tmp_path: Path) -> None:
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 3))
    wanted = one_profile(ids=((3, 5), (3, 5), (3, 5)), mask=((3, 5), (3, 5), (3, 5)))
    (found,) = profile_cases([wanted], cases, TEXT)
    assert found.feed["ids"].tolist() == [[1, 2, 3, 1, 2], [4, 5, 6, 4, 5], [1, 2, 3, 1, 2]]
    assert found.feed["mask"].shape == (3, 5)
    assert found.shapes == "ids 3x5, mask 3x5"


def test_texts_that_begin_with_padding_are_cut_at_their_beginning(tmp_path: Path) -> None:
    feed = text(2, 6)
    feed["mask"][:, :3] = 0
    cases = stored(tmp_path, ("batch", "sequence"), feed)
    wanted = one_profile(ids=((2, 2), (2, 4), (2, 6)), mask=((2, 2), (2, 4), (2, 6)))
    least, usual, _ = profile_cases([wanted], cases, TEXT, "mask")
    assert least.feed["ids"].tolist() == [[5, 6], [11, 12]]
    assert least.feed["mask"].all()
    assert usual.feed["mask"].tolist() == [[0, 1, 1, 1]] * 2
    first, *_ = profile_cases([wanted], cases, TEXT)  # without a mask nothing is known of padding
    assert first.feed["ids"].tolist() == [[1, 2], [7, 8]]


def test_corners_that_are_the_same_come_once(tmp_path: Path) -> None:
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 3))
    wanted = one_profile(ids=((1, 3), (2, 3), (2, 3)), mask=((1, 3), (2, 3), (2, 3)))
    assert [case.corner for case in profile_cases([wanted], cases, TEXT)] == ["min", "opt"]
    assert [case.corner for case in profile_cases([wanted], cases, TEXT, corners=("opt",))] == ["opt"]


def test_an_input_that_holds_a_shape_holds_what_the_profile_says(tmp_path: Path) -> None:
    graph = component(image=("batch", 1, "height", "width"), size=(2,))
    feed = {"image": np.arange(2 * 64).reshape(2, 1, 8, 8), "size": np.array([8, 8])}
    cases = StoredCases(
        (store_case("a", {"batch": 2, "height": 8, "width": 8}, feed, {"y": np.zeros(2)}, tmp_path / "r"),), tmp_path
    )
    wanted = one_profile(image=((1, 1, 4, 4), (2, 1, 8, 8), (2, 1, 16, 8))).model_copy(
        update={"values": {"size": InputRange(min=(4, 4), opt=(8, 8), max=(32, 32))}}
    )
    found = list(profile_cases([wanted], cases, graph))
    assert [case.feed["size"].tolist() for case in found] == [[4, 4], [8, 8], [32, 32]]
    assert [case.feed["size"].dtype for case in found] == [np.int64] * 3
    assert (found[2].feed["image"][:, :, :8] == found[2].feed["image"][:, :, 8:]).all()


def test_a_graph_of_fixed_shapes_has_one_corner(tmp_path: Path) -> None:
    graph = component(ids=(2, 3))
    feed = {"ids": np.arange(6).reshape(2, 3)}
    cases = StoredCases((store_case("a", {}, feed, {"y": np.zeros(2)}, tmp_path / "r"),), tmp_path)
    (found,) = profile_cases((), cases, graph)
    assert (found.profile, found.name, found.feed["ids"].tolist()) == (0, FIXED, feed["ids"].tolist())


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (one_profile(ids=((1, 3), (1, 4), (1, 5))), r"profile 'default' gives ids 1x3 at its min, .*\[batch, 7\]"),
        (one_profile(ids=((1,), (1,), (1,))), r"gives ids 1 at its min"),
        (one_profile(), r"profile 'default' says nothing of ids \[batch, 7\]"),
    ],
)
def test_a_profile_that_does_not_fit_the_graph_is_refused(
    wanted: OptimizationProfile, said: str, tmp_path: Path
) -> None:
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 7))
    with pytest.raises(UsageError, match=said) as raised:
        list(profile_cases([wanted], cases, component(ids=("batch", 7))))
    assert "tensorrt: {profiles: ...}" in raised.value.remedy


def ids(*shape: int) -> dict[str, Any]:
    return {"ids": np.zeros(shape, np.int64)}


def test_the_profile_with_the_nearest_opt_takes_what_several_hold() -> None:
    few = one_profile(ids=((1, 1), (1, 64), (8, 128)))
    many = one_profile(ids=((1, 1), (16, 64), (32, 128)))
    assert [profile_for([few, many], ids(batch, 64)) for batch in (1, 8, 9, 33)] == [0, 0, 1, None]
    assert profile_for([few, many], ids(8, 129)) is None
    assert profile_for([few, few], ids(3, 3)) == 0


def test_what_inputs_that_hold_a_shape_contain_decides_too() -> None:
    def sized(low: int, usual: int, high: int) -> OptimizationProfile:
        ranges = InputRange(min=(low,), opt=(usual,), max=(high,))
        fixed = InputRange(min=(1,), opt=(1,), max=(1,))
        return OptimizationProfile(name=str(usual), shapes={"size": fixed}, values={"size": ranges})

    profiles = [sized(1, 10, 100), sized(1, 90, 100)]
    assert [profile_for(profiles, {"size": np.array([n])}) for n in (20, 80, 101)] == [0, 1, None]


def test_fixed_shapes_take_themselves_alone() -> None:
    profiles = every_profile((), component(ids=(2, 3)))
    assert profile_for(profiles, ids(2, 3)) == 0
    assert profile_for(profiles, ids(2, 4)) is None
