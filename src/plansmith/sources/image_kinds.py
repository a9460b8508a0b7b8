"""What a model makes of images, told by its directory's files alone: labels, an embedding, or other tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from plansmith.errors import SourceError, UsageError
from plansmith.pipeline_options import PipelineOptions, RawOutput
from plansmith.sources.directory import read_config
from plansmith.sources.heads import read_json
from plansmith.sources.preprocessors import PROCESSOR_FILES

_TASKS: dict[str, RawOutput] = {"image-classification": "labels", "image-feature-extraction": "embedding"}

# How classes of transformers end; a class without a head is named …Model.
_HEADS: tuple[tuple[str, RawOutput], ...] = (
    ("ForImageClassification", "labels"),
    ("ForImageClassificationWithTeacher", "labels"),
    ("ModelWithProjection", "embedding"),
    ("Model", "embedding"),
)


def image_output(scheme: Literal["hf", "timm"], folder: Path, task: str) -> RawOutput:
    """What a model that reads images answers with, by its task or, where none is asked for, its configuration.

    Raises:
        SourceError: the configuration is no JSON.
    """
    config = read_config(folder)
    if task:
        return _TASKS.get(task, "tensors")
    if scheme == "timm" or "pretrained_cfg" in config:
        return "labels" if config.get("num_classes", 0) else "embedding"
    named = str((config.get("architectures") or [""])[0])
    return next((output for end, output in _HEADS if named.endswith(end)), "tensors")


def refuse_images(
    scheme: Literal["hf", "timm", "onnx"], folder: Path, options: PipelineOptions, *, task: str
) -> RawOutput:
    """See, before anything heavy is loaded, that a source can have images as its pipeline's input.

    Args:
        scheme: of the source.
        folder: its directory; of an ONNX file, the one that it lies in.
        options: what the spec says of the pipeline.
        task: that was asked for; empty: none.

    Returns:
        What the pipeline answers with.

    Raises:
        UsageError: the kind of source, or of model, does not fit what the spec asks for.
        SourceError: nothing says how images become the model's input, or a file is no JSON.
    """
    if scheme == "onnx":
        raise UsageError(
            "pipeline.input is image, and an ONNX file does not say how images become its input",
            remedy="name a model of timm or transformers as the source, or leave `pipeline` out",
        )
    if not takes_images(scheme, folder):
        raise SourceError(
            f"pipeline.input is image, and {folder.name} has no image processor",
            remedy="save it beside the model (processor.save_pretrained), or leave `pipeline` out",
        )
    told = image_output(scheme, folder, task)
    wanted = options.output or told
    if wanted not in {told, "tensors"}:
        raise UsageError(
            f"pipeline.output is {wanted}, and the model's {'task' if task else 'configuration'} makes it"
            f" {told} of images",
            remedy=f"write output: {told}, or tensors for the model's own outputs",
        )
    return wanted


def takes_images(scheme: Literal["hf", "timm"], folder: Path) -> bool:
    """Whether a directory says how images become the model's input.

    Raises:
        SourceError: a file is no JSON.
    """
    if scheme == "timm" or "pretrained_cfg" in read_config(folder):
        return True
    found = (read_json(folder / name) for name in PROCESSOR_FILES if (folder / name).is_file())
    return any(isinstance(one, dict) and _is_of_images(one) for one in found)


def _is_of_images(config: dict[str, object]) -> bool:
    """Of the three files, one is of images alone, one holds every part by name, and one is of videos."""
    if "image_processor" in config or "image_processor_type" in config:
        return True
    # Older directories name a feature extractor, as do those of sounds, which have a sampling rate.
    return "feature_extractor_type" in config and "sampling_rate" not in config and "feature_size" not in config
