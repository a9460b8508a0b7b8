"""A small tokenizer, trained on plansmith's own sentences to the ids that a configuration speaks of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.data import synthetic

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_TEXTS = 200
_WORDS = 20
_PLACE = re.compile(r"^(image|video|audio|speech|vision|boi|eoi|boa|eoa).*_token_(id|index)$")
_ID = re.compile(r"_token_(id|index)$")
_USUAL_NAMES = ["input_ids", "attention_mask"]


def save_tokenizer(model: PreTrainedModel, folder: Path) -> Any:
    """Train a byte pair encoding, and save it as transformers saves a tokenizer.

    The special tokens have the ids that the configuration gives them; those that it does not name stand beside them.
    A configuration that counts no words goes with a tokenizer that has none: its family's own, which needs no files.

    Returns:
        The tokenizer.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    config = model.config.get_text_config()
    if not hasattr(config, "vocab_size"):
        own = _family(model)()
        own.save_pretrained(folder)
        return own
    places = _places(model.config, config.vocab_size)
    special = _special_tokens(config, {n for _, n in places.values()}, bidirectional=_is_bidirectional(model))
    tokenizer = Tokenizer(models.BPE(unk_token=special["unk_token"][0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_id = {number: word for word, number in (*places.values(), *special.values())}
    listed = [by_id.get(number, f"<unused{number}>") for number in range(max(by_id) + 1)]
    tokenizer.train_from_iterator(
        synthetic.sample_texts(_TEXTS, _WORDS),
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
        model_input_names=list(getattr(_family(model), "model_input_names", _USUAL_NAMES)),
        extra_special_tokens={role: word for role, (word, _) in places.items()},
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


def _special_tokens(config: PretrainedConfig, kept: set[int], *, bidirectional: bool) -> dict[str, tuple[str, int]]:
    """Word and id of each special token by its role; two roles share a token where they share an id.

    Args:
        config: of the texts.
        kept: ids that mean something else.
        bidirectional: whether texts get marks at both ends.
    """
    given = {role: getattr(config, f"{role}_id", None) for role in ("pad_token", "bos_token", "eos_token")}
    given |= {"cls_token": given["bos_token"], "sep_token": given["eos_token"]} if bidirectional else {}
    roles = {role: n for role, n in given.items() if isinstance(n, int) and 0 <= n < config.vocab_size}
    wanted = ("unk_token", "mask_token", "cls_token", "sep_token") if bidirectional else ("unk_token",)
    taken = {*roles.values(), *kept}
    for role in wanted:
        if role not in roles:
            roles[role] = next(number for number in range(config.vocab_size) if number not in taken)
            taken.add(roles[role])
    words: dict[int, str] = {}
    for role, number in roles.items():
        words.setdefault(number, f"<{role.removesuffix('_token')}>")
    return {role: (words[number], number) for role, number in roles.items()}


def _places(config: PretrainedConfig, vocabulary: int) -> dict[str, tuple[str, int]]:
    """Word and id of each token that stands where images or sounds are put into a text, by its role."""
    roles = {_ID.sub("_token", name): value for name, value in vars(config).items() if _PLACE.search(name)}
    known = {role: n for role, n in roles.items() if type(n) is int and 0 <= n < vocabulary}
    return {role: (f"<{role.removesuffix('_token')}>", n) for role, n in known.items()}


def _family(model: PreTrainedModel) -> Any:
    """The class of tokenizers that goes with a model; None where it is the general one."""
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    name = TOKENIZER_MAPPING_NAMES.get(model.config.model_type)
    return getattr(transformers, name, None) if name and name != "TokenizersBackend" else None
