"""Triton core rules on every configuration: name, backend, metrics, agents; `config.*`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder
from plansmith.triton.checker.reader import ENSEMBLE, PLATFORMS, hides_model_file

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_CORE = "core: src/model_config_utils.cc"
_VALIDATE = f"{_CORE}, ValidateModelConfig; Triton 2.51 was seen to do so"

NAME = Rule(
    "config.name",
    "error",
    "the name in the configuration, where there is one, is that of the model's folder",
    "core: src/model_repository_manager/model_repository_manager.cc, InitializeModelInfo; 2.51 was seen to do so",
)
NO_BACKEND = Rule(
    "config.no-backend", "error", "the configuration, or the model's file, says what serves the model", _VALIDATE
)
PLATFORM = Rule("config.platform", "error", "a platform is one that Triton knows, unless a backend is named", _VALIDATE)
PAIR = Rule("config.backend-platform", "error", "backend and platform are of the same kind", _VALIDATE)
MISSPELT = Rule(
    "config.backend-misspelt",
    "error",
    "the name of a backend is not that of one in NVIDIA's containers but for a letter or two, nor its beginning",
    "core: src/backend_manager.cc looks for a library or folder of that name; Triton 2.51 was seen to do so",
)
RESEMBLING = Rule(
    "config.backend-resembling",
    "warning",
    "a backend that is called like one in NVIDIA's containers is meant to be another, and installed",
    "core: src/backend_manager.cc looks for a library or folder of that name",
)
CUSTOM = Rule(
    "config.backend-custom",
    "note",
    "a backend is one that NVIDIA's containers have; any other has to be installed",
    "server: build.py, the backends of the containers",
)
MAX_BATCH = Rule("config.max-batch-size", "error", "max_batch_size is not negative", _VALIDATE)
METRICS = Rule(
    "config.model-metrics",
    "error",
    "each control of metrics names a family and has buckets",
    f"{_CORE}, ValidateModelMetrics, in versions that know model_metrics",
)
TAGS = Rule(
    "config.metric-tags",
    "error",
    "the name of a metric tag is one that Prometheus takes; any other ends the server, whatever else that serves",
    "prometheus.io/docs/concepts/data_model, label names; Triton 2.51 was seen to do so",
)
NEWER = Rule(
    "config.newer-field",
    "error",
    "the configuration has no field that is newer than the target's Triton, which refuses what it does not know",
    "common: pull request 126 brought model_metrics in November 2024; Triton 2.51 was seen to refuse it; core:"
    " src/constants.h for platforms",
)
AGENT = Rule(
    "config.repository-agent",
    "warning",
    "a model needs no repository agent but those in NVIDIA's containers: without its library the model is not loaded",
    "core: src/repo_agent.cc; Triton 2.51 was seen to do so",
)
RULES: tuple[Rule, ...] = (
    NAME,
    NO_BACKEND,
    PLATFORM,
    PAIR,
    MISSPELT,
    RESEMBLING,
    CUSTOM,
    MAX_BATCH,
    METRICS,
    TAGS,
    NEWER,
    AGENT,
)

KNOWN_BACKENDS = (
    "dali",
    "fil",
    "identity",
    "onnxruntime",
    "openvino",
    "python",
    "pytorch",
    "repeat",
    "square",
    "tensorflow",
    "tensorrt",
    "tensorrtllm",
    "vllm",
)
"""Backends that one or the other of NVIDIA's containers has."""

_KNOWN_AGENTS = {"checksum"}
_TAG = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_SINCE = {"model_metrics": (2, 52)}
# Server's issue 8414 says that Triton 2.62, of October 2025, had none of them; which was the first to is not known.
_PLATFORMS_AFTER = {"libtorch": (2, 62), "torch_aoti": (2, 62)}
_NEAR = 0.75
_MOST_SLIPS, _LETTERS_FOR_A_SLIP = 2, 3
_FEWEST_LETTERS = 4
"""Of the beginning of a backend's name, such as onnx, that can mean nothing else."""


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield configuration errors that Triton's core would refuse for any backend."""
    if model.config is None and model.text:
        return
    yield from _backend(model)
    if model.config is None:
        return
    config = model.config
    if config.name and config.name != model.name:
        yield model.faulted(
            NAME,
            f"name is {config.name!r}, and the folder is {model.name}",
            config.name,
            remedy=f'write name: "{model.name}", leave it out, or rename the folder',
        )
    if config.max_batch_size < 0:
        yield model.faulted(
            MAX_BATCH,
            f"max_batch_size is {config.max_batch_size}",
            "max_batch_size",
            remedy="write 0 where the model has no batch dimension, else the largest batch",
        )
    yield from _metrics(model, config)
    yield from _newer_fields(model, config, surroundings)
    for agent in config.model_repository_agents.agents:
        if agent.name not in _KNOWN_AGENTS:
            yield model.faulted(
                AGENT,
                f"the repository agent {agent.name!r} is not in NVIDIA's containers",
                "model_repository_agents",
                remedy=f"install libtritonrepoagent_{agent.name}.so into the server's folder of agents, or take it out",
            )


def _backend(model: ModelFolder) -> Iterator[Finding]:
    backend, platform = model.backend, model.platform
    if platform == ENSEMBLE:
        return
    if not backend and platform:
        near = difflib.get_close_matches(platform, [*PLATFORMS, ENSEMBLE], n=1)
        yield model.faulted(
            PLATFORM,
            f"platform {platform!r} is none that Triton knows",
            "platform",
            remedy=f'did you mean "{near[0]}"?' if near else 'write backend: "…" instead',
        )
    elif not backend and (model.versions or model.config is not None) and not hides_model_file(model):
        yield NO_BACKEND.broken(
            "nothing says what serves the model: no backend, no platform and no file that Triton knows by its name",
            model=model.name,
            place=model.place() if model.config is not None else model.name,
            remedy='write backend: "…"; or call the file model.onnx, model.plan, model.pt, model.xml or model.py',
        )
    kind = next((candidate for candidate in PLATFORMS.values() if candidate == backend), "")
    if kind and PLATFORMS.get(platform) != kind:
        yield model.faulted(
            PAIR,
            f"backend {backend!r} does not go with platform {platform!r}",
            "platform",
            remedy="leave the platform out",
        )
    yield from _unknown_backend(model)


def _unknown_backend(model: ModelFolder) -> Iterator[Finding]:
    backend, is_described = model.backend, model.config is not None or model.versions
    if (
        not backend
        or not is_described
        or backend in KNOWN_BACKENDS
        or (model.config is not None and model.config.runtime)
    ):
        return
    library = f"libtriton_{backend}.so"
    if any((folder / library).exists() for folder in (model.path, *model.versions.values())):
        return
    near = [known for known in KNOWN_BACKENDS if len(backend) >= _FEWEST_LETTERS and known.startswith(backend)]
    near = near or difflib.get_close_matches(backend, KNOWN_BACKENDS, n=1, cutoff=_NEAR)
    if near:
        yield model.faulted(
            MISSPELT if _is_misspelling(backend, near[0]) else RESEMBLING,
            f"NVIDIA's containers have no backend {backend!r}",
            backend,
            remedy=f'did you mean backend: "{near[0]}"? If not, see that {library} is installed',
        )
    else:
        yield model.faulted(
            CUSTOM,
            f"backend {backend!r} is none of those in NVIDIA's containers",
            backend,
            remedy=f"see that {library}, or model.py of a Python-based backend, is in the server's folder of backends",
        )


def _is_misspelling(name: str, reference: str) -> bool:
    """Whether a name is a known one with a few typing mistakes or cut, and not one deliberately derived from it."""
    if reference.startswith(name):
        return True
    if name.startswith(reference) or name.endswith(reference):
        return False
    return _slips(name, reference) <= min(_MOST_SLIPS, len(reference) // _LETTERS_FOR_A_SLIP)


def _slips(first: str, second: str) -> int:
    """The Levenshtein distance: how many letters have to be replaced, inserted or deleted."""
    row = list(range(len(second) + 1))
    for count, letter in enumerate(first, 1):
        before, row[0] = row[0], count
        for place, its in enumerate(second, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (letter != its))
    return row[-1]


def _metrics(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    for control in config.model_metrics.metric_control:
        if not control.metric_identifier.family or not control.histogram_options.buckets:
            yield model.faulted(
                METRICS,
                "a control of metrics lacks its metric_identifier's family, or its histogram_options' buckets",
                "metric_control",
                remedy='write metric_identifier { family: "…" } histogram_options { buckets: [ … ] }',
            )
    for tag in sorted(config.metric_tags):
        if not _TAG.fullmatch(tag):
            yield model.faulted(
                TAGS,
                f"{tag!r} is no name of a metric tag",
                "metric_tags",
                remedy="use letters, digits and '_', and begin with a letter",
            )


def _newer_fields(model: ModelFolder, config: pb.ModelConfig, surroundings: CheckContext) -> Iterator[Finding]:
    version = surroundings.target.triton if surroundings.target is not None else None
    if version is None:
        return
    numbers = tuple(map(int, version.split(".")))
    after = _PLATFORMS_AFTER.get(config.platform)
    if after is not None and numbers[:2] <= after:
        yield model.faulted(
            NEWER,
            f"platform {config.platform!r} is for Triton newer than {'.'.join(map(str, after))},"
            f" and the target has {version}",
            "platform",
            remedy='write platform: "pytorch_libtorch" and a TorchScript model, or serve the model by a newer Triton',
        )
    for field, since in _SINCE.items():
        if config.HasField(field) and numbers < since:
            yield model.faulted(
                NEWER,
                f"{field} is for Triton {'.'.join(map(str, since))} and newer, and the target has {version}",
                field,
                remedy="take it out, or serve the model by a newer Triton",
            )
