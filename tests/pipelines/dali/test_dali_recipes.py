"""What DALI cannot do as the source does is refused before anything is made, with what to type."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.errors import EngineError
from plansmith.pipelines.dali.agreement import MEAN_LEVELS, QUANTILE_LEVELS, difference
from plansmith.pipelines.dali.parts import ENCODED, encoded_part
from plansmith.pipelines.dali.recipe import recipe_from_settings
from plansmith.pipelines.draft import run_parts, write_part
from plansmith.records.model import Tensor

from ...support.pipelines.dali import CROP, EXACT, settings
from ..served.test_encoded import JPEG, request

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "box": ({"steps": [{**EXACT, "filter": "box"}]}, "resize with box (it knows bilinear, bicubic, lanczos)"),
    "nearest": ({"steps": [{**EXACT, "filter": "nearest"}]}, "resize with nearest"),
    "grey": ({"mode": "L", "order": [0]}, "read images as L"),
    "order": ({"order": [0, 0, 0]}, "put channels into the order [0, 0, 0]"),
    "double": ({"dtype": "float64"}, "make tensors of float64"),
    "no size": ({"steps": [{"do": "shortest", "side": 9, "filter": "bicubic"}]}, "sizes of their own"),
    "between": (
        {"steps": [{"do": "ratio", "height": 9, "width": 9, "longest": 0.5, "filter": "bicubic"}, CROP]},
        "by a ratio between",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_dali_cannot_do_is_refused_with_the_way_out(name: str) -> None:
    changes, words = REFUSED[name]
    with pytest.raises(EngineError) as refused:
        recipe_from_settings(settings(**changes))
    assert words in refused.value.message
    assert "preprocessing: python" in refused.value.remedy


def test_all_that_dali_cannot_do_is_told_at_once() -> None:
    with pytest.raises(EngineError) as refused:
        recipe_from_settings(settings(dtype="int8", steps=[{**EXACT, "filter": "hamming"}]))
    assert refused.value.message == (
        "preprocessing: dali: DALI cannot resize with hamming (it knows bilinear, bicubic, lanczos);"
        " nor make tensors of int8"
    )


def test_the_pipeline_makes_the_models_input() -> None:
    recipe = recipe_from_settings(settings(dtype="float16"))
    assert recipe.tensor == Tensor(name="x", dtype="float16", dims=("batch", 3, 224, 224))


def test_a_difference_is_told_in_levels_of_the_image_where_it_is_largest() -> None:
    recipe = recipe_from_settings(settings(std=[0.5, 0.5, 0.5]))
    ours = np.zeros((2, 3, 10, 10), np.float32)
    theirs = ours.copy()
    theirs[1] += 1 / 255 / 0.5  # a level
    found = difference(ours, theirs, recipe)
    assert (found.mean_levels, found.quantile_levels) == pytest.approx((1.0, 1.0))
    assert not found.is_within_bound
    theirs[1, :, 1:] = 0
    assert difference(ours, theirs, recipe).mean_levels == pytest.approx(0.1)
    assert difference(ours, theirs, recipe).is_within_bound
    assert difference(ours[:0], theirs[:0], recipe).is_within_bound
    assert MEAN_LEVELS < QUANTILE_LEVELS < 5
    with pytest.raises(ValueError, match=r"\[1, 3, 10, 10\]"):
        difference(ours[:1], theirs, recipe)


def test_a_few_values_far_off_are_found() -> None:
    recipe = recipe_from_settings(settings())
    ours = np.zeros((1, 3, 10, 10), np.float32)
    theirs = ours.copy()
    theirs[0, 0, 0, :4] = 1.0
    found = difference(ours, theirs, recipe)
    assert found.quantile_levels > QUANTILE_LEVELS
    assert not found.is_within_bound


def test_the_part_before_dali_is_written_and_knows_the_steps(tmp_path: Path) -> None:
    draft = encoded_part(recipe_from_settings(settings(most_pixels=90_000)))
    part = write_part(draft, "1.26.4", tmp_path)
    assert (part.name, part.backend, part.files[0]) == ("encoded", "python", "model.py")
    assert {"plansmith_served/encoded.py", "plansmith_served/encoded_files.py"} < {*part.files}
    assert (tmp_path / "encoded" / "requirements.txt").read_text() == "numpy==1.26.4\n"
    known = run_parts([draft], tmp_path, request(JPEG))
    assert known[ENCODED.name].tobytes() == JPEG
    assert importlib.util.find_spec("nvidia.dali") is None, "DALI is not in this environment"
