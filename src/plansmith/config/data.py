"""Data sections of a spec: the sources of real inputs and labels."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from plansmith.records.fields import NonNegativeCount, Part, PositiveCount
from plansmith.records.model import Measured, Record

LABEL = "label"
TEXT = "text"
TEXT_PAIR = "text_pair"
IMAGE = "image"

ROLES = (TEXT, TEXT_PAIR, IMAGE, LABEL)
"""What a column can hold besides the values of one input."""

Metric = Literal["auto", Measured]
"""The measure of a task; "auto" takes the one that the model's outputs and the labels suggest."""

CONVERTED = "refs/convert/parquet"
"""The branch where the hub keeps a copy of most data sets as Parquet, <subset>/<split>/*.parquet."""

DEFAULT_CALIBRATION = 128
DEFAULT_EVALUATION = 256

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class DataSpec(Record):
    """Real inputs: one of a file or folder, a data set of the Hub, or a user function."""

    path: str = Field(
        default="",
        description="Text lines (.txt), .csv, .tsv, .json(l), .parquet, .npz, or a folder of images (one subfolder a"
        " class, where there are classes); relative to the spec.",
    )
    dataset: str = Field(default="", description="Data set of the Hugging Face Hub: <id>[@revision].")
    subset: str = Field(default="", description="Configuration of that data set, where it has several.")
    split: str = Field(default="", description="Split of that data set; validation, test or train when left out.")
    entry_point: str = Field(
        default="",
        description="A function of your own, package.module:function, which yields samples as dicts by column.",
        json_schema_extra={"pattern": f"^({_ENTRY_POINT.pattern})?$"},
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Which column holds the text, text_pair, image or label, or the values of an input of that name;"
        " found by the usual names when left out.",
    )
    calibration: PositiveCount = Field(
        default=DEFAULT_CALIBRATION, description="How many samples the lowering may look at."
    )
    evaluation: NonNegativeCount = Field(
        default=DEFAULT_EVALUATION, description="How many others the gate looks at, once and at the end."
    )
    seed: NonNegativeCount = Field(default=0, description="Decides which samples are drawn, and their order.")
    metric: Metric = Field(default="auto", description="What is measured beside the distance of the answers.")
    max_metric_drop: Part | None = Field(
        default=None, description="How much lower the metric may be than the FP32 model's; 0.01 is a point."
    )

    @field_validator("entry_point")
    @classmethod
    def _check_entry_point(cls, value: str) -> str:
        if value and not _ENTRY_POINT.fullmatch(value):
            raise ValueError("write it as package.module:function")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        sources = [name for name in ("path", "dataset", "entry_point") if getattr(self, name)]
        if len(sources) != 1:
            raise ValueError(
                f"give one of path, dataset and entry_point, not {' and '.join(sources)}"
                if sources
                else "give a path, a dataset or an entry_point"
            )
        if (self.subset or self.split) and not self.dataset:
            raise ValueError("subset and split belong to a dataset")
        return self
