"""Pipeline detection: inputs and outputs, from the source's files alone, before any heavy import."""

from __future__ import annotations

from pathlib import Path

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError, UsageError
from plansmith.pipelines.audio.kinds import SOUNDS
from plansmith.pipelines.image.kinds import IMAGES, require_tokenizer
from plansmith.pipelines.text.kinds import TEXTS
from plansmith.records.model import SourceScheme
from plansmith.records.pipeline import RawInput, RawOutput
from plansmith.sources.huggingface.outputs import ZERO_SHOT, is_zero_shot

_KINDS = (TEXTS, IMAGES, SOUNDS)


def raw_input(scheme: SourceScheme, folder: Path, options: PipelineOptions) -> RawInput:
    """Return the raw input that clients send: set by the spec, or the only one that the source supports.

    A recogniser of speech has a tokenizer for what it answers, and is sent sounds. A model that compares images with
    texts is sent images, and with each the texts that may fit it.

    Raises:
        UsageError: it can make them of several, and the spec does not say which.
        SourceError: it can make them of nothing.
    """
    if options.input:
        return options.input
    able = [kind.name for kind in _KINDS if scheme not in kind.lacking and kind.takes(scheme, folder)]
    if not able:
        raise SourceError(
            f"{folder.name} has no tokenizer, image processor or feature extractor: nothing makes inputs of raw ones",
            remedy="save it beside the model (save_pretrained), or leave `pipeline` out",
        )
    if SOUNDS.name in able and SOUNDS.output(scheme, folder, "") == "transcript":
        return SOUNDS.name
    if IMAGES.name in able and IMAGES.output(scheme, folder, "") == "zero-shot":
        return IMAGES.name
    if len(able) > 1:
        raise UsageError(
            f"the model can be sent {' or '.join(able)}, and `pipeline` does not say which",
            remedy=f"write input: {able[0]} under `pipeline`",
        )
    return able[0]


def refuse_raw(scheme: SourceScheme, folder: Path, options: PipelineOptions, *, task: str) -> RawOutput:
    """Refuse a pipeline in a spec that cannot be built around its source; otherwise return its answer kind.

    Args:
        scheme: of the source.
        folder: its directory.
        options: what the spec says of the pipeline.
        task: that was asked for; empty: none.

    Raises:
        UsageError: the kind of source, or of model, does not fit what the spec asks for.
        SourceError: what makes the model's inputs is not there.
    """
    kinds = {kind.name: kind for kind in _KINDS}
    output = kinds[raw_input(scheme, folder, options)].refuse(scheme, folder, options, task=task)
    if output == "zero-shot":
        require_tokenizer(folder)
    return output


def settled_task(scheme: SourceScheme, folder: Path, options: PipelineOptions | None, *, task: str) -> str:
    """Return the task that a model is loaded for: the requested one, or the one that its pipeline needs.

    Args:
        scheme: of the source.
        folder: its directory.
        options: what the spec says of the pipeline; None where there is none.
        task: that was asked for; empty: none.

    Raises:
        SourceError: the configuration is no JSON.
    """
    needs = not task and options is not None and scheme == "hf" and is_zero_shot(folder, task)
    return ZERO_SHOT if needs else task
