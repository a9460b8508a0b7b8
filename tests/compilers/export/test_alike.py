"""A graph with the experts of the traced text alone is refused by a text of one token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plansmith.compilers.export.exporters import alike, mixes_experts
from plansmith.compilers.export.torch_export import attempt_export
from plansmith.records.model import Tensor

from .jobs import Sizes, job_at

if TYPE_CHECKING:
    from pathlib import Path

IDS = (Tensor(name="input_ids", dtype="int64", dims=("batch", "sequence")),)
SHAPES = {
    "traced": {"batch": 2, "sequence": 16},
    "single": {"batch": 1, "sequence": 24},
    "untraced": {"batch": 3, "sequence": 23},
}


class Mixture(torch.nn.Module):
    """Goes through the experts that got a token, in a loop of no known name."""

    num_experts = 3

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(30, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(self.num_experts))

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states = self.embedding(input_ids)
        chosen = input_ids % self.num_experts
        total = torch.zeros_like(states)
        for number in torch.unique(chosen):
            total = total + (chosen == number)[..., None] * self.layers[int(number)](states)
        return (total,)


def texts(sizes: Sizes) -> dict[str, Any]:
    return {"input_ids": np.random.default_rng(1).integers(2, 30, (sizes["batch"], sizes["sequence"]))}


def test_experts_of_one_text_insufficient(tmp_path: Path) -> None:
    """The experts that one text reaches make no graph for all texts."""
    job = job_at(Mixture(), IDS, SHAPES, tmp_path, texts)
    assert mixes_experts(job.module)
    _, accepted = attempt_export("torchscript", job)
    assert accepted is not None

    same = alike(job.probes[0], lambda feed: {"y": job.module(torch.from_numpy(feed["input_ids"]))[0].detach().numpy()})
    assert same is not None
    assert len(np.unique(same.feed["input_ids"])) == 1
    attempt, refused = attempt_export("torchscript", replace(job, probes=[*job.probes, same]))
    assert refused is None
    assert "at one token everywhere (batch 2, " in str(attempt.problem)


def test_refused_text_is_no_probe(tmp_path: Path) -> None:
    """A text that the model does not take is no probe."""
    probe = job_at(Mixture(), IDS, SHAPES, tmp_path, texts).probes[0]

    def refuse(_: Mapping[str, Any]) -> dict[str, Any]:
        raise ValueError("no two tokens alike")

    assert alike(probe, refuse) is None
    assert alike(probe, lambda _: {"y": np.array([np.nan])}) is None
    assert alike(replace(probe, feed={"mask": np.ones((2, 3), np.int64)}), lambda _: {}) is None
