"""Figures that others published of the models in configs/models/published.yaml, with their sources."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from pydantic import Field

from plansmith.records.model import Record

_RANDOM = "-random"


class Source(Record):
    """Who published figures.

    Attributes:
        where: the document.
        date: of it.
        how: they were measured.
    """

    where: str
    date: str
    how: str


class PublishedFigures(Record):
    """Figures of a model; None for what the source does not say.

    Attributes:
        model: its name.
        source: the key of its source.
        engine: that ran it.
        hardware: that it ran on.
        instance_type: of SageMaker; empty for none.
        load: that it was under.
        latency_ms: the mean.
        users: the most that sent requests.
        max_users: before the first failure.
        models_loaded: copies of the model that were loaded together.
    """

    model: str
    source: str
    engine: str
    hardware: str
    instance_type: str = ""
    load: str = ""
    latency_ms: float | None = Field(default=None, gt=0)
    p50_ms: float | None = Field(default=None, gt=0)
    p95_ms: float | None = Field(default=None, gt=0)
    requests_per_second: float | None = Field(default=None, gt=0)
    users: int | None = Field(default=None, ge=1)
    max_users: int | None = Field(default=None, ge=0)
    models_loaded: int | None = Field(default=None, ge=1)


class _Table(Record):
    sources: dict[str, Source]
    figures: tuple[PublishedFigures, ...]


def published_figures(models: Iterable[str]) -> tuple[PublishedFigures, ...]:
    """What was published of models, in their order.

    Args:
        models: names; NAME-random is the architecture of NAME with random weights, which takes the same time.
    """
    return tuple(
        figures.model_copy(update={"model": model})
        for model in dict.fromkeys(models)
        for figures in _table().figures
        if figures.model == model.removesuffix(_RANDOM)
    )


def source_of(figures: PublishedFigures) -> Source:
    """Who published figures."""
    return _table().sources[figures.source]


@cache
def _table() -> _Table:
    import yaml

    text = (files("plansmith") / "configs" / "compare" / "published.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))
