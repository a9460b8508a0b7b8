"""A view holds the versions that the newest configuration can serve, as Triton serves all or none of those it loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.config.triton import TritonOptions
from plansmith.records.engine import BuildSpec, OptimizationProfile
from plansmith.records.model import AxisRange, InputRange
from plansmith.records.release import Manifest
from plansmith.triton.repository.release import misfit, narrowings
from plansmith.triton.repository.repository import ModelRepository, versions

from ...support.faults.packages import MODEL, draft_of, publish, write_package
from ...support.faults.wholeness import repository_problems, shown_versions

RANGE = {"input_ids": InputRange(min=(1, 1), opt=(8, 8), max=(32, 64))}


@pytest.fixture
def draft(tmp_path: Path) -> Manifest:
    return draft_of(write_package(tmp_path / "package", "0"))


def with_package(draft: Manifest, **fields: Any) -> Manifest:
    """The same release with another package."""
    return draft.model_copy(update={"package": draft.package.model_copy(update=fields)})


def with_profiles(draft: Manifest, count: int) -> Manifest:
    """The same release, of a plan with some profiles."""
    profiles = tuple(OptimizationProfile(name=str(number), shapes=RANGE) for number in range(count))
    engine = draft.engine.model_copy(update={"build": BuildSpec(profiles=profiles)})
    return draft.model_copy(update={"engine": engine})


def test_release_fits_smaller_batches_only(draft: Manifest) -> None:
    """A release stands under a configuration of smaller batches, and not of larger ones."""
    smaller = with_package(draft, max_batch_size=4)
    assert misfit(draft, draft) is None
    assert misfit(draft, smaller) is None
    assert misfit(draft, with_package(draft, max_batch_size=0)) is None
    assert misfit(smaller, draft) == "its largest batch is 4, and 32 in version 0"


def test_narrower_release_says_what_is_less(draft: Manifest) -> None:
    """A release that is made for shorter inputs or smaller batches says so, and one that is made for more does not."""
    axes = {"batch": AxisRange(min=1, opt=8, max=32), "length": AxisRange(min=1, opt=8, max=64)}
    before = draft.model_copy(update={"onnx": draft.onnx.model_copy(update={"axes": axes})})
    axes = {"batch": AxisRange(min=1, opt=8, max=16), "length": AxisRange(min=8, opt=8, max=64)}
    after = with_package(before, max_batch_size=16)
    after = after.model_copy(update={"onnx": draft.onnx.model_copy(update={"axes": axes})})
    assert narrowings(before, after) == ["length 8 to 64 instead of 1 to 64", "batches of 16 instead of 32"]
    assert narrowings(after, before) == narrowings(before, before) == []


def test_release_fits_equal_reshape(draft: Manifest) -> None:
    """A release stands under a configuration that reshapes as its own."""
    reshaped = with_package(draft, reshaped={"logits": ("batch", 1, 2)})
    assert misfit(reshaped, reshaped) is None
    assert misfit(draft, reshaped) == misfit(reshaped, draft) == "other inputs or outputs than version 0"


def test_release_fits_named_files_and_profiles(draft: Manifest) -> None:
    """A release stands under a configuration that names its files and profiles."""
    plan = with_package(draft, model_files=("model.plan",))
    plans = with_package(draft, model_files=("model_86.plan",), capability_files={"8.6": "model_86.plan"})
    folder = with_package(draft, model_files=("model.onnx/model.onnx", "model.onnx/weights"))
    assert misfit(folder, draft) is None
    assert misfit(plan, draft) == misfit(plan, plans) == "other files than version 0"
    assert misfit(with_profiles(draft, 2), with_profiles(draft, 1)) is None
    assert misfit(with_profiles(draft, 1), with_profiles(draft, 2)) == "fewer optimization profiles than version 0"


def test_view_omits_smaller_batches_and_says(tmp_path: Path) -> None:
    """A view leaves out what takes smaller batches and says so."""
    root = tmp_path / "repository"
    for number, batch in enumerate((8, 32, 16)):
        package = write_package(tmp_path / f"package-{number}", str(number))
        publish(root, package, with_package(draft_of(package), max_batch_size=batch))
    assert shown_versions(root, MODEL) == (2, 3)
    assert repository_problems(root) == []
    repository = ModelRepository(root)
    assert repository.why_hidden(MODEL, 1, repository.newest(MODEL)) == "its largest batch is 8, and 16 in version 3"


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        (None, [3]),
        ({"latest": {"num_versions": 2}}, [2, 3]),
        ({"all": {}}, [1, 2, 3]),
        ({"specific": {"versions": [2, 7]}}, [2]),
    ],
)
def test_newest_policy_decides_served_versions(
    policy: dict[str, Any] | None, served: list[int], tmp_path: Path
) -> None:
    """The versions that are said to serve are those of the newest policy."""
    root = tmp_path / "repository"
    for number in range(3):
        package = write_package(tmp_path / f"package-{number}", str(number))
        triton = TritonOptions.model_validate({"version_policy": policy}).model_dump(mode="json")
        spec = {"triton": triton} if number == 2 else {}  # the first are older than the section
        publish(root, package, draft_of(package).model_copy(update={"spec": spec}))
    assert [version.number for version in versions(ModelRepository(root), MODEL) if version.serves] == served
