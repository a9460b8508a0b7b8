"""Image model kinds, detected from the model directory's files alone.

Labels, objects, a map, an embedding, a choice.
"""

from __future__ import annotations

from pathlib import Path

from plansmith.errors import SourceError
from plansmith.pipelines.answer_kinds import RawKind
from plansmith.records.model import SourceScheme
from plansmith.records.pipeline import RawOutput
from plansmith.sources.directory import read_config, read_json
from plansmith.sources.huggingface.outputs import is_zero_shot
from plansmith.sources.huggingface.processors import PROCESSOR_FILES, has_tokenizer

_TASKS: dict[str, RawOutput] = {
    "image-classification": "labels",
    "object-detection": "objects",
    "semantic-segmentation": "segmentation",
    "image-feature-extraction": "embedding",
}

_SEGMENTATION, _SEMANTIC = "image-segmentation", "ForSemanticSegmentation"
"""A task of several kinds of models, and the class of the kind whose answer is a map."""

# How classes of transformers end; a class without a head is named …Model.
_HEADS: tuple[tuple[str, RawOutput], ...] = (
    ("ForImageClassification", "labels"),
    ("ForImageClassificationWithTeacher", "labels"),
    ("ForObjectDetection", "objects"),
    (_SEMANTIC, "segmentation"),
    ("ModelWithProjection", "embedding"),
    ("Model", "embedding"),
)


def image_output(scheme: SourceScheme, folder: Path, task: str) -> RawOutput:
    """Return the output kind of an image model, by the requested task or its configuration.

    Raises:
        SourceError: the configuration is no JSON.
    """
    config = read_config(folder)
    named = str((config.get("architectures") or [""])[0])
    if scheme == "hf" and is_zero_shot(folder, task):
        return "zero-shot"
    if task == _SEGMENTATION and named.endswith(_SEMANTIC):
        return "segmentation"
    if task:
        return _TASKS.get(task, "tensors")
    if scheme == "timm" or "pretrained_cfg" in config:
        return "labels" if config.get("num_classes", 0) else "embedding"
    return next((output for end, output in _HEADS if named.endswith(end)), "tensors")


def takes_images(scheme: SourceScheme, folder: Path) -> bool:
    """Whether a directory defines how images become the model's input.

    Raises:
        SourceError: a file is no JSON.
    """
    if scheme == "timm" or "pretrained_cfg" in read_config(folder):
        return True
    documents = (read_json(folder / name) for name in PROCESSOR_FILES if (folder / name).is_file())
    return any(isinstance(document, dict) and _is_of_images(document) for document in documents)


def require_tokenizer(folder: Path) -> None:
    """Require a tokenizer for the texts that come with an image.

    Raises:
        SourceError: they cannot.
    """
    if not has_tokenizer(folder):
        raise SourceError(
            f"pipeline.output is zero-shot, and {folder.name} has no tokenizer for the texts that come with an image",
            remedy="save it beside the model (tokenizer.save_pretrained), or leave `pipeline` out",
        )


def _is_of_images(config: dict[str, object]) -> bool:
    """Whether this is an image processor: of the three files, one is for images, one for all parts, one for videos."""
    if "image_processor" in config or "image_processor_type" in config:
        return True
    # Older directories name a feature extractor, as do those of sounds, which have a sampling rate.
    return "feature_extractor_type" in config and "sampling_rate" not in config and "feature_size" not in config


IMAGES = RawKind(
    name="image",
    plural="images",
    lacking={"onnx": "an ONNX file does not say how images become its input"},
    fitting="a model of timm or transformers as the source",
    processor="image processor",
    variable="processor",
    takes=takes_images,
    output=image_output,
)
