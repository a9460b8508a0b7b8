"""How a spec asks for what stands around its model: raw inputs and outputs, other models, a script that asks them."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from plansmith.data_spec import DataSpec
from plansmith.lowering_options import LoweringOptions, WrittenPrecision
from plansmith.pipeline_options import PipelineOptions
from plansmith.reports import ToleranceChange
from plansmith.shapes import WrittenRange
from plansmith.types import Record
from plansmith.written import Switch

_BESIDE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TAKEN = {"main", "model"}


class BesideModel(Record):
    """A model that the same requests go to: where it comes from, and how it is lowered, judged and answered for.

    What is left out has its usual default, but for the precision; what cannot be said here is as the spec says it.
    """

    source: str = Field(
        description="Where the model comes from, as for the spec's own `source`.",
        json_schema_extra={"pattern": "^((hf|timm):[^~]|mlflow:models:/.)"},
    )
    task: str = Field(default="", description="Which head it gets, by the name of a transformers pipeline.")
    precision: WrittenPrecision | None = Field(
        default=None, description="What its graph is stored and computed in; that of the spec when left out."
    )
    data: DataSpec | None = Field(default=None, description="Real inputs, and labels where there are some.")
    lowering: LoweringOptions = Field(default=LoweringOptions(), description="How its precision is lowered.")
    shapes: dict[str, WrittenRange] = Field(
        default_factory=dict, description="Smallest, usual and largest shape per input; derived when left out."
    )
    tolerances: dict[str, ToleranceChange] = Field(
        default_factory=dict, description="What its gate allows, per output."
    )
    outputs: tuple[str, ...] = Field(default=(), description="Which of its outputs to serve; all by default.")
    random_weights: Switch = Field(default=False, description="Draw its weights instead of loading them.")
    trust_remote_code: Switch = Field(default=False, description="Run Python code that comes with it.")
    allow_pickle: Switch = Field(default=False, description="Read its pickled weights, which can run any code.")
    pipeline: PipelineOptions = Field(
        default=PipelineOptions(), description="What its answers are made of, as for the spec's own `pipeline`."
    )


class PipelineSpec(PipelineOptions):
    """What stands around a spec's model, other models among it."""

    beside: dict[str, BesideModel] = Field(
        default_factory=dict,
        description="Further models that every request goes to, by name; their outputs begin with it, as in"
        " topics_label. What makes the same inputs is there once.",
    )
    script: str = Field(
        default="",
        description="Python file, relative to the spec, whose `answer(inputs, models)` answers requests by asking the"
        " models as it sees fit, in place of all of them being asked.",
    )

    @field_validator("beside")
    @classmethod
    def _check_beside(cls, value: dict[str, BesideModel]) -> dict[str, BesideModel]:
        for name in value:
            if not _BESIDE.fullmatch(name) or name in _TAKEN:
                raise ValueError(f"{name!r} is no name for a model beside: a-z, 0-9 and _, and none of main, model")
        return value

    @property
    def around_one(self) -> PipelineOptions:
        """What is said of the model itself."""
        return PipelineOptions.model_validate({name: getattr(self, name) for name in PipelineOptions.model_fields})
