"""DALI on a GPU makes of real images what it makes of them on a CPU, within the bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plansmith.config.targets import load_target, require_dali
from plansmith.pipelines.dali.parts import PIPELINE_FILE, run_pipeline, serialise_pipeline
from plansmith.pipelines.dali.recipe import difference, recipe_from_settings
from plansmith.records.model import Device
from plansmith.triton.server import environment

from ..support.pipelines.dali import EXACT, SHORTEST, real_images, settings

pytestmark = pytest.mark.gpu

DEVICES: tuple[Device, ...] = ("gpu", "cpu")


@pytest.mark.parametrize("step", [SHORTEST, EXACT], ids=lambda step: str(step["do"]))
def test_gpu_tensors_match_cpu(step: dict[str, object], tmp_path: Path) -> None:
    """Tensors of the GPU are those of the CPU within the bound."""
    site = environment.dali_folder(require_dali(load_target("local-cpu")))
    steps = [step, settings()["steps"][1]]
    recipe, images = recipe_from_settings(settings(steps=steps)), real_images()
    tensors: list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = []
    for device in DEVICES:
        file = tmp_path / device / PIPELINE_FILE
        file.parent.mkdir()
        serialise_pipeline(recipe, file, site=site, device=device, max_batch_size=1, input_name="encoded")
        tensors.append(run_pipeline(file, images, site=site, input_name="encoded", device=device))
    deviation = difference(tensors[0], tensors[1], recipe)
    assert deviation.is_within_bound, deviation
