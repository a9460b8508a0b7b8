"""Loading of text generation models and their tokenizers. Runs in the worker and on Triton."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.compilers.python_backend.generation_parameters import GenerationLimits
from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.sources.huggingface.models import choose_class, read_model
from plansmith.sources.huggingface.processors import read_preprocessors

_LONGEST = 1024
"""Of texts and answers where neither tokenizer nor configuration ends them."""

_MOST_TOKENIZER = 10**6
"""A tokenizer that says more has nobody who told it: transformers writes 10**30."""


@dataclass(frozen=True)
class GeneratingModel:
    """A text generation model, in FP32 and eval mode, on the CPU."""

    module: Any
    tokenizer: Any
    limits: GenerationLimits


def generates_text(folder: Path, *, trust_remote_code: bool, task: str) -> bool:
    """Whether the class selected by the task or the configuration generates text from tokens."""
    model_class, _ = choose_class(folder, trust_remote_code=trust_remote_code, task=task)
    return bool(model_class.can_generate()) and model_class.main_input_name == "input_ids"


def wants_generation(
    folder: Path, scheme: str, options: PipelineOptions | None, *, trust_remote_code: bool, task: str
) -> bool:
    """Whether a spec requests text generation, explicitly or because its model does nothing else.

    Raises:
        UsageError: it asks for generated text and its model generates none.
    """
    if options is None or options.output not in {"", "text"} or options.input not in {"", "text"}:
        return False
    able = scheme == "hf" and generates_text(folder, trust_remote_code=trust_remote_code, task=task)
    if options.output == "text" and not able:
        raise UsageError(
            "pipeline: {output: text}, and the model's class generates no text",
            remedy="name a task that generates (task: text-generation, text2text-generation), or another output",
        )
    return able


def load_generating(
    folder: Path, options: PipelineOptions, *, trust_remote_code: bool, allow_pickle: bool, task: str
) -> GeneratingModel:
    """Load weights, tokenizer and generation configuration.

    Args:
        folder: holds them.
        options: what the spec says of lengths.
        trust_remote_code: whether the model's own Python code may be run.
        allow_pickle: whether pickled weights may be read.
        task: decides the model class; the configuration does where it is empty.

    Raises:
        SourceError: something of it cannot be loaded, or there is no tokenizer.
    """
    model_class, config = choose_class(folder, trust_remote_code=trust_remote_code, task=task)
    module = read_model(model_class, config, folder, allow_pickle=allow_pickle, task=task)
    tokenizer = read_preprocessors(folder, trust_remote_code=trust_remote_code).tokenizer
    if tokenizer is None:
        raise SourceError(
            f"{folder.name} has no tokenizer, so that it takes no text",
            remedy="save it beside the model (tokenizer.save_pretrained), or leave `pipeline` out of the spec",
        )
    return GeneratingModel(module, tokenizer, _limits(module, tokenizer, options))


def _limits(module: Any, tokenizer: Any, options: PipelineOptions) -> GenerationLimits:
    decodes_only = not module.config.is_encoder_decoder
    positions, read = _positions(module.config, "decoder"), _positions(module.config, "encoder")
    tokenizer_limit = tokenizer.model_max_length
    limits = [read, tokenizer_limit if tokenizer_limit and tokenizer_limit < _MOST_TOKENIZER else None]
    prompt = min([size for size in limits if size] or [_LONGEST])
    most = positions - 1 if positions else _LONGEST
    own = module.generation_config
    return GenerationLimits(
        decodes_only=decodes_only,
        positions=positions,
        prompt_tokens=min(prompt, options.max_length or prompt),
        most_new_tokens=max(1, min(most, options.max_new_tokens or most)),
        new_tokens=own.max_new_tokens,
        length=own.max_length,
    )


def _positions(config: Any, side: str) -> int | None:
    """The maximum number of positions of the encoder or decoder; None where unlimited, as in T5."""
    part = config.get_text_config(**{side: True})
    count = getattr(part, f"max_{side}_position_embeddings", None) or getattr(part, "max_position_embeddings", None)
    return count if isinstance(count, int) else None
