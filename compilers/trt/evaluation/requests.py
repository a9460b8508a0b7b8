"""Worker requests on plans."""

from __future__ import annotations

from pathlib import Path

from plansmith.compilers.export.requests import LoadRequest
from plansmith.records.engine import Engine, Gpu
from plansmith.records.model import OnnxModel, Recipe, Record
from plansmith.records.validation import ToleranceChange
from plansmith.validation.verdict import HeldOut


class PlanFiles(Record):
    """A plan of an engine, and the location of its files.

    Attributes:
        engine: that has it.
        folder: holds the engine's files.
        capability: the compute capability that the plan is for.
        lowered: the graph that it was built from, or its twin that ONNX Runtime can run on a CPU.
        recipe: how the graph was lowered, if it was.
    """

    engine: Engine
    folder: Path
    capability: str
    lowered: Path | None = None
    recipe: Recipe | None = None

    @property
    def file(self) -> Path:
        """The plan file."""
        return self.folder / self.engine.plans[self.capability].file


class EvaluatePlanRequest(Record):
    """Request to validate a plan against the reference and benchmark it.

    Attributes:
        plan: with its graph.
        higher: the plan of the next higher precision; None where there is none to be faster than.
        gpu: the one that the worker sees.
        onnx: the exported graph and its reference.
        reference_folder: where that lies.
        source: the PyTorch model, for its speed; None for an ONNX file.
        tolerances: what differs from the defaults, by output.
        held_out: samples that nothing has looked at before.
    """

    plan: PlanFiles
    higher: PlanFiles | None
    gpu: Gpu
    onnx: OnnxModel
    reference_folder: Path
    source: LoadRequest | None
    tolerances: dict[str, ToleranceChange]
    held_out: HeldOut | None
