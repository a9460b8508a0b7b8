"""TensorRT plan file rules: the GPU and TensorRT version of each plan, and whether the server can load it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from plansmith.compilers.trt.plan_header import read_header
from plansmith.compilers.trt.versions import is_same, loads_in, numbers_of
from plansmith.errors import EngineError
from plansmith.records.engine import BuildSpec
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import PlanFacts, plan_facts
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, backend_setting

_REPOSITORY = "github.com/triton-inference-server/tensorrt_backend"
_MODELS = f"src/model_state.cc of {_REPOSITORY}"
_CONFIGURATION = "docs/user_guide/model_configuration.md of github.com/triton-inference-server/server"
_COMPATIBLE = "https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/inference-library/engine-compatibility.html"

CAPABILITY_KEY = Rule(
    "tensorrt.capability-key",
    "error",
    'the keys of cc_model_filenames are compute capabilities, such as "8.9"',
    f"{_MODELS} (AutoCompleteConfig); {_CONFIGURATION}",
)
CAPABILITY_FILE = Rule(
    "tensorrt.capability-file",
    "error",
    "every file that cc_model_filenames names is in every version, and is the plan for that compute capability",
    f"{_MODELS} (AutoCompleteConfig); {_CONFIGURATION}",
)
OTHER_GPUS = Rule(
    "tensorrt.other-gpus",
    "note",
    "beside cc_model_filenames there is a plan for the GPUs that it does not name: default_model_filename",
    f"{_MODELS} (AutoCompleteConfig)",
)
HEADER = Rule(
    "tensorrt.plan",
    "error",
    "a plan begins as plans of TensorRT 8.6 and later do",
    "samples/common/sampleEngines.cpp of github.com/NVIDIA/TensorRT (getPlanVersion)",
)
VERSION = Rule(
    "tensorrt.version",
    "error",
    "a plan is of the target's TensorRT, or a version-compatible one that it loads",
    _COMPATIBLE,
)
STRIPPED = Rule(
    "tensorrt.stripped",
    "error",
    "a plan has its weights: the backend cannot put them back",
    f"src/loader.cc of {_REPOSITORY} (LoadPlan), which deserialises a plan and no more",
)
COMPUTE_CAPABILITY = Rule(
    "tensorrt.compute-capability",
    "error",
    "a plan is for a GPU that the target takes",
    "release notes of NVIDIA's Triton containers (compute capability)",
)

RULES: tuple[Rule, ...] = (CAPABILITY_KEY, CAPABILITY_FILE, OTHER_GPUS, HEADER, VERSION, STRIPPED, COMPUTE_CAPABILITY)

_BACKEND = "tensorrt"
_DEFAULT_FILE = "model.plan"
_CAPABILITY = re.compile(r"\d+\.\d")
_FIRST_COMPATIBLE = (8,)


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield problems with a model's plan files."""
    yield from _capabilities(model)
    for number in model.loaded:
        manifest = model.manifests.get(number)
        facts = plan_facts(manifest) if manifest is not None else None
        for path in plan_files(model, number):
            yield from _header(path, model, facts, surroundings)
        if facts is not None:
            yield from _of_manifest(model, number, facts, surroundings)


def plan_files(model: ModelFolder, number: int) -> list[Path]:
    """Return the existing plan files of a version."""
    named = [model.model_file or _DEFAULT_FILE]
    named += sorted(model.config.cc_model_filenames.values()) if model.config is not None else []
    return [
        path
        for file in dict.fromkeys(named)
        if (path := model.versions[number] / file).is_file() and path.stat().st_size
    ]


def _capabilities(model: ModelFolder) -> Iterator[Finding]:
    """Check the files of `cc_model_filenames`, in every loaded version."""
    config = model.config
    if config is None or not config.cc_model_filenames:
        return
    for capability, file in sorted(config.cc_model_filenames.items()):
        if not _CAPABILITY.fullmatch(capability):
            remedy = 'write the major and minor number, such as "8.9"'
            yield _broken(CAPABILITY_KEY, model, f"{capability!r} is no compute capability", remedy, f'"{capability}"')
        for number in model.loaded:
            problem = _file_problem(model, number, capability, file)
            if problem:
                remedy = "put the plan for that GPU there, or take the entry away"
                yield _broken(CAPABILITY_FILE, model, problem, remedy, file)
    default = config.default_model_filename or _DEFAULT_FILE
    if not any((model.versions[number] / default).is_file() for number in model.loaded):
        named = ", ".join(sorted(config.cc_model_filenames))
        message = f"there is no {default}, so that only GPUs of compute capability {named} can serve it"
        yield _broken(OTHER_GPUS, model, message, "name the plan for all other GPUs as default_model_filename")


def _file_problem(model: ModelFolder, number: int, capability: str, file: str) -> str:
    """The problem with the plan for a compute capability; empty where there is none."""
    if not (model.versions[number] / file).is_file():
        return f"version {number} has no {file}, which is for compute capability {capability}"
    manifest = model.manifests.get(number)
    if manifest is None or not manifest.engine.plans:
        return ""
    files = manifest.package.capability_files
    built = [own for own, name in files.items() if name == file] if files else [*manifest.engine.plans]
    if not built or capability in built or _runs_on(manifest.engine.build, built[0], capability):
        return ""
    return f"{file} of version {number} is named for compute capability {capability}, and was built for {built[0]}"


def _runs_on(build: BuildSpec | None, built: str, capability: str) -> bool:
    """Whether a plan was built to run on another compute capability too."""
    compatible = build is not None and build.hardware_compatibility == "ampere_plus"
    return compatible and min(numbers_of(built), numbers_of(capability)) >= _FIRST_COMPATIBLE


def _header(path: Path, model: ModelFolder, facts: PlanFacts | None, surroundings: CheckContext) -> Iterator[Finding]:
    """Check the TensorRT version in a plan's header."""
    place, target = model.place(path.relative_to(model.path).as_posix()), surroundings.target
    try:
        built = read_header(path).tensorrt
    except EngineError as error:
        text = error.message.replace(str(path), path.name)
        yield HEADER.broken(text, model=model.name, place=place, remedy=error.remedy)
        return
    if target is None or target.tensorrt is None or is_same(built, target.tensorrt):
        return
    # A plan of which nothing is known may be a version-compatible one, where the server is told to load such.
    is_allowed = backend_setting(surroundings, _BACKEND, "version-compatible").lower() in {"true", "1"}
    compatible = facts.version_compatible if facts is not None else is_allowed
    if not (compatible and loads_in(built, target.tensorrt)):
        yield VERSION.broken(
            f"{path.name} was built by TensorRT {built}, and {target.name} has {target.tensorrt}, which cannot load it",
            model=model.name,
            place=place,
            remedy=f"build it with TensorRT {target.tensorrt}, in the container of that target",
        )


def _of_manifest(model: ModelFolder, number: int, facts: PlanFacts, surroundings: CheckContext) -> Iterator[Finding]:
    for capability in facts.stripped:
        yield _broken(
            STRIPPED,
            model,
            f"the plan of version {number} for compute capability {capability} is without its weights",
            "compile the model again: plansmith puts the weights back before it packages a plan",
        )
    target = surroundings.target
    floor = numbers_of((target.min_compute_capability if target is not None else None) or "")
    if facts.versions and all(numbers_of(capability) < floor for capability in facts.versions):
        named = ", ".join(facts.versions)
        message = f"the plans of version {number} are for compute capability {named}, which is too old for the target"
        yield _broken(COMPUTE_CAPABILITY, model, message, "build one for a newer GPU, or take an older --target")


def _broken(rule: Rule, model: ModelFolder, message: str, remedy: str, phrase: str = "") -> Finding:
    line = model.line_of(phrase) if phrase else 0
    return rule.broken(message, model=model.name, place=model.place(), line=line, remedy=remedy)
