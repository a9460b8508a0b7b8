"""A pooled sequence moves in its length, with the answers of the model's own lists of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites.attention import POSITION_REWRITES
from plansmith.compilers.export.rewrites.registry import in_force
from plansmith.records.model import Tensor

from ...support.validation.graphs import silent
from .jobs import Sizes, job_at

if TYPE_CHECKING:
    from pathlib import Path

IDS = (Tensor(name="input_ids", dtype="int64", dims=("batch", "sequence")),)
SHAPES = {
    "traced": {"batch": 2, "sequence": 16},
    "single": {"batch": 1, "sequence": 16},
    "untraced": {"batch": 3, "sequence": 43},
}


class Base(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        from transformers import FunnelBaseModel, FunnelConfig

        super().__init__()
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32}
        self.model = FunnelBaseModel(FunnelConfig(block_sizes=[1, 1, 1], num_decoder_layers=1, **sizes, **options))

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.model(input_ids=input_ids).last_hidden_state,)


def texts(sizes: Sizes) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(sizes["sequence"])
    return {"input_ids": torch.randint(0, 40, (sizes["batch"], sizes["sequence"]), generator=generator).numpy()}


@pytest.mark.parametrize(
    "options",
    [{}, {"separate_cls": False}, {"truncate_seq": False}, {"pool_q_only": False}, {"attention_type": "factorized"}],
    ids=str,
)
def test_positions_match_lists(options: dict[str, Any]) -> None:
    """Positions from lengths are those of the lists."""
    module = Base(**options).eval()
    for length in (10, 16, 23, 40, 57):
        ids = torch.from_numpy(texts({"batch": 2, "sequence": length})["input_ids"])
        with torch.inference_mode():
            own = module(ids)[0]
            used: list[str] = []
            with in_force(module, "dynamo", used):
                torch.testing.assert_close(module(ids)[0], own)
            assert POSITION_REWRITES[0].name in used


def test_the_graph_follows_the_length(tmp_path: Path) -> None:
    exported = torch_export.export(job_at(Base(), IDS, SHAPES, tmp_path, texts), silent)
    assert [(a.exporter, a.traced) for a in exported.attempts] == [("torchscript", "traced")]
    assert exported.component.inputs[0].dims == ("batch", "sequence")
