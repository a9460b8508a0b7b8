"""Worker requests on data."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from plansmith.compilers.export.requests import LoadRequest
from plansmith.config.data import DataSpec
from plansmith.data.reader import DataPlace
from plansmith.records.model import AxisRange, Record


class SampleRequest(Record):
    """Request to convert data to model inputs, in two sets.

    Attributes:
        model: the source model, and how it is loaded.
        axes: the ranges that it was exported for; the model's own for those that are missing.
        tied: axes that always are another one in the graph, and that one.
        data: what the spec says of data; None for plansmith's own inputs, which calibrate alone.
        place: where the data lie; None without data.
        out: the folder to store in.
    """

    model: LoadRequest
    axes: dict[str, AxisRange] = Field(default_factory=dict)
    tied: dict[str, str] = Field(default_factory=dict)
    data: DataSpec | None = None
    place: DataPlace | None = None
    out: Path


class EntryPointRequest(Record):
    """A user's function that yields samples; `place` is its location."""

    entry_point: str
    place: DataPlace


class SampleDigest(Record):
    """Digest of everything that a user's function yields."""

    digest: str
