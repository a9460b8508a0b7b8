"""Tasks of transformers models: read from the configuration, or asked for by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import SourceError, UsageError
from plansmith.sources.huggingface.models import choose_class


def folder(place: Path, **config: Any) -> Path:
    (place / "config.json").write_text(json.dumps(config))
    return place


def chosen(place: Path, task: str = "", **config: Any) -> str:
    return choose_class(folder(place, **config), trust_remote_code=False, task=task)[0].__name__


@pytest.mark.parametrize(
    ("task", "family", "expected"),
    [
        ("text-classification", "bert", "BertForSequenceClassification"),
        ("sentiment-analysis", "modernbert", "ModernBertForSequenceClassification"),
        ("ner", "roberta", "RobertaForTokenClassification"),
        ("question-answering", "deberta-v2", "DebertaV2ForQuestionAnswering"),
        ("fill-mask", "mpnet", "MPNetForMaskedLM"),
        ("multiple-choice", "longformer", "LongformerForMultipleChoice"),
        ("feature-extraction", "big_bird", "BigBirdModel"),
        ("sentence-similarity", "mpnet", "MPNetModel"),
        ("text-generation", "mamba", "MambaForCausalLM"),
        ("translation", "marian", "MarianMTModel"),
        ("summarization", "t5", "T5ForConditionalGeneration"),
        ("automatic-speech-recognition", "wav2vec2", "Wav2Vec2ForCTC"),
        ("automatic-speech-recognition", "whisper", "WhisperForConditionalGeneration"),
        ("audio-classification", "audio-spectrogram-transformer", "ASTForAudioClassification"),
        ("image-classification", "convnext", "ConvNextForImageClassification"),
        ("image-segmentation", "segformer", "SegformerForSemanticSegmentation"),
        ("image-segmentation", "mask2former", "Mask2FormerForUniversalSegmentation"),
        ("object-detection", "yolos", "YolosForObjectDetection"),
        ("depth-estimation", "dpt", "DPTForDepthEstimation"),
        ("zero-shot-image-classification", "siglip", "SiglipModel"),
        ("video-classification", "timesformer", "TimesformerForVideoClassification"),
        ("document-question-answering", "layoutlm", "LayoutLMForQuestionAnswering"),
        ("time-series-prediction", "timesfm", "TimesFmModelForPrediction"),
    ],
)
def test_a_task_names_the_class(task: str, family: str, expected: str, tmp_path: Path) -> None:
    assert chosen(tmp_path, task, model_type=family) == expected


def test_architecture_counts_without_task(tmp_path: Path) -> None:
    """Without a task the architecture counts, and without that the plain model."""
    assert chosen(tmp_path, model_type="bert", architectures=["BertForMaskedLM"]) == "BertForMaskedLM"
    assert chosen(tmp_path, model_type="bert") == "BertModel"


def test_architecture_decides_between_classes(tmp_path: Path) -> None:
    """Of several classes of a task, the architecture decides."""
    named = {"model_type": "funnel", "architectures": ["FunnelBaseModel"]}
    assert chosen(tmp_path, "feature-extraction", **named) == "FunnelBaseModel"
    assert chosen(tmp_path, "feature-extraction", model_type="funnel") == "FunnelModel"


def test_ambiguous_task_lists_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that leaves a choice lists the classes."""
    from plansmith.sources.huggingface import models

    both = ("AutoModelForMaskedLM", "AutoModelForCausalLM")
    monkeypatch.setitem(models._MORE, "words", both)
    with pytest.raises(UsageError, match="leaves a choice of BertForMaskedLM, BertLMHeadModel") as caught:
        chosen(tmp_path, "words", model_type="bert")
    assert "`architectures`" in caught.value.remedy
    assert chosen(tmp_path, "words", model_type="bert", architectures=["BertLMHeadModel"]) == "BertLMHeadModel"


def test_several_architectures_list_the_tasks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="several architectures: BertModel, BertForMaskedLM") as caught:
        chosen(tmp_path, model_type="bert", architectures=["BertModel", "BertForMaskedLM"])
    assert "fill-mask" in caught.value.remedy


def test_impossible_task_lists_possible_ones(tmp_path: Path) -> None:
    """A task that the family cannot do lists those that it can."""
    with pytest.raises(SourceError, match="no resnet model for the task 'fill-mask'") as caught:
        chosen(tmp_path, "fill-mask", model_type="resnet")
    assert caught.value.remedy == "its tasks are feature-extraction, image-classification"


def test_unknown_task_suggests_near_ones(tmp_path: Path) -> None:
    """An unknown task is told with near ones."""
    with pytest.raises(UsageError, match="has no task 'question-answer'") as caught:
        chosen(tmp_path, "question-answer", model_type="bert")
    assert "question-answering" in caught.value.remedy


@pytest.mark.parametrize(
    ("config", "says", "remedy"),
    [
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClasification"]},
            "has no architecture",
            "Classification",
        ),
        ({"model_type": "bert2"}, "cannot read this configuration", "install the transformers release"),
        ({"model_type": "bert", "hidden_size": "wide"}, "cannot read this configuration", "check config.json"),
    ],
    ids=["a class that transformers lacks", "a family that transformers lacks", "a configuration that is wrong"],
)
def test_missing_transformers_feature_told(config: dict[str, Any], says: str, remedy: str, tmp_path: Path) -> None:
    """What the installed Transformers lacks is told."""
    with pytest.raises(SourceError, match=says) as caught:
        chosen(tmp_path, **config)
    assert remedy in caught.value.remedy
