"""Context shared by the steps of one model; refuses known errors before any work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plansmith.config.engine_options import SHARED_CACHE_VARIABLE
from plansmith.config.source_reference import SourceReference, parse_reference
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target, load_target, require_onnxruntime
from plansmith.errors import GateError, PlansmithError
from plansmith.records.model import EngineKind
from plansmith.sources.reference import refuse_unfitting
from plansmith.steps.runner import Listener, StageRunner
from plansmith.system.digest import Digester

if TYPE_CHECKING:
    from plansmith.steps.tensorrt.compile import PlanSteps

R = TypeVar("R")


@dataclass(frozen=True)
class ModelContext:
    """Model context: what the steps of one model share.

    Attributes:
        spec: what is wanted, with the names of model and target in full.
        reference: the source as typed.
        target: what the model will be served by.
        relative_to: the folder that paths in the spec start from.
        stages: runs the steps.
        plans: builds TensorRT plans, where a plan is built or checked.
    """

    spec: ModelSpec
    reference: SourceReference
    target: Target
    relative_to: Path
    stages: StageRunner
    plans: PlanSteps | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        assert self.spec.name is not None
        return self.spec.name

    @contextmanager
    def located(self, step: str) -> Iterator[None]:
        """Add the model to errors raised outside of a step."""
        try:
            yield
        except PlansmithError as error:
            raise error.located(model=self.name, step=step) from error.__cause__

    def with_report(self, require: Callable[[R], None]) -> Callable[[R], None]:
        """Return the same check, which also writes the HTML report of a refusal and names it as the log."""

        def check(record: R) -> None:
            try:
                require(record)
            except GateError as error:
                if self.stages.dry:
                    raise
                from plansmith.report.render import write
                from plansmith.report.verdict import unfinished

                page = self.stages.log_file("report").with_suffix(".html")
                results: dict[str, Any] = self.stages.results
                facts = unfinished(
                    self.name,
                    self.target.name,
                    self.spec.model_dump(mode="json"),
                    results.get("validate"),
                    source=results.get("fetch"),
                    onnx=results.get("export"),
                    data=results.get("sample"),
                    lowered=results.get("lower"),
                    engine=results.get("compile"),
                    steps=tuple(self.stages.records),
                )
                write(facts, page)
                raise error.located(log=page) from None

        return check


def runs_foreign_code(spec: ModelSpec) -> bool:
    """Whether a compile runs code that came with a model, that pickles name, or that is a user's own."""
    pipeline = spec.pipeline
    models = (spec, *(pipeline.models.values() if pipeline is not None else ()))
    return (
        any(model.trust_remote_code or model.allow_pickle for model in models)
        or any(model.data is not None and model.data.entry_point for model in models)
        or (pipeline is not None and bool(pipeline.script))
    )


def start_stages(
    spec: ModelSpec,
    relative_to: Path,
    *,
    listener: Listener | None = None,
    dry: bool = False,
    digester: Digester | None = None,
) -> StageRunner:
    """Return the runner of a compile's steps, until it is closed.

    Args:
        spec: says where artifacts and a shared cache lie.
        relative_to: the folder that paths in the spec start from.
        listener: told how it goes.
        dry: only look.
        digester: hashes files; one of its own when None.
    """
    listener = listener or Listener()
    name = spec.name or parse_reference(spec.source, relative_to=relative_to).default_name
    shared = None
    if spec.shared_cache is not None or os.environ.get(SHARED_CACHE_VARIABLE):
        from plansmith.steps.cache.shared import SharedCache, find_shared_place

        place = find_shared_place(spec.shared_cache, relative_to, listener.notice, only_looks=dry)
        shared = SharedCache(place, listener.moving) if place else None
    artifacts = Path(spec.artifacts).absolute()
    return StageRunner(
        name,
        artifacts,
        listener=listener,
        force=spec.force,
        dry=dry,
        digester=digester,
        shared=shared,
        isolated=spec.isolate and runs_foreign_code(spec),
    )


def graph_context(spec: ModelSpec, relative_to: Path, stages: Callable[[], StageRunner]) -> ModelContext:
    """Return the context shared by the steps up to a lowered graph.

    Args:
        spec: what is wanted.
        relative_to: the folder that paths in the spec start from.
        stages: gives what runs the steps, once the spec is found to make sense.

    Raises:
        PlansmithError: what can be known to be wrong before any work is done.
    """
    reference = parse_reference(spec.source, relative_to=relative_to)
    target = load_target(spec.target)
    refuse_unfitting(reference, spec)
    if spec.engine is EngineKind.ONNXRUNTIME:
        require_onnxruntime(target)
    named = spec.model_copy(update={"name": spec.name or reference.default_name, "target": target.name})
    return ModelContext(named, reference, target, relative_to, stages())
