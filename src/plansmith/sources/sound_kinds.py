"""What a model makes of sounds, told by its directory's files alone: labels, or other tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from plansmith.errors import SourceError, UsageError
from plansmith.pipeline_options import PipelineOptions, RawOutput
from plansmith.sources.directory import read_config
from plansmith.sources.heads import read_json
from plansmith.sources.preprocessors import PROCESSOR_FILES

_TASK = "audio-classification"
_CLASSIFIERS = ("ForSequenceClassification", "ForAudioClassification")


def takes_sounds(folder: Path) -> bool:
    """Whether a directory of transformers says how sounds become the model's input.

    Raises:
        SourceError: a file is no JSON.
    """
    found = (read_json(folder / name) for name in PROCESSOR_FILES if (folder / name).is_file())
    return any("sampling_rate" in str(one) for one in found)


def refuse_sound(
    scheme: Literal["hf", "timm", "onnx"], folder: Path, options: PipelineOptions, *, task: str
) -> RawOutput:
    """See, before anything heavy is loaded, that a source can have sounds as its pipeline's input.

    Args:
        scheme: of the source.
        folder: its directory; of an ONNX file, the one that it lies in.
        options: what the spec says of the pipeline.
        task: that was asked for; empty: none.

    Returns:
        What the pipeline answers with.

    Raises:
        UsageError: the kind of source, or of model, does not fit what the spec asks for.
        SourceError: nothing says how sounds become the model's input, or a file is no JSON.
    """
    if scheme != "hf":
        raise UsageError(
            f"pipeline.input is audio, and {'an ONNX file' if scheme == 'onnx' else 'timm'} has no feature extractor",
            remedy="name a model of transformers as the source (hf:<id or directory>), or leave `pipeline` out",
        )
    if not takes_sounds(folder):
        raise SourceError(
            f"pipeline.input is audio, and {folder.name} has no feature extractor",
            remedy="save it beside the model (feature_extractor.save_pretrained), or leave `pipeline` out",
        )
    named = str((read_config(folder).get("architectures") or [""])[0])
    told: RawOutput = "labels" if task == _TASK or (not task and named.endswith(_CLASSIFIERS)) else "tensors"
    wanted = options.output or told
    if wanted not in {told, "tensors"}:
        raise UsageError(
            f"pipeline.output is {wanted}, and the model's {'task' if task else 'configuration'} makes it"
            f" {told} of sounds",
            remedy=f"write output: {told}, or tensors for the model's own outputs",
        )
    return wanted
