"""Deployments that meet others, or that ended early: each undoes its own work and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, ServedCheckError, UsageError

from ...support.sagemaker.account import IMPATIENT, AwsAccount

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sagemaker-control-plane")]

SMOKE: dict[str, Any] = {"smoke_test": {"body": "request.json"}}
WRONG_ANSWER = ("ModelError", "400: wrong")


@pytest.fixture(autouse=True)
def request_file(account: AwsAccount) -> None:
    (account.folder / "request.json").write_text("{}")


def failure(account: AwsAccount, content: str, error: type[PlansmithError], **changes: Any) -> str:
    """The message of a deployment that fails."""
    with pytest.raises(error) as failed:
        account.deploy(content, **changes)
    return failed.value.message


@pytest.mark.parametrize("content", ["other", "new"], ids=["another release", "the same release"])
def test_failure_beside_another_deployment(account: AwsAccount, content: str) -> None:
    """A deployment that fails before it changed the endpoint leaves what another one deployed meanwhile."""
    account.deploy()
    planned = account.plan("new")
    account.deploy(content)
    resources = account.resources()
    account.plane.refusals["create_model"].append(("AccessDeniedException", "not authorized"))
    with pytest.raises(EnvironmentFault, match="the endpoint is as it was"):
        account.apply(planned)
    assert account.config() == account.plan(content).plan.config
    assert account.resources() == resources


def test_endpoint_changed_during_smoke_test(account: AwsAccount) -> None:
    """A deployment whose endpoint another one changed after it leaves that as it is."""
    account.deploy()
    config = account.plan("new").plan.config
    account.plane.before["invoke_endpoint"] = lambda: account.deploy("other")
    account.plane.refusals["invoke_endpoint"].append(WRONG_ANSWER)
    assert "another deployment gave" in failure(account, "new", ServedCheckError, **SMOKE)
    assert account.config() not in {config, account.plan().plan.config}


def test_lost_answer_to_a_creation(account: AwsAccount) -> None:
    """An endpoint that is created although the answer was lost is waited for and deleted."""
    account.plane.lost_answers.append("create_endpoint")
    assert "it was the first deployment" in failure(account, "", EnvironmentFault)
    assert account.describe() is None
    assert account.resources() == {"models": [], "configs": []}


def test_lost_answer_to_an_update(account: AwsAccount) -> None:
    """An update that goes on although the answer was lost is rolled back."""
    account.deploy()
    before, resources = account.config(), account.resources()
    account.plane.lost_answers.append("update_endpoint")
    assert f"serves {before} again" in failure(account, "new", EnvironmentFault)
    assert account.config() == before
    assert account.resources() == resources


def test_same_endpoint_created_meanwhile(account: AwsAccount) -> None:
    """An endpoint that another run creates with the same configuration counts as created."""
    planned = account.plan()
    account.plane.before["create_endpoint"] = account.deploy
    account.apply(planned)
    assert account.config() == planned.plan.config
    assert len(account.resources()["configs"]) == 1


def test_other_endpoint_created_meanwhile(account: AwsAccount) -> None:
    """Of two first deployments at once, the late one deletes its own configuration and not the shared model."""
    planned = account.plan(variant={"instance_count": 2})
    account.plane.before["create_endpoint"] = account.deploy
    with pytest.raises(UsageError, match="already existing endpoint"):
        account.apply(planned)
    config = account.plan().plan.config
    assert account.config() == config
    assert account.resources()["configs"] == [config]
    assert len(account.resources()["models"]) == 1


def test_endpoint_changed_after_planning(account: AwsAccount) -> None:
    """An endpoint that another deployment changed after this one was planned is not overwritten."""
    account.deploy()
    planned = account.plan("new")
    account.deploy("other")
    config, resources = account.config(), account.resources()
    with pytest.raises(RepositoryError, match="was changed meanwhile"):
        account.apply(planned)
    assert account.config() == config
    assert account.resources() == resources


def test_same_update_done(account: AwsAccount) -> None:
    """An update that another run has done meanwhile is not done again."""
    account.deploy()
    planned = account.plan("new")
    account.deploy("new")
    account.plane.requests.clear()
    account.apply(planned)
    assert "update_endpoint" not in account.plane.requests
    assert account.config() == planned.plan.config


def test_same_update_under_way(account: AwsAccount) -> None:
    """An update to the same configuration that is under way already is waited for."""
    account.deploy()
    planned = account.plan("new")
    with pytest.raises(EnvironmentFault, match="is still Updating"):
        account.deploy("new", polling=IMPATIENT)
    account.apply(planned)
    assert account.config() == planned.plan.config


def test_unverified_deployment(account: AwsAccount) -> None:
    """A deployment that was not waited for is tested by the next one, and rolls back to what was verified."""
    account.deploy(**SMOKE)
    before = account.config()
    with pytest.raises(EnvironmentFault, match="is still Updating"):
        account.deploy("new", polling=IMPATIENT, **SMOKE)
    account.describe()
    assert account.config() != before
    account.plane.refusals["invoke_endpoint"].append(WRONG_ANSWER)
    message = failure(account, "new", ServedCheckError, **SMOKE)
    assert f"the endpoint serves {before} again, as before" in message
    assert account.config() == before


def test_verified_endpoint_that_fails_later(account: AwsAccount) -> None:
    """An endpoint that passed its smoke test once stays as it is when it fails later."""
    account.deploy(**SMOKE)
    account.deploy("new", **SMOKE)
    config = account.config()
    account.plane.refusals["invoke_endpoint"].append(("ModelError", "503: overloaded"))
    assert "the endpoint is as it was" in failure(account, "new", ServedCheckError, **SMOKE)
    assert account.config() == config
    assert account.plane.changes() == []


def test_tags_that_cannot_be_set(account: AwsAccount) -> None:
    """A deployment that cannot be noted serves nevertheless, and the next one notes it."""
    account.plane.refusals["add_tags"].append(("ThrottlingException", "Rate exceeded"))
    assert "only its tags do not say so yet" in failure(account, "", EnvironmentFault)
    assert account.config() == account.plan().plan.config
    account.deploy()
    assert account.plane.changes() == ["add_tags"]
