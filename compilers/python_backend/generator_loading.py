"""Models that generate text, loaded with their tokenizers. Runs in the worker, and on Triton."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.compilers.python_backend.generation_parameters import GenerationLimits
from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.sources.huggingface.processors import read_preprocessors
from plansmith.sources.huggingface.tasks import choose_class
from plansmith.sources.huggingface.weights import read_model

_LONGEST = 1024
"""Of texts and answers where neither tokenizer nor configuration ends them."""

_MOST_TOKENIZER = 10**6
"""A tokenizer that says more has nobody who told it: transformers writes 10**30."""


@dataclass(frozen=True)
class GeneratingModel:
    """A model that generates text, in FP32 and eval mode, on the CPU."""

    module: Any
    tokenizer: Any
    limits: GenerationLimits


def generates_text(folder: Path, *, trust_remote_code: bool, task: str) -> bool:
    """Whether the class that a task, or the configuration, chooses generates from tokens."""
    model_class, _ = choose_class(folder, trust_remote_code=trust_remote_code, task=task)
    return bool(model_class.can_generate()) and model_class.main_input_name == "input_ids"


def wants_generation(
    folder: Path, scheme: str, options: PipelineOptions | None, *, trust_remote_code: bool, task: str
) -> bool:
    """Whether a spec asks for generated text, in words or as its model does nothing else.

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
    told = tokenizer.model_max_length
    known = [read, told if told and told < _MOST_TOKENIZER else None]
    prompt = min([size for size in known if size] or [_LONGEST])
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
    """How many positions the encoder or decoder has; None where they have no end, as T5's have not."""
    part = config.get_text_config(**{side: True})
    found = getattr(part, f"max_{side}_position_embeddings", None) or getattr(part, "max_position_embeddings", None)
    return found if isinstance(found, int) else None
