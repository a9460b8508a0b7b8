"""Triton core rules on sequence batching: controls, batches, states; `config.sequence-*`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, bytes_of, enum_name

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_CORE = "core: src/model_config_utils.cc"
_SCHEDULER = "core: src/sequence_batch_scheduler/sequence_batch_scheduler.cc, GenerateInitialStateData"

CONTROL = Rule(
    "config.sequence-control",
    "error",
    "a control of sequences has a name of its own, comes once of each kind, and has one pair of values (or, for the"
    " correlation id, a data type)",
    f"{_CORE}, GetBooleanSequenceControlProperties; Triton 2.51 was seen to do so",
)
BATCHES = Rule(
    "config.sequence-batch-size",
    "error",
    "preferred batch sizes of sequences are positive and not above max_batch_size; a slot utilization is from 0 to 1",
    f"{_CORE}, ValidateModelConfig; Triton 2.51 was seen to do so",
)
STATE = Rule(
    "config.sequence-state",
    "error",
    "a state has one initial state at most: named, of its data type and rank, of fixed dims that fit, and with data",
    f"{_SCHEDULER}; Triton 2.51 was seen to do so",
)
STATE_FILE = Rule(
    "config.sequence-state-file",
    "error",
    "the file of an initial state is in initial_state/ of the model, with as many bytes as the state has",
    _SCHEDULER,
)
RULES: tuple[Rule, ...] = (CONTROL, BATCHES, STATE, STATE_FILE)

STATE_FOLDER = "initial_state"
_CORRELATION = "CONTROL_SEQUENCE_CORRID"


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield sequence batching settings that Triton's core would refuse."""
    del surroundings
    if model.config is None or not model.config.HasField("sequence_batching"):
        return
    batching = model.config.sequence_batching
    for problem in _control_problems(batching):
        yield model.faulted(
            CONTROL,
            problem,
            "control_input",
            remedy="write for each control: name, one control with its kind, and fp32_false_true: [ 0, 1 ] or so",
        )
    largest = model.config.max_batch_size
    for size in batching.oldest.preferred_batch_size:
        if size <= 0 or size > largest:
            yield model.faulted(
                BATCHES,
                f"preferred_batch_size has {size}, and max_batch_size is {largest}",
                "preferred_batch_size",
                remedy=f"choose sizes from 1 to {largest}",
            )
    if not 0 <= batching.direct.minimum_slot_utilization <= 1:
        yield model.faulted(
            BATCHES,
            f"minimum_slot_utilization is {batching.direct.minimum_slot_utilization:g}",
            "minimum_slot_utilization",
            remedy="write a number from 0 to 1",
        )
    yield from _states(model, batching)


def controls_of(config: pb.ModelConfig) -> set[str]:
    """Return the names of a model's sequence control tensors."""
    return {control.name for control in config.sequence_batching.control_input}


def _control_problems(batching: pb.ModelSequenceBatching) -> Iterator[str]:
    names = Counter(entry.name for entry in batching.control_input)
    yield from (f"the control {name!r} is there {count} times" for name, count in names.items() if name and count > 1)
    if "" in names:
        yield "a control has no name"
    kinds: Counter[str] = Counter()
    for entry in batching.control_input:
        for control in entry.control:
            kind = enum_name(type(control).Kind, control.kind)
            kinds[kind] += 1
            problem = _value_problem(control, kind)
            if problem:
                yield f"{kind} of {entry.name!r} {problem}"
    yield from (f"{kind} is there {count} times" for kind, count in kinds.items() if count > 1)


def _value_problem(control: pb.ModelSequenceBatching.Control, kind: str) -> str:
    from plansmith.triton.messages import model_config_pb2 as pb

    pairs = [pair for pair in (control.int32_false_true, control.fp32_false_true, control.bool_false_true) if pair]
    if kind == _CORRELATION:
        allowed = {pb.TYPE_UINT64, pb.TYPE_INT64, pb.TYPE_UINT32, pb.TYPE_INT32, pb.TYPE_STRING}
        if pairs:
            return "has values for false and true, which an id has not"
        return "" if control.data_type in allowed else "needs data_type: an integer of 32 or 64 bits, or TYPE_STRING"
    if len(pairs) != 1:
        return f"has {len(pairs)} pairs of values for false and true, and needs one"
    return "" if len(pairs[0]) == 2 else f"has {len(pairs[0])} values for false and true, and needs two"


def _states(model: ModelFolder, batching: pb.ModelSequenceBatching) -> Iterator[Finding]:
    for state in batching.state:
        initial = list(state.initial_state)
        problem = f"has {len(initial)} initial states" if len(initial) > 1 else ""
        if len(initial) == 1:
            problem = _initial_problem(state, initial[0])
        if problem:
            yield model.faulted(
                STATE,
                f"the state {state.input_name!r} {problem}",
                f'"{state.input_name}"',
                remedy="write one initial_state: name, the state's data_type, fixed dims, and zero_data or data_file",
            )
        elif initial and initial[0].data_file:
            yield from _state_file(model, initial[0])


def _initial_problem(state: pb.ModelSequenceBatching.State, initial: pb.ModelSequenceBatching.InitialState) -> str:
    if initial.data_type != state.data_type:
        return "has another data type than its initial state"
    if not initial.name:
        return "has an initial state without a name"
    if len(initial.dims) != len(state.dims):
        return "has another number of dims than its initial state"
    if any(dim < 0 or expected not in {-1, dim} for dim, expected in zip(initial.dims, state.dims, strict=True)):
        return "has an initial state with dims that vary, or are not its own"
    return "" if initial.WhichOneof("state_data") else "has an initial state without zero_data or data_file"


def _state_file(model: ModelFolder, initial: pb.ModelSequenceBatching.InitialState) -> Iterator[Finding]:
    name = f"{STATE_FOLDER}/{initial.data_file}"
    file, needed = Path(model.path, name), bytes_of(initial.data_type, initial.dims)
    problem = "is not there" if not file.is_file() else ""
    if not problem and needed is not None and file.stat().st_size < needed:
        problem = f"has {file.stat().st_size} bytes, and the state has {needed}"
    if problem:
        yield STATE_FILE.broken(
            f"{name} {problem}",
            model=model.name,
            place=model.place(),
            line=model.line_of(initial.data_file),
            remedy=f"write the state's {needed or ''} bytes, without batch, to {model.place(name)}",
        )
