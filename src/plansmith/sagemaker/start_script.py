"""Start script of SageMaker's Triton containers: how archive and endpoint environment decide Triton's start.

Source: docker/sagemaker/serve of github.com/triton-inference-server/server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import RepositoryError, UsageError
from plansmith.records.release import CONFIG_FILE

DEFAULT_MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
ADDITIONAL_ARGUMENTS = "SAGEMAKER_TRITON_ADDITIONAL_ARGS"
INFERENCE_TYPE = "SAGEMAKER_TRITON_INFERENCE_TYPE"
INFERENCE_TYPES = ("infer", "generate", "generate_stream")
MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"
PING_MODE = "SAGEMAKER_TRITON_PING_MODE"
"""Whether /ping asks for "ready", all models loaded, or "live", a server that is up.

For a multi-model endpoint the script sets it to "live", but does not export it, so that Triton sees it only where the
endpoint's own environment has it. Otherwise one model that does not load has every /ping fail.
"""

OVERRIDE_PING_MODE = "SAGEMAKER_TRITON_OVERRIDE_PING_MODE"

VARIABLE_PREFIX = "SAGEMAKER_TRITON_"
_FLAGS = {
    "BUFFER_MANAGER_THREAD_COUNT": "--buffer-manager-thread-count={}",
    "THREAD_COUNT": "--sagemaker-thread-count={}",
    "LOG_VERBOSE": "--log-verbose={}",
    "LOG_INFO": "--log-info={}",
    "LOG_WARNING": "--log-warning={}",
    "LOG_ERROR": "--log-error={}",
    "SHM_DEFAULT_BYTE_SIZE": "--backend-config=python,shm-default-byte-size={}",
    "SHM_GROWTH_BYTE_SIZE": "--backend-config=python,shm-growth-byte-size={}",
    "DISABLE_MODEL_NAMESPACING": "--model-namespacing={}",
}
_DEFAULTS = {
    "SHM_DEFAULT_BYTE_SIZE": "16777216",
    "SHM_GROWTH_BYTE_SIZE": "1048576",
    "DISABLE_MODEL_NAMESPACING": "true",  # passed on to --model-namespacing as it is, whatever the name promises
}


@dataclass(frozen=True)
class Start:
    """Start parameters of Triton in the start script.

    Attributes:
        arguments: of the server, without ports.
        variables: of the environment, which Triton's front end reads.
        model: the default model; empty for a multi-model endpoint.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    model: str = ""


def single_model_start(folder: Path, environment: Mapping[str, str]) -> Start:
    """Return the start parameters of a single-model endpoint.

    Args:
        folder: the unpacked archive.
        environment: the endpoint's.

    Raises:
        RepositoryError: the script would end with an error, which is quoted.
        UsageError: a variable has a value that the script refuses.
    """
    model = default_model(folder, environment)
    variables = _front_end_variables(environment, ping="ready") | {DEFAULT_MODEL: model}
    return Start((*_arguments(environment), f"--load-model={model}"), variables, model)


def multi_model_start(environment: Mapping[str, str]) -> Start:
    """Return the start parameters of a multi-model endpoint, with no model loaded.

    Raises:
        UsageError: a variable has a value that the script refuses.
    """
    variables = _front_end_variables(environment, ping="live") | {MULTI_MODEL: "true"}
    return Start(tuple(_arguments(environment)), variables)


def default_model(folder: Path, environment: Mapping[str, str]) -> str:
    """Return the model that the start script loads in Triton, and that the front end calls.

    Args:
        folder: the unpacked archive.
        environment: the endpoint's.

    Raises:
        RepositoryError: the script would end with an error, which is quoted.
    """
    if (folder / CONFIG_FILE).is_file():
        raise RepositoryError(
            f"the start script says 'Incorrect directory structure': {CONFIG_FILE} lies in the root of the archive",
            remedy="put a folder with the model's name around it, as plansmith sagemaker package does",
        )
    named = environment.get(DEFAULT_MODEL, "")
    # As `find -type d` sees them: hidden ones, too, and no links.
    models = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
    choose = f"set {DEFAULT_MODEL} to one of: {', '.join(models)}"
    if named:
        if not (folder / named).is_dir():
            raise RepositoryError(
                f"the start script says that the folder of {DEFAULT_MODEL}, {named}, does not exist", remedy=choose
            )
        return named
    if not models:
        raise RepositoryError(
            "the start script says 'No model found in model repository'",
            remedy="make the archive with plansmith sagemaker package",
        )
    if len(models) > 1:
        raise RepositoryError(
            f"the start script says 'More than 1 model directory found': {', '.join(models)}", remedy=choose
        )
    return models[0]


def _arguments(environment: Mapping[str, str]) -> list[str]:
    """Return the server arguments for the environment variables.

    Unlike the script, this leaves verbose logging off unless asked, and leaves out other ports (gRPC, metrics) and
    SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT.
    """
    kind = environment.get(INFERENCE_TYPE, "")
    if kind and kind not in INFERENCE_TYPES:
        raise UsageError(
            f"the start script says 'Invalid {INFERENCE_TYPE}': {kind!r}",
            remedy=f"choose from: {', '.join(INFERENCE_TYPES)}",
        )
    values = {name: environment.get(f"{VARIABLE_PREFIX}{name}") or _DEFAULTS.get(name, "") for name in _FLAGS}
    flags = [flag.format(values[name]) for name, flag in _FLAGS.items() if values[name]]
    # The shell splits them at white space, and knows no quotes in them.
    return [*flags, *environment.get(ADDITIONAL_ARGUMENTS, "").split()]


def _front_end_variables(environment: Mapping[str, str], ping: str) -> dict[str, str]:
    variables = {name: value for name, value in environment.items() if name.startswith(VARIABLE_PREFIX)}
    return variables | ({PING_MODE: variables.get(OVERRIDE_PING_MODE) or ping} if PING_MODE in variables else {})
