"""What clients of a model that generates text send, and what its own library answers. Runs in the worker."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers.python_backend.generation_parameters import (
    TEXT_TENSOR,
    GenerationParameters,
    read_generation_parameters,
)
from plansmith.compilers.python_backend.generator_loading import GeneratingModel, load_generating
from plansmith.config.pipeline import PipelineOptions
from plansmith.data.synthetic import sample_texts
from plansmith.pipelines.draft import Draft

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_ASKED_WORDS = (3, 8, 16, 24)


def plan_generation(
    folder: Path,
    options: PipelineOptions,
    *,
    trust_remote_code: bool,
    allow_pickle: bool,
    task: str,
    largest_batch: int,
) -> Draft:
    """What clients of a generating model send and get: no part stands before or behind it.

    Args:
        folder: the source.
        options: what the spec says.
        trust_remote_code: whether the model's own Python code may be run.
        allow_pickle: whether pickled weights may be read.
        task: decides the model class; the configuration does where it is empty.
        largest_batch: that is served.

    Raises:
        SourceError: the model cannot be loaded, or has no tokenizer.
    """
    import torch
    import transformers

    model = load_generating(folder, options, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, task=task)
    return Draft(
        input="text",
        output="text",
        before=(),
        after=(),
        inputs=(TEXT_TENSOR,),
        outputs=(TEXT_TENSOR,),
        questions=_questions(model, largest_batch),
        ask=lambda feed: _ask(model, feed, {}),
        ask_with=lambda feed, parameters: _ask(model, feed, parameters),
        source=f"generate of transformers {transformers.__version__}, PyTorch {torch.__version__}, FP32, one by one",
    )


def _questions(model: GeneratingModel, largest: int) -> dict[str, Arrays]:
    """Sentences of many lengths in one batch; an empty text, emoji, and a text that is longer than the model reads."""
    sentences = [text for words in _ASKED_WORDS for text in sample_texts(2, words, offset=words)]
    long = sample_texts(1, 2 * model.limits.prompt_tokens)[0]
    begins = model.module.generation_config.bos_token_id is not None
    odd = ["I 💚 quiet mornings. 🌄🐦", " ", "ÀÉÎ — 漢字 — Ж", long, *([""] if _encodes_empty(model) or begins else [])]
    rows = [*sentences, *odd]
    found = {"sentences": sentences[:largest], "odd texts": odd[:largest], "one sentence": sentences[-1:]}
    found |= {f"text {place}": [rows[place]] for place in range(len(rows)) if largest < len(odd)}
    return {name: {TEXT_TENSOR.name: _column(texts)} for name, texts in found.items()}


def _encodes_empty(model: GeneratingModel) -> bool:
    return bool(model.tokenizer("")["input_ids"])


def _column(texts: list[str]) -> NDArray[np.generic]:
    import numpy as np

    column = np.empty((len(texts), 1), object)
    column[:, 0] = [text.encode() for text in texts]
    return column


def _ask(model: GeneratingModel, feed: Arrays, parameters: Mapping[str, Any]) -> Arrays:
    """As a person does it with transformers: each text alone, nothing padded.

    Raises:
        Unanswerable: a parameter is wrong.
    """
    wishes = read_generation_parameters(parameters, model.limits, model.module.generation_config.to_dict())
    texts = [text.decode() for text in feed[TEXT_TENSOR.name][:, 0].tolist()]
    return {TEXT_TENSOR.name: _column([_generated(model, text, wishes) for text in texts])}


def _generated(model: GeneratingModel, text: str, wishes: GenerationParameters) -> str:
    import torch

    room = model.limits.prompt_room(wishes.new_tokens)
    ids = model.tokenizer(text, truncation=True, max_length=room)["input_ids"]
    given: dict[str, torch.Tensor] = {}
    if ids:
        given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones((1, len(ids)), dtype=torch.int64)}
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using the model-agnostic default")  # as most models do
        options = dict(wishes.options)
        if wishes.new_tokens is not None:
            options["max_new_tokens"] = wishes.new_tokens
        if wishes.seed is not None:
            torch.manual_seed(wishes.seed)
        (answer,) = model.module.generate(**given, **options).tolist()
    new = answer[max(1, len(ids)) :] if model.limits.decodes_only else answer
    found: str = model.tokenizer.decode(new, skip_special_tokens=True)
    return found
