"""What a model makes of texts, told by its directory's files alone: labels, tags, an answer, an embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from plansmith.errors import SourceError, UsageError
from plansmith.pipeline_options import PipelineOptions, RawOutput
from plansmith.sources.directory import read_config
from plansmith.sources.heads import applies_modules, read_json
from plansmith.sources.preprocessors import has_tokenizer

_TASKS: dict[str, RawOutput] = {
    "text-classification": "labels",
    "sentiment-analysis": "labels",
    "zero-shot-classification": "labels",
    "next-sentence-prediction": "labels",
    "token-classification": "tags",
    "ner": "tags",
    "question-answering": "answer",
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


def text_output(folder: Path, task: str) -> RawOutput:
    """What a model that reads texts answers with, by its task or, where none is asked for, its configuration.

    Raises:
        SourceError: the configuration is no JSON.
    """
    if task:
        return next((output for name, output in _TASKS.items() if task == name), "tensors")
    if applies_modules(folder, task):
        return "embedding"
    named = read_config(folder).get("architectures") or [""]
    return next((output for end, output in _HEADS if str(named[0]).endswith(end)), "tensors")


def refuse_text(
    scheme: Literal["hf", "timm", "onnx"], folder: Path, options: PipelineOptions, *, task: str
) -> RawOutput:
    """See, before anything heavy is loaded, that a source can have texts as its pipeline's input.

    Args:
        scheme: of the source.
        folder: its directory; of an ONNX file, the one that it lies in.
        options: what the spec says of the pipeline.
        task: that was asked for; empty: none.

    Returns:
        What the pipeline answers with.

    Raises:
        UsageError: the kind of source, or of model, does not fit what the spec asks for.
        SourceError: there is no tokenizer, or the configuration is no JSON.
    """
    if scheme != "hf":
        what = "an ONNX file has no tokenizer" if scheme == "onnx" else "timm's models read images"
        raise UsageError(
            f"pipeline.input is text, and {what}",
            remedy="name a model of transformers as the source (hf:<id or directory>), or leave `pipeline` out",
        )
    if not has_tokenizer(folder):
        raise SourceError(
            f"pipeline.input is text, and {folder.name} has no tokenizer",
            remedy="save it beside the model (tokenizer.save_pretrained), or leave `pipeline` out",
        )
    told = text_output(folder, task)
    wanted = options.output or told
    if wanted not in {told, "tensors"}:
        raise UsageError(
            f"pipeline.output is {wanted}, and the model's {'task' if task else 'configuration'} makes it"
            f" {told} of texts",
            remedy=f"write output: {told}, or tensors for the model's own outputs"
            + ("" if task else "; or name the task that the weights were trained for (`task`)"),
        )
    return wanted


def takes_pairs(folder: Path, task: str) -> bool:
    """Whether a classifier judges two texts at once."""
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
