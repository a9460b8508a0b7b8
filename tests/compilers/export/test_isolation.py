"""Nothing that a run or an exporter does to a model outlives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.records.model import Tensor
from plansmith.sources.loaded_model import left_as_it_was

from ...support.validation.graphs import silent
from .jobs import job_at

if TYPE_CHECKING:
    from pathlib import Path

TENSORS = (Tensor(name="x", dtype="float32", dims=("batch", 4)),)
SHAPES = {"traced": {"batch": 2}, "single": {"batch": 1}, "untraced": {"batch": 3}}


class Remembers(torch.nn.Module):
    """Keeps a table, counts its runs, and trains a part of itself when it is traced, as some wrappers do."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(1))
        self.tables: dict[int, torch.Tensor] = {}
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.tables[len(self.tables)] = self.last = x * 2
        self.calls += 1
        y = self.norm(x) + self.calls.detach() * 0
        self.norm.train()
        return (y,)


def state(module: Remembers) -> tuple[object, ...]:
    mean = module.norm.state_dict()["running_mean"].tolist()
    return module.norm.training, dict(module.tables), module.last, float(module.calls), mean


def test_state_restored_after_error() -> None:
    """Modes attributes tables and buffers are restored even after an error."""
    module = Remembers().eval()
    before = state(module)
    with left_as_it_was(module):
        module(torch.randn(3, 4))
        module(torch.randn(3, 4))
        assert state(module) != before
    assert state(module) == before
    with pytest.raises(RuntimeError), left_as_it_was(module):
        module(torch.randn(3, 5))
    assert state(module) == before


def test_model_answers_after_export(tmp_path: Path) -> None:
    """A model answers after its export as before."""
    module = Remembers().eval()
    with left_as_it_was(module):
        job = job_at(module, TENSORS, {"traced": SHAPES["traced"]}, tmp_path)
    before = state(module)
    with left_as_it_was(module), torch.inference_mode():
        own = module(torch.ones(2, 4))[0].numpy()
    torch_export.export(job, silent)
    assert state(module) == before
    with torch.inference_mode():
        np.testing.assert_array_equal(module(torch.ones(2, 4))[0].numpy(), own)
