"""Recurrences are doubled, with the answers of the loops of transformers, and move in their length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites.layers import weighted_average
from plansmith.compilers.export.rewrites.registry import in_force
from plansmith.records.model import Tensor
from plansmith.sources.loaded_model import enliven

from ...support.validation.graphs import silent
from .jobs import Sizes, job_at

if TYPE_CHECKING:
    from pathlib import Path

IDS = (Tensor(name="input_ids", dtype="int64", dims=("batch", "sequence")),)
SHAPES = {
    "traced": {"batch": 2, "sequence": 16},
    "single": {"batch": 1, "sequence": 5},
    "untraced": {"batch": 3, "sequence": 43},
    "odd": {"batch": 2, "sequence": 21},
}
SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}
ATTENDING: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "rwkv": ("weighted averages by doubling", {"attention_hidden_size": 16, "context_length": 64}),
    "mamba": ("selective scan by doubling", {"state_size": 4}),
    "mamba2": ("places counted from the front", {"num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8}),
    "recurrent_gemma": ("gated recurrence by doubling", {**ATTENDING, "num_hidden_layers": 3, "lru_width": 16}),
}


class Written(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        from transformers import AutoConfig, AutoModel

        super().__init__()
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SIZES | KINDS[kind][1])
        self.model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        enliven(self.model, 0)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.model(input_ids=input_ids, use_cache=False).last_hidden_state,)


def texts(sizes: Sizes) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(sizes["sequence"])
    return {"input_ids": torch.randint(0, 40, (sizes["batch"], sizes["sequence"]), generator=generator).numpy()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tracer_follows_recurrence_length(kind: str, tmp_path: Path) -> None:
    """The tracer follows the length of a recurrence."""
    exported = torch_export.export(job_at(Written(kind), IDS, SHAPES, tmp_path, texts), silent)
    assert {a.exporter for a in exported.attempts} == {"torchscript"}
    assert KINDS[kind][0] in exported.attempts[-1].rewrites
    assert exported.component.inputs[0].dims == ("batch", "sequence")


@pytest.mark.parametrize("kind", ["rwkv", "recurrent_gemma"])
def test_doubled_form_matches_loop(kind: str) -> None:
    """The doubled form gives the answers of the loop."""
    module = Written(kind).eval()
    for length in (1, 2, 16, 43):
        ids = torch.from_numpy(texts({"batch": 2, "sequence": length})["input_ids"])
        with torch.inference_mode():
            own = module(ids)[0]
            used: list[str] = []
            with in_force(module, "dynamo", used):
                torch.testing.assert_close(module(ids)[0], own)
        assert KINDS[kind][0] in used


def test_weighted_average_continues() -> None:
    """A weighted average goes on from what came before."""
    from transformers.models.rwkv import modeling_rwkv

    generator = torch.Generator().manual_seed(0)
    decay, first = torch.randn(6, generator=generator), torch.randn(6, generator=generator)
    key, value = torch.randn(2, 3, 9, 6, generator=generator).unbind(0)
    loop: Any = modeling_rwkv.rwkv_linear_attention_cpu
    _, state = loop(decay, first, key, value, return_state=True)
    expected = loop(decay, first, 9 * key, value, state=state)
    result = weighted_average(decay, first, 9 * key, value, state=state)
    torch.testing.assert_close(result, expected)
