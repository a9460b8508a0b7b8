"""Which pipeline stands around a source model: by what it takes and gives, and what the spec says."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from plansmith.config.pipeline import PipelineOptions
from plansmith.pipelines.detect import raw_input
from plansmith.pipelines.draft import Draft
from plansmith.records.model import OnnxModel
from plansmith.sources.loaded_model import LoadedModel


def plan(
    live: LoadedModel,
    folder: Path,
    options: PipelineOptions,
    served: OnnxModel,
    *,
    scheme: Literal["hf", "timm"],
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """Plan it; see `detect.refuse_raw` for what is known to be impossible before.

    Args:
        live: the source model.
        folder: of the source.
        options: what the spec says.
        served: what is served, whose inputs parts give and whose outputs they take.
        scheme: of the source.
        task: that was asked for; empty: none.
        trust_remote_code: whether the model's own Python code may be run.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: what the spec asks for does not fit the model.
    """
    kind = raw_input(scheme, folder, options)
    if kind == "image":
        from plansmith.pipelines.image.pipeline import plan_images

        return plan_images(live, folder, options, served, scheme=scheme, task=task, trust_remote_code=trust_remote_code)
    if kind == "audio":
        from plansmith.pipelines.audio.pipeline import plan_sound

        return plan_sound(live, folder, options, served, task=task, trust_remote_code=trust_remote_code)
    from plansmith.pipelines.text.pipeline import plan_text

    return plan_text(live, folder, options, served, task=task, trust_remote_code=trust_remote_code)
