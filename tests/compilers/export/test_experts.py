"""A mixture of experts answers texts that reach other experts than the traced one did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites.layers import EXPERT_REWRITES, loops
from plansmith.compilers.export.rewrites.registry import in_force
from plansmith.compilers.export.torch_export import attempt_export
from plansmith.records.model import Tensor
from plansmith.sources.loaded_model import enliven

from ...support.validation.graphs import silent
from .jobs import Sizes, job_at

if TYPE_CHECKING:
    from pathlib import Path

IDS = (Tensor(name="input_ids", dtype="int64", dims=("batch", "sequence")),)
SHAPES = {
    "traced": {"batch": 2, "sequence": 16},
    "single": {"batch": 1, "sequence": 1},
    "untraced": {"batch": 3, "sequence": 23},
}
EXPERTS = 4
KINDS: dict[str, dict[str, Any]] = {
    "switch_transformers": {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 2,
        "num_experts": EXPERTS,
        "num_sparse_encoder_layers": 1,
        "expert_capacity": 5,
    },
    "nllb-moe": {
        "d_model": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "num_experts": EXPERTS,
        "encoder_sparse_step": 2,
        "moe_eval_capacity_token_fraction": -1.0,
    },
    "dbrx": {
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 1,
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": EXPERTS, "moe_top_k": 2},
    },
    "longcat_flash": {
        "hidden_size": 16,
        "num_layers": 1,
        "num_attention_heads": 2,
        "ffn_hidden_size": 24,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "head_dim": 4,
        "v_head_dim": 8,
        "moe_topk": 2,
        "n_routed_experts": EXPERTS,
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 8,
    },
    "nemotron_h": {
        "hidden_size": 16,
        "layers_block_type": ["full_attention", "moe"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 24,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_routed_experts": EXPERTS,
        "moe_intermediate_size": 8,
        "moe_shared_expert_intermediate_size": 8,
        "experts_implementation": "eager",
    },
}


class Encoded(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        from transformers import AutoConfig, AutoModel

        super().__init__()
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, vocab_size=40, **KINDS[kind])
        model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        self.model = model.get_encoder() if model.config.is_encoder_decoder else model
        enliven(self.model, 0)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state,)


def texts(sizes: Sizes) -> dict[str, Any]:
    """Ids of many kinds at the traced shape, of one kind at the others."""
    shape = sizes["batch"], sizes["sequence"]
    kinds = 40 if shape == (2, 16) else 4
    return {"input_ids": np.random.default_rng(sum(shape)).integers(3, 3 + kinds - 3, shape)}


@pytest.mark.parametrize("kind", KINDS)
def test_all_experts_keep_answers(kind: str) -> None:
    """Asking all experts gives the answers of those that were reached."""
    module = Encoded(kind).eval()
    assert loops(module)
    for sizes in SHAPES.values():
        ids = torch.from_numpy(texts(sizes)["input_ids"])
        with torch.inference_mode():
            own = module(ids)[0]
            used: list[str] = []
            with in_force(module, "dynamo", used):
                torch.testing.assert_close(module(ids)[0], own)
        assert EXPERT_REWRITES[0].name in used
    assert not any("forward" in vars(part) for part in loops(module))


@pytest.mark.parametrize("kind", ["switch_transformers", "dbrx", "longcat_flash", "nemotron_h"])
def test_the_tracer_writes_every_expert(kind: str, tmp_path: Path) -> None:
    exported = torch_export.export(job_at(Encoded(kind), IDS, SHAPES, tmp_path, texts), silent)
    assert [(a.exporter, a.traced) for a in exported.attempts] == [("torchscript", "traced")]


@pytest.mark.slow
def test_inplace_router_can_be_captured(tmp_path: Path) -> None:
    """A router that moves its weights where they are can be captured."""
    shapes = {name: sizes | {"sequence": max(sizes["sequence"], 2)} for name, sizes in SHAPES.items()}
    attempt, component = attempt_export("dynamo", job_at(Encoded("switch_transformers"), IDS, shapes, tmp_path, texts))
    assert component is not None, attempt.problem
    assert EXPERT_REWRITES[1].name in attempt.rewrites
