"""A timm model is loaded from a directory as timm would load it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from plansmith.sources import timm as source

NAME = "test_vit"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small model with random weights, as timm saves it."""
    source.make_random(NAME, tmp_path, seed=0)
    return tmp_path


def test_answers_as_saved_model(saved: Path) -> None:
    """A loaded model answers as the one that timm loads."""
    loaded, expected = source.load(saved, task=""), timm.create_model(f"local-dir:{saved}", pretrained=True).eval()
    feed = {"pixel_values": np.random.default_rng(0).random((2, 3, 160, 160), dtype=np.float32)}
    (answer,) = loaded.ask(feed).values()
    with torch.inference_mode():
        assert np.array_equal(answer, expected(torch.from_numpy(feed["pixel_values"])).numpy())


def test_parameters_beside_checkpoint_initialized(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that a checkpoint lacks is initialised as timm does it, not left as the memory was."""
    weights = load_file(saved / "model.safetensors")
    save_file({name: tensor for name, tensor in weights.items() if name != "norm.weight"}, saved / "model.safetensors")
    load = torch.nn.Module.load_state_dict
    monkeypatch.setattr(
        torch.nn.Module, "load_state_dict", lambda module, state, **_: load(module, state, strict=False)
    )
    loaded = source.load(saved, task="").module
    assert torch.equal(loaded.state_dict()["model.norm.weight"], torch.ones_like(weights["norm.weight"]))
