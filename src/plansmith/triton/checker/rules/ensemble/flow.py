"""Tensor flow through an ensemble: each tensor is written once and read, and there are no cycles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import ModelFolder, entry_line

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_SOURCE = "src/model_config_utils.cc of github.com/triton-inference-server/core"

WRITTEN_ONCE = Rule(
    "ensemble.written-once",
    "error",
    "an ensemble's tensor is written by one output of one step",
    f"{_SOURCE} (BuildEnsembleGraph); src/ensemble_scheduler/ensemble_utils.cc (ValidateTensorMapping)",
)
OVERWRITTEN = Rule(
    "ensemble.overwritten-input",
    "warning",
    "no step writes a tensor that is an input of the ensemble, which the client sends",
    "docs/user_guide/architecture.md of github.com/triton-inference-server/server (Ensemble Models)",
)
UNUSED = Rule(
    "ensemble.unused",
    "error",
    "every input of an ensemble, and all that its steps write, is read by a step or is an output",
    f"{_SOURCE} (ValidateEnsembleSchedulingConfig)",
)
UNWRITTEN = Rule(
    "ensemble.unwritten",
    "error",
    "all that steps read, and every output, comes from the inputs: no tensor is missing, and none waits for itself",
    f"{_SOURCE} (ValidateEnsembleSchedulingConfig)",
)

RULES: tuple[Rule, ...] = (WRITTEN_ONCE, OVERWRITTEN, UNUSED, UNWRITTEN)


def check(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    """Yield problems with the tensors of an ensemble whose steps are complete."""
    steps = [({*step.input_map.values()}, [*step.output_map.values()]) for step in config.ensemble_scheduling.step]
    inputs, outputs = {entry.name for entry in config.input}, {entry.name for entry in config.output}
    written = [name for _, names in steps for name in names]
    read = {name for names, _ in steps for name in names}
    for name in sorted({name for name in written if written.count(name) > 1}):
        yield _broken(
            WRITTEN_ONCE, model, f"{name} is written more than once", "give each output a name of its own", name
        )
    for name in sorted({*written} & inputs):
        message = f"{name} is an input of the ensemble, and a step writes it, too"
        yield _broken(OVERWRITTEN, model, message, "give the step's output another name", name)
    for name in sorted((inputs | {*written}) - read - outputs):
        state = "is an input that no step reads" if name in inputs else "is written, and neither read nor an output"
        yield _broken(UNUSED, model, f"{name} {state}", "read it, make it an output, or take it away", name)
    ready = _ready(inputs, steps)
    for name in sorted((read | outputs) - ready):
        if name in written:
            message = f"{name} is never written: its step waits for what comes from it, or is missing"
        else:
            message = f"{name} is {'read' if name in read else 'an output'}, and neither an input nor written by a step"
        yield _broken(UNWRITTEN, model, message, "have a step write it, or correct its name", name)
    for name in sorted((outputs & inputs) - {*written}):
        message = f"{name} is an input and an output, and no step writes it"
        yield _broken(UNWRITTEN, model, message, "have a step write it under another name", name)


def _ready(inputs: set[str], steps: list[tuple[set[str], list[str]]]) -> set[str]:
    """The tensors that the steps can produce, starting from the inputs."""
    ready = {*inputs}
    while True:
        new_names = {name for needs, gives in steps if needs <= ready for name in gives} - ready
        if not new_names:
            return ready
        ready |= new_names


def _broken(rule: Rule, model: ModelFolder, message: str, remedy: str, name: str) -> Finding:
    return rule.broken(message, model=model.name, place=model.place(), line=entry_line(model, name), remedy=remedy)
