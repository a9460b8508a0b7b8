"""Before something is built once more its registry is asked whether it is still so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plansmith.config.service_triggers import TriggersConfig
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.registries.delivery import Event
from plansmith.triggers.watch import Confirmation

from ..support.triggers.aws_account import Account
from ..support.triggers.mlflow_server import Mlflow, serving


@pytest.fixture
def mlflow() -> Iterator[Mlflow]:
    with serving(Mlflow()) as server:
        server.add("ranker", 3)
        server.add("ranker", 4, stage="Production")
        server.aliases["ranker"] = {"champion": "4"}
        yield server


def confirmation(tracking_uri: str, sagemaker: str = "") -> Confirmation:
    config = {
        "registries": {
            "ours": {"type": "mlflow", "tracking_uri": tracking_uri},
            "hub": {"type": "hub"},
            "here": {"type": "folder", "path": "models"},
            "packages": {"type": "sagemaker", "queue_url": "https://queue", "sagemaker_endpoint_url": sagemaker},
        },
        "rules": [{"registry": "here", "model": "*", "when": "ready", "spec": "a.yaml"}],
    }
    return Confirmation(TriggersConfig.model_validate(config), {})


def event(change: str, value: str, version: str, *, registry: str = "ours", model: str = "ranker") -> Event:
    fields = {"registry": registry, "model": model, "version": version, "change": change, "value": value}
    return Event.model_validate(fields)


@pytest.mark.parametrize(("change", "value"), [("alias", "champion"), ("stage", "Production")])
def test_alias_and_stage_name_one_version(change: str, value: str, mlflow: Mlflow) -> None:
    """An alias and a stage stand for one version."""
    is_so = confirmation(mlflow.url)
    assert [is_so(event(change, value, version)) for version in ("3", "4")] == [False, True]
    assert not is_so(event(change, "other", "4"))
    assert not is_so(event(change, value, "4", model="absent"))


def test_branch_names_one_commit(mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch stands for one commit."""
    calls: list[str] = []

    def refs(repo: str) -> dict[str, str]:
        calls.append(repo)
        return {"refs/heads/main": "b" * 40}

    monkeypatch.setattr("plansmith.triggers.watch.newest_refs", refs)
    is_so = confirmation(mlflow.url)
    moved = [event("branch", "refs/heads/main", item * 40, registry="hub", model="org/x") for item in "ab"]
    assert [is_so(item) for item in moved] == [False, True]
    assert calls == ["org/x"] * 2


def test_folder_cannot_confirm(mlflow: Mlflow) -> None:
    """Of a folder, nobody can say."""
    assert confirmation(mlflow.url)(event("ready", "", "x", registry="here")) is None


def test_removed_registry_cannot_confirm(mlflow: Mlflow) -> None:
    """Of a registry that the file no longer has, nobody can say."""
    assert confirmation(mlflow.url)(event("alias", "champion", "4", registry="gone")) is None


def test_package_approved_until_rejected(s3_server: str, aws: None) -> None:  # noqa: ARG001
    """A package is approved until it is rejected."""
    account = Account(s3_server)
    group = account.registry(account.queue())
    arn = group.register()
    is_so = confirmation("http://127.0.0.1:9", s3_server)
    approval = event("approved", "", arn, registry="packages", model=group.group)
    results = []
    for status in ("Approved", "Rejected", "Approved"):
        group.approve(arn, status)
        results.append(is_so(approval))
    account.close()
    assert results == [True, False, True]
    with pytest.raises(UsageError, match="refuses describe model package"):
        is_so(approval.model_copy(update={"version": f"{arn}7"}))
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        confirmation("http://127.0.0.1:9", "http://127.0.0.1:9")(approval)


def test_silent_registry_confirms_nothing(mlflow: Mlflow) -> None:
    """A registry that cannot be asked confirms nothing."""
    mlflow.answer = (503, b"away")
    with pytest.raises(EnvironmentFault):
        confirmation(mlflow.url)(event("alias", "champion", "4"))
