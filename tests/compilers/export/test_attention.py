"""What a window hides altogether gets no weight, as from fused attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites.attention import weights_of_seen
from plansmith.compilers.export.rewrites.registry import in_force
from plansmith.records.model import Tensor
from plansmith.sources.loaded_model import enliven

from ...support.validation.graphs import silent
from .jobs import Sizes, job_at

if TYPE_CHECKING:
    from pathlib import Path

NAME = "no weight on what is hidden"
WINDOW = 4
TENSORS = tuple(Tensor(name=n, dtype="int64", dims=("batch", "sequence")) for n in ("input_ids", "attention_mask"))
SHAPES = {
    "traced": {"batch": 2, "sequence": 16},
    "single": {"batch": 1, "sequence": 5},
    "untraced": {"batch": 3, "sequence": 23},
}


class Windowed(torch.nn.Module):
    def __init__(self, window: int | None = WINDOW) -> None:
        from transformers import MistralConfig, MistralModel

        super().__init__()
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
        self.model = MistralModel(MistralConfig(sliding_window=window, **sizes, **heads))
        enliven(self.model, 0)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output = self.model(input_ids=tensors[0], attention_mask=tensors[1], use_cache=False)
        return (output.last_hidden_state,)


def texts(sizes: Sizes) -> dict[str, Any]:
    """Token ids, and a mask that leaves three tokens of every text."""
    generator = torch.Generator().manual_seed(sizes["sequence"])
    ids = torch.randint(3, 40, (sizes["batch"], sizes["sequence"]), generator=generator)
    mask = (torch.arange(sizes["sequence"]) < 3).to(torch.int64).expand(ids.shape)
    return {"input_ids": ids.numpy(), "attention_mask": mask.numpy().copy()}


def test_padding_matches_fused_attention(tmp_path: Path) -> None:
    """Padding beyond the window answers as with fused attention."""
    module = Windowed()
    assert module.model.config._attn_implementation == "sdpa"
    job = job_at(module, TENSORS, SHAPES, tmp_path, texts)
    module.model.set_attn_implementation("eager")
    exported = torch_export.export(job, silent)
    assert [a.exporter for a in exported.attempts] == ["torchscript"]
    assert NAME in exported.attempts[0].rewrites


@pytest.mark.parametrize(
    ("window", "kind", "is_used"), [(None, "eager", False), (WINDOW, "sdpa", False), (WINDOW, "eager", True)]
)
def test_full_attention_model_stays(window: int | None, kind: str, is_used: bool) -> None:
    """A model that sees every text stays as it is."""
    module = Windowed(window)
    module.model.set_attn_implementation(kind)
    used: list[str] = []
    with in_force(module, "dynamo", used):
        module.model.norm(torch.ones(1, 2, 16))
        assert NAME not in used  # nothing has attended to anything
        module(*(torch.from_numpy(ids) for ids in texts({"batch": 1, "sequence": 5}).values()))
    assert (NAME in used) == is_used


def test_other_softmaxes_stay() -> None:
    """Other softmaxes stay as they are."""
    assert weights_of_seen(torch.zeros(2, 3), -1) is NotImplemented
    assert weights_of_seen(torch.zeros(2, 3, 4, 5), 1) is NotImplemented
