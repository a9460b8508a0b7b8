"""Which pipeline stands around a source model: by what it takes and gives, and what the spec says."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from plansmith.pipeline.drafts import Draft
from plansmith.pipeline_options import PipelineOptions
from plansmith.sources.live import LiveModel
from plansmith.sources.raw_kinds import raw_input
from plansmith.types import OnnxModel


def plan(
    live: LiveModel,
    folder: Path,
    options: PipelineOptions,
    served: OnnxModel,
    *,
    scheme: Literal["hf", "timm"],
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """Plan it; see `raw_kinds.refuse_raw` for what is known to be impossible before.

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
        from plansmith.sources.pipeline_images import plan_images

        return plan_images(live, folder, options, served, scheme=scheme, task=task, trust_remote_code=trust_remote_code)
    if kind == "audio":
        from plansmith.sources.pipeline_sound import plan_sound

        return plan_sound(live, folder, options, served, task=task, trust_remote_code=trust_remote_code)
    from plansmith.sources.pipeline_text import plan_text

    return plan_text(live, folder, options, served, task=task, trust_remote_code=trust_remote_code)
