"""Before something is built once more its registry is asked whether it is still so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plansmith.config.service.triggers import TriggersConfig
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.confirmation import Confirmation
from plansmith.triggers.registries.event import Event

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
    given = {"registry": registry, "model": model, "version": version, "change": change, "value": value}
    return Event.model_validate(given)


@pytest.mark.parametrize(("change", "value"), [("alias", "champion"), ("stage", "Production")])
def test_an_alias_and_a_stage_stand_for_one_version(change: str, value: str, mlflow: Mlflow) -> None:
    is_so = confirmation(mlflow.url)
    assert [is_so(event(change, value, version)) for version in ("3", "4")] == [False, True]
    assert not is_so(event(change, "other", "4"))
    assert not is_so(event(change, value, "4", model="absent"))


def test_a_branch_stands_for_one_commit(mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refs(repo: str) -> dict[str, str]:
        asked.append(repo)
        return {"refs/heads/main": "b" * 40}

    monkeypatch.setattr("plansmith.triggers.confirmation.newest_refs", refs)
    is_so = confirmation(mlflow.url)
    moved = [event("branch", "refs/heads/main", one * 40, registry="hub", model="org/x") for one in "ab"]
    assert [is_so(one) for one in moved] == [False, True]
    assert asked == ["org/x"] * 2


def test_of_a_folder_nobody_can_say(mlflow: Mlflow) -> None:
    assert confirmation(mlflow.url)(event("ready", "", "x", registry="here")) is None


def test_of_a_registry_that_the_file_has_no_more_nobody_can_say(mlflow: Mlflow) -> None:
    assert confirmation(mlflow.url)(event("alias", "champion", "4", registry="gone")) is None


def test_a_package_is_approved_until_it_is_rejected(s3_server: str, aws: None) -> None:  # noqa: ARG001
    account = Account(s3_server)
    group = account.registry(account.queue())
    arn = group.register()
    is_so = confirmation("http://127.0.0.1:9", s3_server)
    told = event("approved", "", arn, registry="packages", model=group.group)
    found = []
    for status in ("Approved", "Rejected", "Approved"):
        group.approve(arn, status)
        found.append(is_so(told))
    account.close()
    assert found == [True, False, True]
    with pytest.raises(UsageError, match="refuses describe model package"):
        is_so(told.model_copy(update={"version": f"{arn}7"}))
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        confirmation("http://127.0.0.1:9", "http://127.0.0.1:9")(told)


def test_a_registry_that_cannot_be_asked_confirms_nothing(mlflow: Mlflow) -> None:
    mlflow.answer = (503, b"away")
    with pytest.raises(EnvironmentFault):
        confirmation(mlflow.url)(event("alias", "champion", "4"))
