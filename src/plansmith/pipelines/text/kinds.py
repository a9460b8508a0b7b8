"""Text model kinds, detected from the model directory's files alone: labels, tags, answers, filled masks, vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plansmith.pipelines.answer_kinds import TRANSFORMERS, RawKind
from plansmith.records.pipeline import RawOutput
from plansmith.sources.directory import read_config, read_json
from plansmith.sources.huggingface.heads import applies_modules
from plansmith.sources.huggingface.processors import has_tokenizer

_TASKS: dict[str, RawOutput] = {
    "text-classification": "labels",
    "sentiment-analysis": "labels",
    "zero-shot-classification": "labels",
    "next-sentence-prediction": "labels",
    "token-classification": "tags",
    "ner": "tags",
    "question-answering": "answer",
    "fill-mask": "fill-mask",
    "feature-extraction": "embedding",
    "sentence-similarity": "embedding",
    "text-generation": "text",
    "text2text-generation": "text",
    "summarization": "text",
    "translation": "text",
}

# How classes of transformers end; the first that fits counts, and a class without a head is named …Model.
_HEADS: tuple[tuple[str, RawOutput], ...] = (
    ("ForSequenceClassification", "labels"),
    ("ForNextSentencePrediction", "labels"),
    ("ForTokenClassification", "tags"),
    ("ForQuestionAnswering", "answer"),
    ("ForQuestionAnsweringSimple", "answer"),
    ("ForMaskedLM", "fill-mask"),
    ("ForCausalLM", "text"),
    ("LMHeadModel", "text"),
    ("ForConditionalGeneration", "text"),
    ("ForSeq2SeqLM", "text"),
    ("Model", "embedding"),
)

# What says that a classifier was trained on pairs: sentence-transformers' cross-encoders, and the names of classes.
_CROSS = ("sentence_transformers", "sbert_ce_default_activation_function")
_CROSS_FILE = "config_sentence_transformers.json"
_PAIR_LABELS = ("entail", "contradict", "equivalent", "duplicate", "paraphrase")
_PAIR_HEAD = "ForNextSentencePrediction"

TEXTS = RawKind(
    name="text",
    plural="texts",
    lacking={"onnx": "an ONNX file has no tokenizer", "timm": "timm's models read images"},
    fitting=TRANSFORMERS,
    processor="tokenizer",
    variable="tokenizer",
    takes=lambda _, folder: has_tokenizer(folder),
    output=lambda _, folder, task: text_output(folder, task),
    untold="; or name the task that the weights were trained for (`task`)",
)


def text_output(folder: Path, task: str) -> RawOutput:
    """Return the output kind of a text model, by the requested task or its configuration.

    Raises:
        SourceError: the configuration is no JSON.
    """
    if task:
        return next((output for name, output in _TASKS.items() if task == name), "tensors")
    if applies_modules(folder, task):
        return "embedding"
    named = read_config(folder).get("architectures") or [""]
    return next((output for end, output in _HEADS if str(named[0]).endswith(end)), "tensors")


def takes_pairs(folder: Path, task: str) -> bool:
    """Whether a classifier takes text pairs."""
    config = read_config(folder)
    if task == "next-sentence-prediction" or any(key in config for key in _CROSS):
        return True
    if not task and str((config.get("architectures") or [""])[0]).endswith(_PAIR_HEAD):
        return True
    file = folder / _CROSS_FILE
    if file.is_file() and read_json(file).get("model_type") == "CrossEncoder":
        return True
    names: dict[str, Any] = config.get("id2label") or {}
    return any(word in str(name).lower() for name in names.values() for word in _PAIR_LABELS)
