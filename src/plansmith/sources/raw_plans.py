"""Which pipeline stands around a source model: by what it takes and gives, and what the spec says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plansmith.pipeline.drafts import Draft
from plansmith.pipeline_options import PipelineOptions
from plansmith.sources.live import LiveModel
from plansmith.types import AxisRange, Component


def plan(
    live: LiveModel,
    folder: Path,
    options: PipelineOptions,
    component: Component,
    axes: Mapping[str, AxisRange],
    *,
    trust_remote_code: bool,
) -> Draft:
    """Plan it.

    Args:
        live: the source model.
        folder: of the source.
        options: what the spec says.
        component: what is served, whose inputs and outputs parts give and take.
        axes: the ranges that it is served for.
        trust_remote_code: as for the model.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: what the spec asks for does not fit the model.
    """
    raise NotImplementedError
