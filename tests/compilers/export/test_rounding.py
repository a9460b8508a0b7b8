"""A model that amplifies roundings has a wider tolerance, and a wrong graph does not fit into it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from plansmith.compilers.export import exporters, torch_export
from plansmith.records.model import Precision, Rounding, Tensor
from plansmith.validation.comparison import TOLERANCES, widened

from ...support.validation.graphs import silent
from .jobs import job_at

if TYPE_CHECKING:
    from pathlib import Path

FP32 = TOLERANCES[Precision.FP32]
TENSORS = (Tensor(name="x", dtype="float32", dims=("batch", 64)),)
SHAPES = {"traced": {"batch": 2}, "single": {"batch": 1}, "untraced": {"batch": 3}}


class Sums(torch.nn.Module):
    """Products, of which only the difference from their mean is left, divided by how small it is made."""

    def __init__(self, offset: float, *, wrong: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(64, 512), torch.nn.Linear(512, 64)
        self.offset, self.wrong = offset, wrong

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.second(torch.relu(self.first(x)) + self.offset)
        if self.wrong and torch.onnx.is_in_onnx_export():
            y = y * 1.01
        return (y - self.second(torch.full_like(self.first(x), self.offset)),)


def test_plain_model_keeps_tolerance(tmp_path: Path) -> None:
    """A plain model keeps the tolerance."""
    measurement = exporters.measure(job_at(Sums(0), TENSORS, SHAPES, tmp_path))
    assert 1e-8 < measurement["y"].max_relative < 1e-5
    assert widened(FP32, measurement["y"]) == FP32


def test_amplifying_model_gets_wider_tolerance(tmp_path: Path) -> None:
    """An amplifying model gets several times its own rounding."""
    job = job_at(Sums(100), TENSORS, SHAPES, tmp_path)
    measurement = exporters.measure(job)
    allowed = widened(FP32, measurement["y"])
    assert FP32.quantile_relative < allowed.quantile_relative <= 1e-3
    assert allowed.min_cosine >= 0.9999
    exported = torch_export.export(replace(job, rounding=measurement), silent)
    assert exported.attempts[-1].problem is None


@pytest.mark.slow
def test_wrong_amplifying_graph_passed_over(tmp_path: Path) -> None:
    """A wrong graph of an amplifying model is still passed over."""
    job = job_at(Sums(100, wrong=True), TENSORS, SHAPES, tmp_path)
    exported = torch_export.export(replace(job, rounding=exporters.measure(job)), silent)
    first, last = exported.attempts[0], exported.attempts[-1]
    assert first.problem is not None
    assert first.problem.startswith("differs from PyTorch at traced (batch 2): y: maximum error")
    assert (last.exporter, last.problem) == ("dynamo", None)


@pytest.mark.parametrize(("offset", "asked"), [(0, [2]), (100, [2, 3])], ids=["plain", "amplifying"])
def test_rounding_asked_at_one_shape_unless_it_matters(offset: float, asked: list[int], tmp_path: Path) -> None:
    """The smallest shape tells how rounding moves a plain model; an amplifying one is asked at the others, too."""
    module, sizes = Sums(offset), []
    job = job_at(module, TENSORS, SHAPES, tmp_path)
    module.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0])))
    exporters.measure(job)
    assert sizes == asked


def test_wider_tolerance_is_bounded() -> None:
    """The wider tolerance has an end."""
    allowed = widened(FP32, Rounding(max_relative=1, quantile_relative=1, cosine=0.5))
    assert (allowed.max_relative, allowed.quantile_relative, allowed.min_cosine) == (1e-3, 1e-3, 0.9999)


def test_weights_survive_measurement(tmp_path: Path) -> None:
    """Weights are as they were after the measurement."""
    module = Sums(100)
    before = {name: weight.detach().numpy().copy() for name, weight in module.named_parameters()}
    exporters.measure(job_at(module, TENSORS, SHAPES, tmp_path))
    for name, weight in module.named_parameters():
        np.testing.assert_array_equal(weight.detach().numpy(), before[name])


class Remembers(Sums):
    """It is another model for good once it was asked about few samples, as BigBird is after a short text."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if x.shape[0] < 3:
            self.offset = 1.0
        return super().forward(x)


def test_measurement_leaves_no_trace(tmp_path: Path) -> None:
    """The measurement leaves nothing in the model of what it saw."""
    model = Remembers(0)
    job = job_at(model, TENSORS, SHAPES, tmp_path)
    model.offset = 0.0
    exporters.measure(job)
    assert model.offset == 0
