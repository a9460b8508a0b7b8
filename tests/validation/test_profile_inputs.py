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
    inputs = tuple(Tensor(name=name, dtype="int64", dims=sizes) for name, sizes in dims.items())
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


def test_corner_cut_from_nearest_case(tmp_path: Path) -> None:
    """A corner is cut out of the case that needs the least change."""
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 9, 100), text(3, 4, 1), text(8, 8, 500))
    profile = one_profile(ids=((1, 2), (2, 4), (2, 9)), mask=((1, 2), (2, 4), (2, 9)))
    feeds = [case.feed["ids"].tolist() for case in profile_cases([profile], cases, TEXT)]
    assert feeds == [[[1, 2]], [[1, 2, 3, 4], [5, 6, 7, 8]], text(2, 9, 100)["ids"].tolist()]


def test_small_case_repeats_samples_and_tokens(tmp_path: Path) -> None:
    """A case that is too small repeats samples and tokens."""
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 3))
    profile = one_profile(ids=((3, 5), (3, 5), (3, 5)), mask=((3, 5), (3, 5), (3, 5)))
    (case,) = profile_cases([profile], cases, TEXT)
    assert case.feed["ids"].tolist() == [[1, 2, 3, 1, 2], [4, 5, 6, 4, 5], [1, 2, 3, 1, 2]]
    assert case.feed["mask"].shape == (3, 5)
    assert case.shapes == "ids 3x5, mask 3x5"


def test_left_padded_texts_cut_at_beginning(tmp_path: Path) -> None:
    """Texts that begin with padding are cut at their beginning."""
    feed = text(2, 6)
    feed["mask"][:, :3] = 0
    cases = stored(tmp_path, ("batch", "sequence"), feed)
    profile = one_profile(ids=((2, 2), (2, 4), (2, 6)), mask=((2, 2), (2, 4), (2, 6)))
    least, usual, _ = profile_cases([profile], cases, TEXT, "mask")
    assert least.feed["ids"].tolist() == [[5, 6], [11, 12]]
    assert least.feed["mask"].all()
    assert usual.feed["mask"].tolist() == [[0, 1, 1, 1]] * 2
    first, *_ = profile_cases([profile], cases, TEXT)  # without a mask nothing is known of padding
    assert first.feed["ids"].tolist() == [[1, 2], [7, 8]]


def test_equal_corners_come_once(tmp_path: Path) -> None:
    """Corners that are the same come once."""
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 3))
    profile = one_profile(ids=((1, 3), (2, 3), (2, 3)), mask=((1, 3), (2, 3), (2, 3)))
    assert [case.corner for case in profile_cases([profile], cases, TEXT)] == ["min", "opt"]
    assert [case.corner for case in profile_cases([profile], cases, TEXT, corners=("opt",))] == ["opt"]


def test_shape_input_follows_profile(tmp_path: Path) -> None:
    """An input that holds a shape holds what the profile says."""
    graph = component(image=("batch", 1, "height", "width"), size=(2,))
    feed = {"image": np.arange(2 * 64).reshape(2, 1, 8, 8), "size": np.array([8, 8])}
    cases = StoredCases(
        (store_case("a", {"batch": 2, "height": 8, "width": 8}, feed, {"y": np.zeros(2)}, tmp_path / "r"),), tmp_path
    )
    profile = one_profile(image=((1, 1, 4, 4), (2, 1, 8, 8), (2, 1, 16, 8))).model_copy(
        update={"values": {"size": InputRange(min=(4, 4), opt=(8, 8), max=(32, 32))}}
    )
    results = list(profile_cases([profile], cases, graph))
    assert [case.feed["size"].tolist() for case in results] == [[4, 4], [8, 8], [32, 32]]
    assert [case.feed["size"].dtype for case in results] == [np.int64] * 3
    assert (results[2].feed["image"][:, :, :8] == results[2].feed["image"][:, :, 8:]).all()


def test_fixed_graph_has_one_corner(tmp_path: Path) -> None:
    """A graph of fixed shapes has one corner."""
    graph = component(ids=(2, 3))
    feed = {"ids": np.arange(6).reshape(2, 3)}
    cases = StoredCases((store_case("a", {}, feed, {"y": np.zeros(2)}, tmp_path / "r"),), tmp_path)
    (case,) = profile_cases((), cases, graph)
    assert (case.profile, case.name, case.feed["ids"].tolist()) == (0, FIXED, feed["ids"].tolist())


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (one_profile(ids=((1, 3), (1, 4), (1, 5))), r"profile 'default' gives ids 1x3 at its min, .*\[batch, 7\]"),
        (one_profile(ids=((1,), (1,), (1,))), r"gives ids 1 at its min"),
        (one_profile(), r"profile 'default' says nothing of ids \[batch, 7\]"),
    ],
)
def test_unfitting_profile_refused(profile: OptimizationProfile, said: str, tmp_path: Path) -> None:
    """A profile that does not fit the graph is refused."""
    cases = stored(tmp_path, ("batch", "sequence"), text(2, 7))
    with pytest.raises(UsageError, match=said) as raised:
        list(profile_cases([profile], cases, component(ids=("batch", 7))))
    assert "tensorrt: {profiles: ...}" in raised.value.remedy


def ids(*shape: int) -> dict[str, Any]:
    return {"ids": np.zeros(shape, np.int64)}


def test_nearest_opt_profile_takes_shared() -> None:
    """The profile with the nearest opt takes what several hold."""
    few = one_profile(ids=((1, 1), (1, 64), (8, 128)))
    many = one_profile(ids=((1, 1), (16, 64), (32, 128)))
    assert [profile_for([few, many], ids(batch, 64)) for batch in (1, 8, 9, 33)] == [0, 0, 1, None]
    assert profile_for([few, many], ids(8, 129)) is None
    assert profile_for([few, few], ids(3, 3)) == 0


def test_shape_input_values_decide_too() -> None:
    """What inputs that hold a shape contain decides too."""

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
