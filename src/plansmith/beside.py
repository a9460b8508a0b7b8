"""The models that a spec has beside its own, as specs of their own."""

from __future__ import annotations

from plansmith.config import ModelSpec
from plansmith.pipeline_spec import BesideModel, PipelineSpec
from plansmith.triton_options import TritonOptions

_OWN = set(BesideModel.model_fields) - {"precision", "pipeline"}


def specs_beside(spec: ModelSpec) -> dict[str, ModelSpec]:
    """The specs of the models beside a spec's own, by name.

    What concerns one model (a field of `BesideModel`) is as that says, its precision as the spec's where it says none;
    all else is as the spec says it, but for the served configuration: there the spec speaks of its own model alone.
    """
    beside = spec.pipeline.beside if spec.pipeline is not None else {}
    return {name: _spec_of(name, one, spec) for name, one in beside.items()}


def _spec_of(name: str, one: BesideModel, spec: ModelSpec) -> ModelSpec:
    own = {field: getattr(one, field) for field in _OWN}
    around = PipelineSpec.model_validate(one.pipeline.model_dump())
    precision = one.precision or spec.precision
    others = {"inputs": {}, "triton": TritonOptions(), "publish": (), "load_into": ()}
    called = f"{spec.name}.{name}"
    return spec.model_copy(update={**own, **others, "name": called, "precision": precision, "pipeline": around})
