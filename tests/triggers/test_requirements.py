"""A registry that could not be asked for want of a library is refused at the start, with what to install."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from plansmith.cli import cli
from plansmith.config.service_triggers import TriggersConfig
from plansmith.errors import EnvironmentFault
from plansmith.triggers.configuration import registries_of_workers, require_libraries

from ..support.triggers.watched import WatchedService

HUB: dict[str, Any] = {"type": "hub"}
BUCKET = {"type": "s3", "prefix": "s3://models/team"}
PACKAGES = {"type": "sagemaker", "queue_url": "https://sqs.eu-west-1.amazonaws.com/1/q"}
BRANCH = {"registry": "hub", "when": "branch", "model": "org/model"}


@pytest.fixture(params=["huggingface_hub", "boto3"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library that is not installed."""
    name = str(request.param)

    def find(module: str) -> ModuleSpec | None:
        return None if module == name else find_spec(module)

    monkeypatch.setattr("plansmith.system.libraries.find_spec", find)
    return name


def config_of(**registries: Any) -> TriggersConfig:
    first = next(iter(registries))
    rule = {"registry": first, "model": "m", "when": "branch", "spec": "m.yaml"}
    return TriggersConfig.model_validate({"registries": registries, "rules": [rule]})


def test_missing_package_named_with_extra(missing: str) -> None:
    """What is missing for a registry is named with the extra that brings it."""
    config = config_of(hub=HUB, shelf=BUCKET, packages=PACKAGES, here={"type": "folder", "path": "models"})
    with pytest.raises(EnvironmentFault, match=f"{missing} is not installed") as refused:
        require_libraries(config.registries)
    assert refused.value.remedy == f"pip install 'plansmith[{'s3' if missing == 'boto3' else 'triggers'}]'"
    require_libraries({"here": config.registries["here"]})


def test_workers_ask_written_registries() -> None:
    """Workers ask the hub and packages that are written to."""
    config = config_of(hub=HUB, shelf=BUCKET, packages=PACKAGES, told=PACKAGES | {"write_back": True})
    assert list(registries_of_workers(config)) == ["hub", "packages", "told"]


@pytest.mark.parametrize("missing", ["huggingface_hub"], indirect=True)
@pytest.mark.parametrize("words", [("serve", "--dry-run"), ("watch", "--once")], ids=["serve --dry-run", "watch"])
def test_hub_rules_without_client_told(
    missing: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with rules on the hub says at the start that it cannot ask it."""
    WatchedService(tmp_path, {"hub": HUB}, BRANCH)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFault, match=f"{missing} is not installed, and hub"):
        CliRunner().invoke(cli, ["triggers", *words], catch_exceptions=False, standalone_mode=False)
