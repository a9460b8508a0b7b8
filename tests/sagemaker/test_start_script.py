"""The start script: the model that is loaded, and what ends the container before Triton starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import RepositoryError, UsageError
from plansmith.sagemaker.start_script import default_model, multi_model_start, single_model_start

PING, OVERRIDE = "SAGEMAKER_TRITON_PING_MODE", "SAGEMAKER_TRITON_OVERRIDE_PING_MODE"
NAME = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"


def archive(folder: Path, *models: str) -> Path:
    for model in models:
        (folder / model / "1").mkdir(parents=True)
    return folder


def test_only_folder_is_the_model(tmp_path: Path) -> None:
    (tmp_path / "readme").touch()
    assert default_model(archive(tmp_path, "only"), {}) == "only"


def test_variable_names_one_of_several(tmp_path: Path) -> None:
    archive(tmp_path, "one", "two")
    assert default_model(tmp_path, {NAME: "two"}) == "two"
    with pytest.raises(RepositoryError, match="three, does not exist") as refused:
        default_model(tmp_path, {NAME: "three"})
    assert "one, two" in refused.value.remedy


@pytest.mark.parametrize(
    ("models", "words"),
    [((), "No model found"), (("one", "two"), "More than 1 model directory"), (("one", ".git"), r"\.git, one")],
)
def test_none_and_several_are_refused(models: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=words):
        default_model(archive(tmp_path, *models), {})


@pytest.mark.parametrize("environment", [{}, {NAME: "m"}])
def test_root_configuration_refused(environment: dict[str, str], tmp_path: Path) -> None:
    """Configuration in the root is refused."""
    archive(tmp_path, "m")
    (tmp_path / "config.pbtxt").touch()
    with pytest.raises(RepositoryError, match="Incorrect directory structure"):
        default_model(tmp_path, environment)


def test_variables_become_arguments(tmp_path: Path) -> None:
    environment = {
        "SAGEMAKER_TRITON_THREAD_COUNT": "3",
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": "1024",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--backend-config=tensorrt,version-compatible=true  --load-model=other",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate",
        "HOME": "elsewhere",
    }
    start = single_model_start(archive(tmp_path, "m"), environment)
    assert start.arguments == (
        "--sagemaker-thread-count=3",
        "--backend-config=python,shm-default-byte-size=1024",
        "--backend-config=python,shm-growth-byte-size=1048576",
        "--model-namespacing=true",
        "--backend-config=tensorrt,version-compatible=true",
        "--load-model=other",
        "--load-model=m",
    )
    assert start.variables[NAME] == "m"
    assert start.variables["SAGEMAKER_TRITON_INFERENCE_TYPE"] == "generate"
    assert "HOME" not in start.variables


@pytest.mark.parametrize(
    ("environment", "single", "many"),
    [({}, None, None), ({PING: "live"}, "ready", "live"), ({PING: "live", OVERRIDE: "ready"}, "ready", "ready")],
)
def test_ping_mode_comes_from_environment(
    environment: dict[str, str], single: str | None, many: str | None, tmp_path: Path
) -> None:
    """Ping mode is passed on from the environment."""
    assert single_model_start(archive(tmp_path, "m"), environment).variables.get(PING) == single
    assert multi_model_start(environment).variables.get(PING) == many


def test_unknown_inference_type_is_refused() -> None:
    with pytest.raises(UsageError, match="'Invalid SAGEMAKER_TRITON_INFERENCE_TYPE': 'chat'") as refused:
        multi_model_start({"SAGEMAKER_TRITON_INFERENCE_TYPE": "chat"})
    assert refused.value.remedy == "choose from: infer, generate, generate_stream"


def test_multi_model_endpoint_loads_none() -> None:
    start = multi_model_start({})
    assert not [argument for argument in start.arguments if "load-model" in argument]
    assert start.variables == {"SAGEMAKER_MULTI_MODEL": "true"}
