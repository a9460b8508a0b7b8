"""Ensemble wiring: members match each other and the ensemble in names, dtypes, dims, batching and decoupled mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import ModelFolder, data_type, entry_line, format_config_dims, inner_dims
from plansmith.triton.checker.rules.backends.members import Member, Port

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_SOURCE = "src/ensemble_scheduler/ensemble_utils.cc of github.com/triton-inference-server/core"

MAPPED = Rule(
    "ensemble.mapping",
    "error",
    "steps map inputs and outputs that their models have, and every input of them that is not optional",
    f"{_SOURCE} (ValidateTensorMapping)",
)
DTYPE = Rule(
    "ensemble.dtype",
    "error",
    "a tensor has one dtype in the ensemble and all members that share it",
    f"{_SOURCE} (ValidateTensorConsistency)",
)
SHAPE = Rule(
    "ensemble.shape",
    "error",
    "a tensor has the same dims in the ensemble and all members that share it, but for those that are -1",
    f"{_SOURCE} (ValidateTensorConsistency)",
)
BATCH = Rule(
    "ensemble.batch-size",
    "error",
    "the ensemble's max_batch_size is at most that of each member that batches",
    f"{_SOURCE} (ValidateEnsembleConfig)",
)
DECOUPLED = Rule(
    "ensemble.decoupled",
    "error",
    "no step reads what comes from different decoupled models",
    f"{_SOURCE} (ValidateEnsembleConfig)",
)
RESHAPE = Rule(
    "ensemble.reshape",
    "warning",
    "the ensemble's own inputs and outputs have no reshape, which would stand for their dims in the comparison",
    f"{_SOURCE} (ValidateEnsembleConfig)",
)

RULES: tuple[Rule, ...] = (MAPPED, DTYPE, SHAPE, BATCH, DECOUPLED, RESHAPE)


@dataclass(frozen=True)
class _TensorUse:
    """A tensor's properties, as declared by its first use."""

    owner: str
    dtype: str
    dims: tuple[int, ...]
    batching: bool

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batching else self.dims


def check(model: ModelFolder, config: pb.ModelConfig, members: Mapping[str, Member]) -> Iterator[Finding]:
    """Yield mismatches between an ensemble's steps and its models.

    Args:
        model: the ensemble.
        config: its configuration, with complete steps.
        members: its models by name, as far as they are there.
    """
    batching, tensors = config.max_batch_size > 0, dict[str, _TensorUse]()
    for entry in (*config.input, *config.output):
        tensors[entry.name] = _TensorUse("the ensemble", data_type(entry), inner_dims(entry), batching)
        if entry.HasField("reshape"):
            message = f"{entry.name} has a reshape, with which members are compared instead of its dims"
            yield _broken(
                RESHAPE, model, message, "write the dims that the members have, without a reshape", entry.name
            )
    for step in config.ensemble_scheduling.step:
        member = members.get(step.model_name)
        if member is None:
            continue
        if member.max_batch_size and member.max_batch_size < config.max_batch_size:
            message = (
                f"max_batch_size is {config.max_batch_size}, and {member.name} takes {member.max_batch_size} at most"
            )
            yield _broken(BATCH, model, message, f"write max_batch_size: {member.max_batch_size}", "max_batch_size")
        yield from _names(model, step, member)
        sides = ((step.input_map, member.inputs), (step.output_map, member.outputs))
        for mapped, ports in sides:
            for name, tensor in sorted(mapped.items()):
                if ports is not None and name in ports:
                    yield from _fit(model, tensors, tensor, member, ports[name])
    yield from _decoupled(model, config, members)


def _names(model: ModelFolder, step: pb.ModelEnsembling.Step, member: Member) -> Iterator[Finding]:
    sides = (("input", step.input_map, member.inputs), ("output", step.output_map, member.outputs))
    for role, mapped, ports in sides:
        for name in sorted({*mapped} - {*ports}) if ports is not None else ():
            message = f"{member.name} has no {role} {name}"
            choices = ", ".join(sorted(ports or ())) or "none"
            yield _broken(MAPPED, model, message, f"map one of its {role}s: {choices}", name)
    for name, port in sorted((member.inputs or {}).items()):
        if not port.optional and name not in step.input_map:
            message = f"the input {name} of {member.name} is not mapped"
            yield _broken(MAPPED, model, message, "add it to the step's input_map", member.name)


def _fit(
    model: ModelFolder, tensors: dict[str, _TensorUse], tensor: str, member: Member, port: Port
) -> Iterator[Finding]:
    """Compare a member's input or output with what is known of the tensor it is mapped to."""
    mine = _TensorUse(member.name, port.dtype, port.dims, bool(member.max_batch_size))
    first = tensors.setdefault(tensor, mine)
    if "TYPE_INVALID" not in {first.dtype, mine.dtype} and first.dtype != mine.dtype:
        message = f"{tensor} is {first.dtype} for {first.owner}, and {mine.dtype} for {mine.owner} ({port.name})"
        yield _broken(DTYPE, model, message, "cast it in one of the models", tensor)
    is_known = first.dims and mine.dims and (member.max_batch_size is not None)
    if is_known and not _alike(first.dims, mine.dims) and not _alike(first.full, mine.full):
        message = (
            f"{tensor} has dims {format_config_dims(first.full)} for {first.owner}, and"
            f" {format_config_dims(mine.full)} for {mine.owner} ({port.name}), with the batch where there is one"
        )
        yield _broken(SHAPE, model, message, "correct the dims, or the map", tensor)


def _alike(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return len(first) == len(second) and all(-1 in {a, b} or a == b for a, b in zip(first, second, strict=True))


def _decoupled(model: ModelFolder, config: pb.ModelConfig, members: Mapping[str, Member]) -> Iterator[Finding]:
    """Check decoupled steps: label each tensor with the last decoupled step that it depends on."""
    label = {entry.name: 0 for entry in config.input}
    waiting, number = [*config.ensemble_scheduling.step], 0
    while ready := [step for step in waiting if {*step.input_map.values()} <= label.keys()]:
        for step in ready:
            waiting.remove(step)
            origins = {label[name] for name in step.input_map.values()}
            if len(origins) > 1:
                message = f"{step.model_name} reads what comes from different decoupled models"
                remedy = "have one decoupled model before it, or none"
                yield _broken(DECOUPLED, model, message, remedy, step.model_name)
                return
            member = members.get(step.model_name)
            if member is not None and member.decoupled:
                number += 1
                origins = {number}
            label |= dict.fromkeys(step.output_map.values(), origins.pop())


def _broken(rule: Rule, model: ModelFolder, message: str, remedy: str, phrase: str) -> Finding:
    line = entry_line(model, phrase) or model.line_of(phrase)
    return rule.broken(message, model=model.name, place=model.place(), line=line, remedy=remedy)
