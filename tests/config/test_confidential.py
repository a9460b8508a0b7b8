"""A secret that stands in a file or an address is in no message, whatever is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from plansmith.config.service import ServiceConfig
from plansmith.config.spec import ModelSpec, problem_of
from plansmith.config.targets import Runtime
from plansmith.errors import UsageError
from plansmith.flows.deploy.deployments import load_service
from plansmith.records.fields import Confidential

from ..support.cli.in_process import InProcess

SECRET = "hunter2"
ADDRESS = f"https://user:{SECRET}@registry.example.com/a?token={SECRET}"
PLANTED: tuple[Any, ...] = (ADDRESS, SECRET, [SECRET], [[SECRET]], {"a": [SECRET]}, {"a": {"a": SECRET}})

NAMED_LIKE_ONE = re.compile(r"secret|ur[il]$|password|token$|header|credential|^env$|^parameters$|^source$|^database$")


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _classes(field.annotation)
    for inner in get_args(annotation):
        yield from _classes(inner)


CLASSES = {cls.__name__: cls for root in (ServiceConfig, ModelSpec, Runtime) for cls in _classes(root)}
CONFIDENTIAL = {
    f"{name}.{field}": (cls, field)
    for name, cls in CLASSES.items()
    for field, info in cls.model_fields.items()
    if any(isinstance(one, Confidential) for one in info.metadata)
}


def _problems(cls: type[BaseModel], field: str, value: Any) -> list[str]:
    """What is said of the value of a field: by pydantic for a log, and by us."""
    with pytest.raises(ValidationError) as refused:
        cls.model_validate({field: value, "nothing": 0})
    problems = [error for error in refused.value.errors() if error["loc"][0] == field]
    return [str(refused.value), *(problem_of(error, {field: value}).message for error in problems)] if problems else []


@pytest.mark.parametrize(("cls", "field"), CONFIDENTIAL.values(), ids=CONFIDENTIAL.keys())
def test_confidential_problem_hides_value(cls: type[BaseModel], field: str) -> None:
    """No problem of a confidential field shows what was given."""
    problems = [problem for planted in PLANTED for problem in _problems(cls, field, planted)]
    assert problems
    assert SECRET not in str(problems)


def test_secret_names_are_confidential() -> None:
    """What is named like a secret or an address is confidential."""
    fields = [(name, field) for name, cls in CLASSES.items() for field in cls.model_fields]
    assert {f"{name}.{field}" for name, field in fields if NAMED_LIKE_ONE.search(field)} <= CONFIDENTIAL.keys()


SPECS: dict[str, dict[str, Any]] = {
    "an address for a source": {"source": ADDRESS},
    "an address for a registered model": {"source": f"mlflow:{ADDRESS}"},
    "addresses everywhere": {
        "source": [ADDRESS],
        "publish": [ADDRESS, {"to": f"s3://user:{SECRET}@bucket/a", "endpoint_url": ADDRESS}],
        "load_into": [ADDRESS],
        "triton": {"parameters": {"key": [SECRET]}, "metric_tags": SECRET},
        "pipeline": {"models": {"a": {"source": {"a": ADDRESS}}}},
    },
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--json",)], ids=" ".join)
def test_refused_compile_stores_no_secret(spec: dict[str, Any], options: tuple[str, ...], run: InProcess) -> None:
    """A compile that is refused prints, logs and stores no secret."""
    (run.folder / "model.yaml").write_text(json.dumps(spec))  # which is YAML, too
    _check_kept(run, ("compile", "model.yaml", *options))


ADDRESSED = {
    "a source": ("compile", ADDRESS),
    "a store": ("versions", "m", "--store", ADDRESS),
    "a bucket": ("publish", "m", f"s3://user:{SECRET}@bucket/a"),
    "an endpoint": ("versions", "m", "--store", "s3://bucket/a", "--endpoint-url", ADDRESS),
    "a Triton": ("infer", "m", "--url", ADDRESS),
    "an inbox": ("triggers", "inbox", "--database", f"mysql://user:{SECRET}@h/a"),
}


@pytest.mark.parametrize("words", ADDRESSED.values(), ids=ADDRESSED.keys())
def test_command_line_password_hidden(words: tuple[str, ...], run: InProcess) -> None:
    """An address on the command line is refused without its password."""
    _check_kept(run, words)


def test_environment_password_hidden(run: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place in the environment is refused without its password."""
    monkeypatch.setenv("PLANSMITH_SHARED_CACHE", f"s3://user:{SECRET}@bucket/a")
    (run.folder / "a.onnx").touch()
    _check_kept(run, ("compile", "onnx:a.onnx"))


def test_service_file_secrets_hidden(tmp_path: Path) -> None:
    """The file of a service is refused without its secrets."""
    registries = {
        "mlflow": {"type": "mlflow", "tracking_uri": ADDRESS, "secrets": [SECRET]},
        "hub": {"type": "hub", "secrets": SECRET},
        "hook": {"type": "hook", "secrets": {SECRET: SECRET}},
        "s3": {"type": "s3", "prefix": [ADDRESS], "queue_url": {"a": ADDRESS}},
        "unknown": {"type": "ftp", "secrets": [SECRET]},
        "text": ADDRESS,
    }
    service = {
        "specs": ["specs"],
        "pools": {"a": {"env": {"TOKEN": [SECRET]}, "job_variables": SECRET}},
        "flows": {"refresh": {"parameters": [SECRET]}},
        "triggers": {"database": [ADDRESS], "registries": registries, "rules": []},
    }
    (tmp_path / "service.yaml").write_text(json.dumps(service))  # which is YAML, too
    with pytest.raises(UsageError) as refused:
        load_service(tmp_path / "service.yaml")
    assert SECRET not in str(refused.value)
    assert "triggers.registries.mlflow.secrets.0" in str(refused.value)


def _check_kept(run: InProcess, words: tuple[str, ...]) -> None:
    """A command is refused, and the secret is in nothing that it printed or wrote."""
    existing = set(run.folder.rglob("*"))
    answer = run(*words)
    assert answer.status != 0
    assert SECRET not in answer.stdout + answer.stderr
    written = [path for path in set(run.folder.rglob("*")) - existing if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
