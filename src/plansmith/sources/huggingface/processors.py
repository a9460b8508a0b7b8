"""Processors in a model directory: tokenizer, image processor, feature extractor, video processor.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import SourceError, first_line

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")
LENGTH_FILES = ("sentence_bert_config.json", "config_sentence_transformers.json")
GENERATION_FILE = "generation_config.json"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


@dataclass(frozen=True)
class Preprocessors:
    """Preprocessors of a directory; None for missing ones.

    Args:
        tokenizer: of texts.
        images: of images.
        sound: of sound.
        video: of video.
        names: of the model's inputs, as far as these make them.
    """

    tokenizer: Any = None
    images: Any = None
    sound: Any = None
    video: Any = None
    names: tuple[str, ...] = ()


def has_tokenizer(folder: Path) -> bool:
    """Whether a directory has a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def read_preprocessors(
    folder: Path, *, trust_remote_code: bool, arguments: Collection[str] | None = None
) -> Preprocessors:
    """Read all preprocessors of a directory.

    Args:
        folder: the directory.
        trust_remote_code: whether its own Python code may be run.
        arguments: of the model's forward method. A tokenizer whose ids are not among them is for what the model
            answers, and so names no inputs. None: every tokenizer does.

    Raises:
        SourceError: there is one, and it cannot be read.
    """
    tokenizer = read_tokenizer(folder, trust_remote_code=trust_remote_code) if has_tokenizer(folder) else None
    others = [name for name in PROCESSOR_FILES if (folder / name).is_file()]
    processor = _processor(folder, others[0], trust_remote_code=trust_remote_code) if others else None
    tokenizer = tokenizer or _part(processor, "tokenizer")
    processors = {
        "images": _part(processor, "image_processor"),
        "sound": _part(processor, "feature_extractor"),
        "video": _part(processor, "video_processor"),
    }
    reads = tokenizer is not None and (arguments is None or tokenizer.model_input_names[0] in arguments)
    parts = [piece for piece in (tokenizer if reads else None, *processors.values()) if piece is not None]
    names = tuple(dict.fromkeys(name for piece in parts for name in _names(piece)))
    return Preprocessors(tokenizer=tokenizer, names=names, **processors)


def read_tokenizer(folder: Path, *, trust_remote_code: bool) -> Any:
    """Read the tokenizer of a directory that has one.

    Raises:
        SourceError: it cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # of a damaged file, the libraries raise anything
        raise _unreadable("tokenizer", folder, error) from error


def _processor(folder: Path, file: str, *, trust_remote_code: bool) -> Any:
    """Return the processor for all model inputs or, if parts of it are missing, the part that is available."""
    import transformers

    problem: Exception | None = None
    for name in ("AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor", "AutoVideoProcessor"):
        try:
            processor = getattr(transformers, name).from_pretrained(folder, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
            problem = problem or error
            continue
        if not isinstance(processor, transformers.PreTrainedTokenizerBase):
            return processor
    if problem is None:
        return None
    raise _unreadable(file, folder, problem) from problem


def _part(processor: Any, name: str) -> Any:
    """Return one part of a processor; the processor itself if it is that part."""
    if processor is None:
        return None
    import transformers

    kinds = {
        "image_processor": getattr(transformers, "ImageProcessingMixin", ()),
        "feature_extractor": transformers.FeatureExtractionMixin,
        "video_processor": getattr(transformers, "BaseVideoProcessor", ()),
        "tokenizer": transformers.PreTrainedTokenizerBase,
    }
    if hasattr(processor, name):
        return getattr(processor, name)
    is_video = isinstance(processor, kinds["video_processor"])
    return processor if isinstance(processor, kinds[name]) and (name == "video_processor") == is_video else None


def _names(piece: Any) -> tuple[str, ...]:
    """Return the inputs that a tokenizer or processor creates; a feature extractor may be set to create no mask."""
    without = {"attention_mask", "padding_mask"} if getattr(piece, "return_attention_mask", None) is False else set()
    return tuple(name for name in piece.model_input_names if name not in without)


def _unreadable(part: str, folder: Path, error: Exception) -> SourceError:
    reason = (
        first_line(error)
        if isinstance(error, (OSError, ValueError))
        else f"{type(error).__name__}: {first_line(error)}"
    )
    return SourceError(
        f"the {part} in {folder.name} cannot be read: {reason}",
        remedy="save it again beside the model (save_pretrained); without it, inputs are drawn at random",
    )
