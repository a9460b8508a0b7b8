"""A small tokenizer, trained on plansmith's own sentences to the ids that a configuration speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.data import drawn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_TEXTS = 200
_WORDS = 20
_USUAL_NAMES = ["input_ids", "attention_mask"]


def save_tokenizer(model: PreTrainedModel, folder: Path) -> Any:
    """Train a byte pair encoding, and save it as transformers saves a tokenizer.

    The special tokens have the ids that the configuration gives them; those that it does not name stand beside them.

    Returns:
        The tokenizer.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    config = model.config.get_text_config()
    special = _special_tokens(config, bidirectional=_is_bidirectional(model))
    tokenizer = Tokenizer(models.BPE(unk_token=special["unk_token"][0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_id = {number: word for word, number in special.values()}
    listed = [by_id.get(number, f"<unused{number}>") for number in range(max(by_id) + 1)]
    tokenizer.train_from_iterator(
        drawn.sample_texts(_TEXTS, _WORDS),
        trainers.BpeTrainer(vocab_size=config.vocab_size, special_tokens=listed, show_progress=False),
    )
    if "cls_token" in special:
        (first, _), (last, _) = special["cls_token"], special["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[special["cls_token"], special["sep_token"]],
        )
    saved = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_input_names=_input_names(model),
        **{role: word for role, (word, _) in special.items()},
    )
    saved.save_pretrained(folder)
    return saved


def _is_bidirectional(model: PreTrainedModel) -> bool:
    """Whether texts get marks at both ends: all but decoders have them."""
    from transformers.models.auto import modeling_auto

    kind = type(model.config.get_text_config())
    decodes = kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    return not decodes or kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING or bool(model.config.is_encoder_decoder)


def _special_tokens(config: PretrainedConfig, *, bidirectional: bool) -> dict[str, tuple[str, int]]:
    """Word and id of each special token by its role; two roles share a token where they share an id."""
    given = {role: getattr(config, f"{role}_id", None) for role in ("pad_token", "bos_token", "eos_token")}
    given |= {"cls_token": given["bos_token"], "sep_token": given["eos_token"]} if bidirectional else {}
    roles = {role: number for role, number in given.items() if isinstance(number, int) and number >= 0}
    wanted = ("unk_token", "mask_token", "cls_token", "sep_token") if bidirectional else ("unk_token",)
    taken = {*roles.values()}
    for role in wanted:
        if role not in roles:
            roles[role] = next(number for number in range(config.vocab_size) if number not in taken)
            taken.add(roles[role])
    words: dict[int, str] = {}
    for role, number in roles.items():
        words.setdefault(number, f"<{role.removesuffix('_token')}>")
    return {role: (words[number], number) for role, number in roles.items()}


def _input_names(model: PreTrainedModel) -> list[str]:
    """What the tokenizer of this family gives to a model."""
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    name = TOKENIZER_MAPPING_NAMES.get(model.config.model_type)
    family = getattr(transformers, name, None) if name and name != "TokenizersBackend" else None
    return list(getattr(family, "model_input_names", _USUAL_NAMES))
