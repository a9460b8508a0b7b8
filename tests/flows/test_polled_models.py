"""What pollers of S3 and SageMaker announce is what a compile fetches, where the service's file allows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.service import ServiceConfig
from plansmith.config.service_triggers import S3Registry, SageMakerRegistry
from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import ModelSpec
from plansmith.errors import SourceError, UsageError
from plansmith.flows.deploy.deployments import environment_of
from plansmith.flows.triggers.builder import orders_of
from plansmith.flows.triggers.service import poll_once
from plansmith.records.model import SourceModel
from plansmith.steps.fetch import fetch
from plansmith.steps.runner import Listener, StageRunner
from plansmith.triggers.pollers.poller import Poller
from plansmith.triggers.pollers.s3 import S3Poller
from plansmith.triggers.pollers.sagemaker import SageMakerPoller
from plansmith.triggers.registries.delivery import Event

from ..support.models.archives import packed, transformers_folder
from ..support.triggers.aws_account import Account

SPEC = "ranker.yaml"
NOW = 1795165608.0


@pytest.fixture(autouse=True)
def service_folder(tmp_path: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the service, with a spec and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", account.address)
    (tmp_path / SPEC).write_text("source: hf:org/ranker\n")
    transformers_folder(tmp_path / "ranker")
    return tmp_path


def service(kind: str, when: str, **registry: Any) -> ServiceConfig:
    """A service with one registry and a rule that wants all of it."""
    triggers = {
        "registries": {"ours": {"type": kind, **registry}},
        "rules": [{"registry": "ours", "model": "*", "when": when, "spec": SPEC}],
    }
    return ServiceConfig.model_validate({"specs": ["."], "pools": {"first": {}}, "triggers": triggers})


def polled_event(poller: Poller) -> Event:
    """The one thing that a poller tells."""
    try:
        (delivery,) = poller.poll(NOW)
    finally:
        poller.close()
    return delivery.events[0]


def built(config: ServiceConfig, event: Event) -> tuple[ModelSpec, Callable[[], SourceModel]]:
    """What is to be compiled of an event, and what fetches it."""
    (order,) = orders_of(config, event, "tools", 0)
    spec = order.request.spec

    def fetched() -> SourceModel:
        stages = StageRunner("ranker", Path("artifacts"), listener=Listener(), force=False, dry=False)
        try:
            source = fetch(stages, spec, parse_reference(spec.source, relative_to=Path.cwd()))
        finally:
            stages.close()
        assert source is not None
        return source.record

    return spec, fetched


def test_s3_folder_compiled_as_announced(
    account: Account, service_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in S3 is compiled as it was announced, or not at all."""
    bucket = account.bucket()
    for path in (*(service_folder / "ranker").iterdir(), service_folder / SPEC):
        key = f"team/ranker/{'_READY' if path.name == SPEC else path.name}"
        account.s3.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    config = service("s3", "ready", prefix=f"s3://{bucket}/team", endpoint_url=account.address)
    assert config.triggers is not None
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    for name, value in environment_of(config).items():  # as deployments give it to runs
        monkeypatch.setenv(name, value)
    registry = config.triggers.registries["ours"]
    assert isinstance(registry, S3Registry)
    event = polled_event(S3Poller("ours", registry, config.triggers.rules, tell=print))
    spec, fetched = built(config, event)
    source = fetched()
    assert (spec.name, source.scheme, source.address) == ("ranker", "hf", f"s3://{bucket}/team/ranker")
    assert source.revision == event.version
    account.s3.put_object(Bucket=bucket, Key="team/ranker/tokenizer.json", Body=b'{"newer": 1}')
    with pytest.raises(SourceError, match="something else than was announced"):
        fetched()


@pytest.mark.parametrize("allowed", ["s3://{}/team/*", "s3://{}/other/*", ""])
def test_approved_package_compiled_where_allowed(allowed: str, account: Account, service_folder: Path) -> None:
    """An approved package is compiled where its place is allowed."""
    bucket, queue = account.bucket(), account.queue()
    address = f"s3://{bucket}/team/model.tar.gz"
    account.s3.put_object(Bucket=bucket, Key="team/model.tar.gz", Body=packed(service_folder / "ranker"))
    group = account.registry(queue)
    group.approve(group.register(address))
    sources = [allowed.format(bucket)] if allowed else []
    config = service("sagemaker", "approved", queue_url=queue.url, endpoint_url=account.address, sources=sources)
    assert config.triggers is not None
    registry = config.triggers.registries["ours"]
    assert isinstance(registry, SageMakerRegistry)
    poller = SageMakerPoller("ours", registry, (), tell=print, wait_seconds=0)
    assert bool(poller.cautions) == (not allowed)
    event = polled_event(poller)
    if "team" not in allowed:
        with pytest.raises(UsageError, match="`sources` of the registry ours does not allow") as refused:
            built(config, event)
        assert address in refused.value.message
        assert "triggers.registries.ours.sources" in refused.value.remedy
        return
    spec, fetched = built(config, event)
    source = fetched()
    assert (spec.name, source.scheme, source.address) == ("ranker", "hf", address)


def test_dry_run_leaves_queues_alone(account: Account, service_folder: Path) -> None:
    """A dry run lists what is there and leaves queues alone."""
    packages, notifications, bucket = account.queue(), account.queue(), account.bucket()
    for path in (*(service_folder / "ranker").iterdir(), service_folder / SPEC):
        key = f"ranker/{'_READY' if path.name == SPEC else path.name}"
        account.s3.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    notifications.send("{}")
    group = account.registry(packages)
    group.approve(group.register(f"s3://{bucket}/model.tar.gz"))
    endpoints = {"endpoint_url": account.address}
    triggers = {
        "registries": {
            "shelf": {
                "type": "s3",
                "prefix": f"s3://{bucket}",
                "queue_url": notifications.url,
                "queue_endpoint_url": account.address,
                **endpoints,
            },
            "packages": {
                "type": "sagemaker",
                "queue_url": packages.url,
                "sources": ["s3://*"],
                "sagemaker_endpoint_url": account.address,
                **endpoints,
            },
        },
        "rules": [
            {"registry": "shelf", "model": "*", "when": "ready", "spec": SPEC},
            {"registry": "packages", "model": group.group, "when": "approved", "spec": SPEC},
        ],
    }
    config = ServiceConfig.model_validate(
        {"directory": str(service_folder), "specs": ["."], "pools": {"first": {}}, "triggers": triggers}
    )
    before = (packages.length, notifications.length)
    builds, faults = poll_once(config, time.time())
    assert ([build.registry for build in builds], faults) == (["shelf", "packages"], [])
    assert (packages.length, notifications.length) == before == (2, 1)
