"""Outputs of transformers models: flat, with the names of the documentation, and nothing that only training wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from plansmith.errors import UsageError
from plansmith.sources.huggingface.outputs import flat, usual

from ...support.models.architectures import IMAGE, TEXT, WRITER, load, save


def outputs_by_name(answer: Any) -> dict[str, Any]:
    return {output.name: output for output in flat(answer)}


def test_nested_answers_have_both_names() -> None:
    """Answers inside of answers have both names and are kept only in need."""
    pair = (torch.ones(2, 3), torch.zeros(2, 3))
    answer = {"logits": torch.ones(2, 4), "hidden_states": pair, "vision_output": {"pooler_output": torch.ones(2, 5)}}
    everything = outputs_by_name(answer)
    assert list(everything) == ["logits", "hidden_states_0", "hidden_states_1", "vision_output_pooler_output"]
    assert list(usual(everything)) == ["logits"]
    del answer["logits"]
    assert list(usual(outputs_by_name(answer))) == ["hidden_states_0", "hidden_states_1", "vision_output_pooler_output"]


def test_caches_and_losses_left_out() -> None:
    """Caches, losses, single numbers and empty tensors are left out."""
    tensor = torch.ones(2, 3)
    answer = {
        "loss": torch.tensor(1.0),
        "contrastive_loss": tensor,
        "past_key_values": ((tensor, tensor),),
        "mems": (tensor,),
        "temperature": torch.tensor(2.0),
        "nothing": torch.ones(2, 0),
        "intermediate_logits": tensor + 1,
        "last_hidden_state": tensor,
        "states": torch.ones(2, 3, dtype=torch.int64),
        "kept": torch.ones(2, 3, dtype=torch.bool),
    }
    assert list(usual(outputs_by_name(answer))) == ["last_hidden_state", "states", "kept"]


def test_aliased_tensor_given_once() -> None:
    """A tensor under two names is given once, but its transpose twice."""
    tensor = torch.rand(2, 2)
    answer = {"logits_per_image": tensor, "logits_per_text": tensor.T, "again": tensor}
    assert list(usual(outputs_by_name(answer))) == ["logits_per_image", "logits_per_text"]


def test_tuples_get_numbers_for_names() -> None:
    """Tuples and single tensors get numbers for names."""
    assert list(outputs_by_name((torch.ones(1), None, [torch.ones(1)]))) == ["output_0", "output_2_0"]
    assert list(outputs_by_name(torch.ones(1))) == ["output_0"]


def test_configured_caches_change_nothing(tmp_path: Path) -> None:
    """A configuration that asks for caches and hidden states changes nothing."""
    fields = {**TEXT, "use_cache": True, "output_hidden_states": True, "return_dict": False}
    live = load(save(tmp_path / "model", "GPTNeoXForCausalLM", "GPTNeoXConfig", **fields))
    assert live.output_names == ("logits",)


def test_nested_decoder_caches_off(tmp_path: Path) -> None:
    """Caches of a nested decoder are off."""
    text = {**TEXT, "bos_token_id": 97, "eos_token_id": 98, "pad_token_id": 0, "encoder_hidden_size": 32}
    fields: dict[str, Any] = {"text_config": text, "vision_config": IMAGE}
    live = load(save(tmp_path / "model", "BlipForConditionalGeneration", "BlipConfig", **fields))
    assert live.output_names == ("logits", "image_embeds")


def test_hidden_states_given_by_name(tmp_path: Path) -> None:
    """Hidden states are given when asked for by name."""
    folder = save(tmp_path / "model", "BartForConditionalGeneration", "BartConfig", **WRITER)
    live = load(folder, outputs=("encoder_hidden_states_1", "logits"))
    answer = live.ask(live.inputs.make({"batch": 2, "sequence": 9, "target": 5}))
    assert {name: array.shape for name, array in answer.items()} == {
        "encoder_hidden_states_1": (2, 9, 32),
        "logits": (2, 5, 99),
    }


def test_unknown_output_lists_known_ones(tmp_path: Path) -> None:
    """An output that there is not is refused with those that there are."""
    folder = save(tmp_path / "model", "BertModel", "BertConfig", **TEXT)
    with pytest.raises(UsageError, match="the model has no output logits") as caught:
        load(folder, outputs=("logits",))
    assert caught.value.remedy == "its outputs are last_hidden_state, pooler_output"


def test_reading_part_gets_hidden_states(tmp_path: Path) -> None:
    """A part that reads the hidden states of another gets them."""
    multimodal = {k: v for k, v in IMAGE.items() if k.startswith(("hidden", "num", "inter"))}
    fields: dict[str, Any] = {"text_config": TEXT, "image_config": IMAGE, "multimodal_config": multimodal}
    live = load(save(tmp_path / "model", "FlavaModel", "FlavaConfig", **fields))
    assert live.output_names == ("text_embeddings",)
