"""Ensemble rules: valid configuration, tensor flow, and compatible members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from plansmith.records.release import CONFIG_FILE
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, entry_line
from plansmith.triton.checker.rules.backends.members import Member, member_of
from plansmith.triton.checker.rules.ensemble import flow, wiring

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

PLATFORM = "ensemble"

_CORE = "github.com/triton-inference-server/core"
_CONFIG = f"src/model_config_utils.cc of {_CORE}"
_MANAGER = f"src/model_repository_manager/model_repository_manager.cc of {_CORE}"

FIELDS = Rule(
    "ensemble.fields",
    "error",
    "an ensemble has no backend, instance groups, optimization or warm-up: its members have them",
    f"{_CONFIG} (ValidateModelConfig, ValidateEnsembleSchedulingConfig)",
)
PLATFORMS = Rule(
    "ensemble.platform",
    "error",
    'what has the platform "ensemble" has ensemble_scheduling, and the other way round',
    f"{_CONFIG} (ValidateModelConfig, ValidateEnsembleSchedulingConfig)",
)
STEPS = Rule(
    "ensemble.step",
    "error",
    "there is a step at least, and each names a model, and maps inputs and outputs",
    f"{_CONFIG} (BuildEnsembleGraph)",
)
MEMBER = Rule(
    "ensemble.member",
    "error",
    "every step's model is in the repository, in the version that the step names",
    f"{_MANAGER} ('contains models that are not available')",
)
CYCLE = Rule("ensemble.cycle", "error", "no ensemble is a member of itself", f"{_MANAGER} (CircularDependencyCheck)")
PLACEHOLDER = Rule(
    "ensemble.placeholder",
    "note",
    "the folder of an ensemble's version holds some file, as object stores and archives may drop empty folders",
    "docs/user_guide/model_repository.md of github.com/triton-inference-server/server; S3 has no folders",
)

RULES: tuple[Rule, ...] = (
    *(FIELDS, PLATFORMS, STEPS, MEMBER, CYCLE, PLACEHOLDER),
    *flow.RULES,
    *wiring.RULES,
)


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of an ensemble; nothing for other models."""
    config = model.config
    if config is None or not is_ensemble(config):
        return
    yield from _fields(model, config)
    problems = [*_steps(model, config)]
    yield from problems
    for number, folder in model.versions.items():
        if not any(folder.iterdir()):
            yield PLACEHOLDER.broken(
                f"the folder of version {number} is empty",
                model=model.name,
                place=model.place(str(number)),
                remedy="put an empty file into it, where the repository goes to an object store",
            )
    if problems:
        return
    yield from flow.check(model, config)
    cycle = _cycle(model, surroundings.models)
    if cycle:
        message = f"the ensemble is a member of itself: {' -> '.join(cycle)}"
        yield _broken(CYCLE, model, message, "take one of these steps away", cycle[1])
        return
    members = {}
    for step in config.ensemble_scheduling.step:
        problem = _member_problem(step, surroundings.models)
        if problem:
            yield _broken(MEMBER, model, problem, "correct the step; model_version: -1 is the newest", step.model_name)
        elif not step.model_namespace and not _is_unreadable(surroundings.models[step.model_name]):
            members[step.model_name] = _member(surroundings.models[step.model_name], surroundings)
    yield from wiring.check(model, config, members)


def is_ensemble(config: pb.ModelConfig) -> bool:
    """Whether a configuration is, or is meant to be, an ensemble's."""
    return bool(config.platform == PLATFORM or config.HasField("ensemble_scheduling"))


def _is_unreadable(model: ModelFolder) -> bool:
    """Whether a member has a configuration that cannot be read, so that nothing is known of it."""
    return model.config is None and (model.path / CONFIG_FILE).exists()


def _member(model: ModelFolder, surroundings: CheckContext, above: frozenset[str] = frozenset()) -> Member:
    """The facts of a member: an ensemble is decoupled where one of its own members is."""
    member, above = member_of(model, surroundings), above | {model.name}
    if model.config is None or not is_ensemble(model.config):
        return member
    names = {step.model_name for step in model.config.ensemble_scheduling.step}
    inner = [
        _member(surroundings.models[name], surroundings, above) for name in (names & surroundings.models.keys()) - above
    ]
    decoupled = any(entry.decoupled for entry in inner)
    return replace(member, max_batch_size=model.config.max_batch_size, decoupled=decoupled)


def _fields(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    if config.platform != PLATFORM:
        message = f"there is ensemble_scheduling, and the platform is {config.platform or 'not written'}"
        yield _broken(PLATFORMS, model, message, 'write platform: "ensemble", or take ensemble_scheduling away')
    if not config.HasField("ensemble_scheduling"):
        message = "the platform is ensemble, and there is no ensemble_scheduling"
        yield _broken(PLATFORMS, model, message, "write ensemble_scheduling with a step for each model", '"ensemble"')
    forbidden = {
        "backend": bool(config.backend),
        "instance_group": bool(config.instance_group),
        "optimization": config.HasField("optimization"),
        "model_warmup": bool(config.model_warmup),
    }
    for name in (name for name, is_present in forbidden.items() if is_present):
        message = f"an ensemble has no {name}"
        yield _broken(FIELDS, model, message, "take it away: the configurations of its models have it", name)


def _steps(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    steps = config.ensemble_scheduling.step
    if not steps and config.HasField("ensemble_scheduling"):
        yield _broken(STEPS, model, "there is no step", "write a step for each model", "ensemble_scheduling")
    for number, step in enumerate(steps, 1):
        for name in ("model_name", "input_map", "output_map"):
            if not getattr(step, name):
                message = f"step {number} has no {name}"
                yield _broken(STEPS, model, message, f"write its {name}", step.model_name or "step")


def _member_problem(step: pb.ModelEnsembling.Step, models: Mapping[str, ModelFolder]) -> str:
    """The problem with the model that a step names; empty where there is none."""
    if step.model_namespace:
        return ""
    folder = models.get(step.model_name)
    if folder is None:
        return f"the repository has no model {step.model_name}"
    if step.model_version >= 0 and step.model_version not in folder.loaded:
        loaded = ", ".join(map(str, folder.loaded)) or "none"
        unwritten = ", which a step means that says no model_version" if not step.model_version else ""
        return f"{step.model_name} has no version {step.model_version}{unwritten}; {loaded} is loaded"
    return ""


def _cycle(model: ModelFolder, models: Mapping[str, ModelFolder]) -> list[str]:
    """The cycle from an ensemble through its members back to itself; empty where there is none."""
    ways, visited = [[model.name]], {model.name}
    while ways:
        way = ways.pop()
        config = models[way[-1]].config if way[-1] in models else None
        for step in config.ensemble_scheduling.step if config is not None else ():
            if step.model_name == model.name:
                return [*way, model.name]
            if step.model_name not in visited:
                visited.add(step.model_name)
                ways.append([*way, step.model_name])
    return []


def _broken(rule: Rule, model: ModelFolder, message: str, remedy: str, phrase: str = "") -> Finding:
    line = (entry_line(model, phrase) or model.line_of(phrase)) if phrase else 0
    return rule.broken(message, model=model.name, place=model.place(), line=line, remedy=remedy)
