"""TensorRT plan tensors: the configuration against the plan's manifest, as Triton's TensorRT backend compares them."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import PlanFact, PlanFacts
from plansmith.triton.checker.model_folder import (
    CheckContext,
    ModelFolder,
    completes,
    data_type,
    entry_line,
    format_config_dims,
    generated_inputs,
    has_own_batch,
    inner_dims,
    numpy_name,
    triton_name,
)

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_REPOSITORY = "github.com/triton-inference-server/tensorrt_backend"
_INSTANCES = f"src/instance_state.cc of {_REPOSITORY}"
_MODELS = f"src/model_state.cc of {_REPOSITORY}"

NAME = Rule("tensorrt.tensor-name", "error", "configured inputs and outputs are the plan's, by name", _INSTANCES)
MISSING = Rule("tensorrt.missing-input", "error", "where inputs are configured, every input of the plan is", _INSTANCES)
DTYPE = Rule(
    "tensorrt.plan-dtype",
    "error",
    "a tensor has the plan's dtype in the configuration, too; INT64 is INT64 since TensorRT 10",
    f"{_INSTANCES}; https://github.com/triton-inference-server/server/issues/7307",
)
RANK = Rule(
    "tensorrt.rank",
    "error",
    "a tensor has all dims of the plan's, without the first one where max_batch_size is above 0",
    f"src/tensorrt_utils.cc of {_REPOSITORY} (ValidateDimension, CompareDimsSupported)",
)
CONTRADICTION = Rule(
    "tensorrt.contradiction",
    "error",
    "where max_batch_size is 0, either all tensors have all dims of the plan's, or all lack the first",
    f"{_MODELS} (ExtractBatchHintFromIOConfig)",
)
HINT = Rule(
    "tensorrt.batch-hint",
    "warning",
    "where max_batch_size is 0, dims are written in full: without the first, Triton turns batching on",
    f"{_MODELS} (AutoCompleteConfigHelper)",
)
DIMS = Rule("tensorrt.dims", "error", "a dim that the plan fixes is the same in the configuration", f"{_INSTANCES}")
BEYOND = Rule(
    "tensorrt.profile-dims",
    "error",
    "a dim is no larger than in the largest shape of the profiles, nor smaller than in the smallest",
    f"{_INSTANCES} (InitializeConfigShapeInputBindings; 'can not maximize dimension')",
)
BATCH = Rule(
    "tensorrt.max-batch-size",
    "error",
    "max_batch_size is not larger than the largest batch of the profiles that the instances use",
    f"{_MODELS} (GetMaxSupportedBatchSize)",
)
FIXED_BATCH = Rule(
    "tensorrt.fixed-batch",
    "error",
    "with max_batch_size above 0, the first dim of every input that holds no shape varies in the plan",
    f"{_MODELS} (the batch is compared as a wildcard, so that such a plan loads, and smaller batches fail)",
)
PROFILE = Rule(
    "tensorrt.profile-index",
    "error",
    "the profiles of instance groups are ones that the plan has",
    f"{_MODELS} (GetProfileIndices)",
)
SHAPE = Rule(
    "tensorrt.is-shape-tensor",
    "error",
    "is_shape_tensor is on for the inputs and outputs that hold a shape, and for no other",
    f"{_INSTANCES} (ValidateIO)",
)
FORMAT = Rule(
    "tensorrt.non-linear-format",
    "error",
    "is_non_linear_format_io is on for the inputs and outputs that do not lie row by row, and for no other",
    f"{_INSTANCES} (ValidateIO)",
)

RULES: tuple[Rule, ...] = (
    NAME,
    MISSING,
    DTYPE,
    RANK,
    CONTRADICTION,
    HINT,
    DIMS,
    BEYOND,
    BATCH,
    FIXED_BATCH,
    PROFILE,
    SHAPE,
    FORMAT,
)


_Pairs = list[tuple["pb.ModelInput | pb.ModelOutput", PlanFact]]


def check(facts: PlanFacts, number: int, model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield differences between a configuration and the plan of one of its versions; nothing without a plan."""
    config = model.config
    if config is None:
        return
    pairs: _Pairs = []
    sides: Sequence[tuple[str, Sequence[pb.ModelInput | pb.ModelOutput]]]
    sides = (("input", config.input), ("output", config.output))
    for role, entries in sides:
        for entry in entries:
            fact = facts.tensors.get(entry.name)
            if fact is not None and fact.is_input == (role == "input"):
                pairs.append((entry, fact))
                continue
            names = sorted(t.name for t in facts.tensors.values() if t.is_input == (role == "input"))
            message = f"the plan has no {role} {entry.name}"
            yield _broken(NAME, model, number, message, f"name one of its {role}s: {', '.join(names)}", entry.name)
    config_names = {*(entry.name for entry in config.input), *generated_inputs(config)}
    absent = [t.name for t in facts.tensors.values() if t.is_input and t.name not in config_names]
    for name in absent if config.input else ():
        yield _broken(MISSING, model, number, f"the plan's input {name} is not configured", "add it to input")
    for entry, fact in pairs:
        yield from _kind_of_tensor(entry, fact, number, model)
    yield from _profiles(facts, number, model)
    yield from _batch(facts, number, model)
    for entry, fact in pairs:
        if fact.is_shape and entry.is_shape_tensor:
            yield from _shape_dims(entry, fact, number, model)
    ordinary = [(entry, fact) for entry, fact in pairs if not fact.is_shape and not has_own_batch(config, entry)]
    ranked = yield from _ranks(ordinary, number, model, surroundings)
    for entry, fact in ranked:
        yield from _sizes(entry, fact, facts, number, model)


def _kind_of_tensor(
    entry: pb.ModelInput | pb.ModelOutput, fact: PlanFact, number: int, model: ModelFolder
) -> Iterator[Finding]:
    """Check the dtype, shape tensor flag and layout of one tensor."""
    name, written = entry.name, data_type(entry)
    if numpy_name(written) != fact.dtype and written != "TYPE_INVALID":
        message = f"{name} is {written}, and {fact.dtype} in the plan"
        yield _broken(DTYPE, model, number, message, f"write data_type: {triton_name(fact.dtype)}", name)
    if entry.is_shape_tensor != fact.is_shape:
        message = f"{name} {'holds a shape' if fact.is_shape else 'holds no shape'} in the plan"
        yield _broken(SHAPE, model, number, message, f"write is_shape_tensor: {str(fact.is_shape).lower()}", name)
    if entry.is_non_linear_format_io == fact.is_linear:
        message = f"{name} {'lies row by row' if fact.is_linear else 'does not lie row by row'} in the plan"
        remedy = f"write is_non_linear_format_io: {str(not fact.is_linear).lower()}"
        yield _broken(FORMAT, model, number, message, remedy, name)


def _shape_dims(
    entry: pb.ModelInput | pb.ModelOutput, fact: PlanFact, number: int, model: ModelFolder
) -> Iterator[Finding]:
    """Check the number of values of a shape tensor: with batching, the first is the batch, which Triton fills in."""
    batching = model.config is not None and model.config.max_batch_size > 0
    expected, dims = (fact.dims[0] if fact.dims else 1) - batching, inner_dims(entry)
    if fact.dims[:1] != (-1,) and dims[:1] != (-1,) and dims != (expected,):
        message = (
            f"the shape tensor {entry.name} has dims {format_config_dims(dims)}, and {expected} values in the plan"
        )
        without = " without the batch" if batching else ""
        yield _broken(DIMS, model, number, f"{message}{without}", f"write dims: [{expected}]", entry.name)


def used_profiles(model: ModelFolder) -> set[int]:
    """Return the indices of the optimization profiles that instance groups name; the first one by default."""
    named: list[str] = []
    if model.config is not None:
        named = [profile for group in model.config.instance_group for profile in group.profile]
    return {int(profile) for profile in named if profile.isdecimal()} or {0}


def _profiles(facts: PlanFacts, number: int, model: ModelFolder) -> Iterator[Finding]:
    count = max(1, len(facts.profiles))
    for index in sorted(used_profiles(model)):
        if index >= count:
            message = f"an instance group uses profile {index}, and the plan has {count}, counted from 0"
            yield _broken(PROFILE, model, number, message, f"name profiles up to {count - 1}", str(index))


def _batch(facts: PlanFacts, number: int, model: ModelFolder) -> Iterator[Finding]:
    config, used = model.config, used_profiles(model)
    if config is None or config.max_batch_size <= 0:
        return
    inputs = [tensor for tensor in facts.tensors.values() if tensor.is_input and not tensor.is_shape]
    stuck = [tensor for tensor in inputs if tensor.dims[:1] != (-1,)]
    for tensor in stuck:
        dims = format_config_dims(tensor.dims)
        message = f"max_batch_size is {config.max_batch_size}, and {tensor.name} has dims {dims} in"
        remedy = "write max_batch_size: 0 and dims in full; or build the plan with a batch that varies"
        yield _broken(FIXED_BATCH, model, number, f"{message} the plan, whose first is fixed", remedy, "max_batch_size")
    largest = [
        min((profile.shapes[t.name].max[0] for t in inputs if t.name in profile.shapes), default=0)
        for place, profile in enumerate(facts.profiles)
        if place in used
    ]
    if not stuck and len(largest) == len(used) and config.max_batch_size > max(largest):
        message = f"max_batch_size is {config.max_batch_size}, and the plan takes batches up to {max(largest)}"
        yield _broken(BATCH, model, number, message, f"write max_batch_size: {max(largest)}", "max_batch_size")


def _ranks(
    pairs: _Pairs, number: int, model: ModelFolder, surroundings: CheckContext
) -> Generator[Finding, None, _Pairs]:
    """Check ranks: yield findings and return the tensors whose ranks match."""
    config = model.config
    assert config is not None
    batching = config.max_batch_size > 0
    lacking = [(e, f) for e, f in pairs if len(inner_dims(e)) == len(f.dims) - 1]
    full = [(e, f) for e, f in pairs if len(inner_dims(e)) == len(f.dims)]
    fitting = lacking if batching else full
    if not batching and lacking and full:
        names = " and ".join(e.name for e, _ in lacking)
        message = f"max_batch_size is 0, and {names} lack a dim of the plan's, which {full[0][0].name} has"
        yield _broken(CONTRADICTION, model, number, message, "write all dims of all tensors", lacking[0][0].name)
    elif not batching and lacking and completes(surroundings):
        message = "max_batch_size is 0, and the dims lack the first one of the plan's, so that Triton turns batching on"
        yield _broken(HINT, model, number, message, "write max_batch_size as it shall be, or all dims of all tensors")
        fitting = lacking
    elif not batching:
        for entry, fact in lacking:
            yield _wrong_rank(entry, fact, number, model, batching=batching)
    odd = [(e, f) for e, f in pairs if (e, f) not in lacking and (e, f) not in full]
    for entry, fact in odd + (full if batching else []):
        yield _wrong_rank(entry, fact, number, model, batching=batching)
    return fitting


def _wrong_rank(
    entry: pb.ModelInput | pb.ModelOutput, fact: PlanFact, number: int, model: ModelFolder, *, batching: bool
) -> Finding:
    expected = fact.dims[1:] if batching else fact.dims
    without = ", without the batch" if batching else ""
    mine, its = format_config_dims(inner_dims(entry)), format_config_dims(expected)
    message = f"{entry.name} has dims {mine}, and {its} in the plan{without}"
    return _broken(RANK, model, number, message, f"write dims: {its}", entry.name)


def _sizes(
    entry: pb.ModelInput | pb.ModelOutput, fact: PlanFact, facts: PlanFacts, number: int, model: ModelFolder
) -> Iterator[Finding]:
    dims = inner_dims(entry)
    expected = fact.dims[len(fact.dims) - len(dims) :]
    if any(its not in {-1, mine} for mine, its in zip(dims, expected, strict=True)):
        message = f"{entry.name} has dims {format_config_dims(dims)}, and {format_config_dims(expected)} in the plan"
        yield _broken(DIMS, model, number, message, f"write dims: {format_config_dims(expected)}", entry.name)
        return
    ranges = [profile.shapes[entry.name] for profile in facts.profiles if entry.name in profile.shapes]
    for place, (mine, its) in enumerate(zip(dims, expected, strict=True), len(fact.dims) - len(dims)):
        if mine == -1 or its != -1 or not ranges:
            continue
        low, high = min(shape.min[place] for shape in ranges), max(shape.max[place] for shape in ranges)
        if not low <= mine <= high:
            message = f"{entry.name} has {mine} where the profiles of the plan go from {low} to {high}"
            yield _broken(BEYOND, model, number, message, "write -1, or a size within them", entry.name)


def _broken(rule: Rule, model: ModelFolder, number: int, message: str, remedy: str, phrase: str = "") -> Finding:
    """A configuration finding, with the version where there are several."""
    version = f" (version {number})" if len(model.loaded) > 1 else ""
    line = (entry_line(model, phrase) or model.line_of(phrase)) if phrase else 0
    return rule.broken(f"{message}{version}", model=model.name, place=model.place(), line=line, remedy=remedy)
