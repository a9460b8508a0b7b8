"""What DALI cannot do as the source does is refused before anything is made, with what to type."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.errors import EngineError
from plansmith.pipelines.dali.parts import ENCODED, encoded_part
from plansmith.pipelines.dali.recipe import MEAN_LEVELS, QUANTILE_LEVELS, difference, recipe_from_settings
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
def test_unsupported_step_names_way_out(name: str) -> None:
    """What DALI cannot do is refused with the way out."""
    changes, fragment = REFUSED[name]
    with pytest.raises(EngineError) as refused:
        recipe_from_settings(settings(**changes))
    assert fragment in refused.value.message
    assert "preprocessing: python" in refused.value.remedy


def test_unsupported_steps_told_at_once() -> None:
    """All that DALI cannot do is told at once."""
    with pytest.raises(EngineError) as refused:
        recipe_from_settings(settings(dtype="int8", steps=[{**EXACT, "filter": "hamming"}]))
    assert refused.value.message == (
        "preprocessing: dali: DALI cannot resize with hamming (it knows bilinear, bicubic, lanczos);"
        " nor make tensors of int8"
    )


def test_pipeline_makes_model_input() -> None:
    """The pipeline makes the model's input."""
    recipe = recipe_from_settings(settings(dtype="float16"))
    assert recipe.tensor == Tensor(name="x", dtype="float16", dims=("batch", 3, 224, 224))


def test_difference_told_in_image_levels() -> None:
    """A difference is told in levels of the image where it is largest."""
    recipe = recipe_from_settings(settings(std=[0.5, 0.5, 0.5]))
    ours = np.zeros((2, 3, 10, 10), np.float32)
    theirs = ours.copy()
    theirs[1] += 1 / 255 / 0.5  # a level
    deviation = difference(ours, theirs, recipe)
    assert (deviation.mean_levels, deviation.quantile_levels) == pytest.approx((1.0, 1.0))
    assert not deviation.is_within_bound
    theirs[1, :, 1:] = 0
    assert difference(ours, theirs, recipe).mean_levels == pytest.approx(0.1)
    assert difference(ours, theirs, recipe).is_within_bound
    assert difference(ours[:0], theirs[:0], recipe).is_within_bound
    assert MEAN_LEVELS < QUANTILE_LEVELS < 5
    with pytest.raises(ValueError, match=r"\[1, 3, 10, 10\]"):
        difference(ours[:1], theirs, recipe)


def test_distant_values_are_found() -> None:
    """A few values far off are found."""
    recipe = recipe_from_settings(settings())
    ours = np.zeros((1, 3, 10, 10), np.float32)
    theirs = ours.copy()
    theirs[0, 0, 0, :4] = 1.0
    deviation = difference(ours, theirs, recipe)
    assert deviation.quantile_levels > QUANTILE_LEVELS
    assert not deviation.is_within_bound


def test_part_before_dali_knows_steps(tmp_path: Path) -> None:
    """The part before DALI is written and knows the steps."""
    draft = encoded_part(recipe_from_settings(settings(most_pixels=90_000)))
    part = write_part(draft, "1.26.4", tmp_path)
    assert (part.name, part.backend, part.files[0]) == ("encoded", "python", "model.py")
    assert {"plansmith_served/encoded.py", "plansmith_served/encoded_files.py"} < {*part.files}
    assert (tmp_path / "encoded" / "requirements.txt").read_text() == "numpy==1.26.4\n"
    values = run_parts([draft], tmp_path, request(JPEG))
    assert values[ENCODED.name].tobytes() == JPEG
    assert importlib.util.find_spec("nvidia.dali") is None, "DALI is not in this environment"
