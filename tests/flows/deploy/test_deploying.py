"""`plansmith flows deploy` on a real server: once, twice, changed, beside what others made, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import UsageError

from ...support.cli.command import CommandLine, check_refusal
from ...support.prefect.prefect_server import LOGIN, PASSWORD
from ...support.prefect.service import Service
from ...support.prefect.workers import deploy as deploy_by_prefect
from ...support.prefect.workers import make_pool

pytestmark = pytest.mark.services


FOLLOWING = ("compile-fleet", "refresh", "verify", "collect")
"""Those that start from the service's specs."""
FLOWS = ("compile-model", *FOLLOWING)


def test_second_deploy_changes_nothing(service: Service, run: CommandLine) -> None:
    """A second deploy changes nothing and says so."""
    dry = service.changes(dry_run=True)
    outcomes = service.changes()
    assert outcomes == dry == dict.fromkeys(_all(service), ("made", ()))
    before = {flow: service.deployment(flow)["updated"] for flow in FLOWS}
    again = run("flows", "deploy", "--config", "service.yaml", **service.server.variables())
    assert (again.status, again.stdout[:31]) == (0, "nothing to change: 8 things as "), again
    assert {flow: service.deployment(flow)["updated"] for flow in FLOWS} == before
    assert f"nobody takes up runs of the pool {service.name}" in again.stderr
    assert f"prefect worker start --pool {service.name}" in again.stderr
    assert not [secret for secret in (PASSWORD, LOGIN) if secret in again.stdout + again.stderr]


def test_deployment_says_run_needs(service: Service, tmp_path: Path) -> None:
    """A deployment says all that a run needs."""
    service.changes()
    document = service.deployment("refresh")
    assert document["entrypoint"] == "plansmith.flows.refresh.refresh"
    assert (document["pull_steps"], document["path"], document["storage_document_id"]) == ([], None, None)
    assert document["job_variables"]["working_dir"] == str(tmp_path)
    assert document["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    assert document["enforce_parameter_schema"]
    assert "take_up_seconds" in document["parameter_openapi_schema"]["properties"]
    assert set(document["tags"]) == {"plansmith", f"service:{service.name}"}
    assert document["global_concurrency_limit"] is None


def test_changed_schedules_keep_place(service: Service) -> None:
    """Changed schedules keep their place and those of others stay."""
    service.changes()
    (first,) = service.deployment("refresh")["schedules"]
    own = {"schedule": {"cron": "5 5 * * *", "timezone": "UTC"}, "active": True, "slug": "by-hand"}
    _create_schedule(service, own)
    service.server.ask(f"deployments/{first['deployment_id']}/pause_deployment")
    schedules = service.values["flows"]["refresh"]["schedules"]
    schedules["nightly"]["cron"] = "30 4 * * *"
    schedules["weekly"] = {"cron": "0 1 * * 0"}
    assert service.changes() == {
        f"refresh/{service.name}": (
            "changed",
            (
                "schedule nightly",
                "schedule weekly is new",
            ),
        )
    }
    by_slug = {schedule["slug"]: schedule for schedule in service.deployment("refresh")["schedules"]}
    assert by_slug["plansmith-nightly"]["id"] == first["id"]
    assert service.schedules("refresh") == {
        "plansmith-nightly": ("30 4 * * *", True),
        "plansmith-weekly": ("0 1 * * 0", True),
        "by-hand": ("5 5 * * *", True),
    }
    assert service.deployment("refresh")["paused"], "somebody has paused it"
    del schedules["nightly"]
    assert service.changes() == {f"refresh/{service.name}": ("changed", ("schedule nightly is gone",))}
    assert set(service.schedules("refresh")) == {"plansmith-weekly", "by-hand"}


def test_dropped_deployments_are_removed(service: Service) -> None:
    """What the file no longer has is removed, and nothing else is."""
    second_pool = f"{service.name}-2"
    service.values["pools"][second_pool] = {"create": True}
    service.values["flows"]["verify"] = {"pool": second_pool}
    service.changes()
    deploy_by_prefect(service.server, second_pool, "plansmith.flows.collect.collect", tags=["plansmith"])
    del service.values["pools"][second_pool], service.values["flows"]["verify"]
    assert service.changes(service.name) == {f"verify/{service.name}": ("made", ())}
    assert service.changes() == {
        f"compile-model/{second_pool}": ("removed", ()),
        f"verify/{second_pool}": ("removed", ()),
    }
    left = service.server.ask("deployments/filter", deployments={"name": {"any_": [second_pool]}})
    assert [deployment["entrypoint"] for deployment in left] == ["plansmith.flows.collect.collect"]


def test_changed_parameter_changes_alone(service: Service) -> None:
    """A changed parameter is changed alone."""
    service.changes()
    service.values["specs"] = ["others"]
    service.values["crashed_after_seconds"] = 1200
    assert service.changes() == {
        **{f"{flow}/{service.name}": ("changed", ("parameters",)) for flow in FOLLOWING},
        f"{service.name}: silent runs are crashed": ("changed", ()),
    }
    assert service.deployment("refresh")["parameters"]["specs"] == ["others"]
    assert service.schedules("refresh") == {"plansmith-nightly": ("0 3 * * *", True)}
    assert service.changes() == {}


def test_missing_pool_names_existing_ones(service: Service) -> None:
    """A pool that is not there is named with those that are."""
    service.values["pools"] = {service.name: {}}
    make_pool(service.server, "another")
    says = (f"no work pool {service.name}; there: ", "another (process)", "create: true", "prefect work-pool create")
    service.check_refused(*says)


def test_other_pool_type_refused(service: Service) -> None:
    """A pool of another type is refused."""
    make_pool(service.server, service.name)
    service.values["pools"][service.name]["type"] = "docker"
    service.check_refused("is of the type process", "and not docker", "type: process")


def test_foreign_deployment_not_touched(service: Service) -> None:
    """A deployment that is somebody else's is not touched."""
    make_pool(service.server, service.name)
    deploy_by_prefect(service.server, service.name, "plansmith.flows.verify.verify", description="mine")
    with pytest.raises(UsageError, match=r"verify/.* is there already and is not plansmith's") as refused:
        service.deploy()
    assert f"prefect deployment delete verify/{service.name}" in refused.value.remedy
    assert service.deployment("verify")["description"] == "mine"
    assert len(service.server.ask("deployments/filter", deployments={"name": {"any_": [service.name]}})) == 1


def test_missing_block_names_existing_ones(service: Service) -> None:
    """A block that is not there is named with those that are."""
    service.values["notifications"] = {"failure": ["slack-webhook/absent"]}
    service.check_refused("the Prefect server has no block slack-webhook/absent", "under Blocks in Prefect's pages")


def test_file_mistake_precedes_server(service: Service, run: CommandLine) -> None:
    """What is wrong in the file is said before the server is asked."""
    service.values["flows"]["refresh"]["schedules"]["nightly"]["cron"] = "at night"
    service.write()
    unreachable = service.server.variables(port=9)
    answer = run("flows", "deploy", "--config", "service.yaml", "--json", **unreachable)
    check_refusal(answer, 2, ("service.yaml:15", "is no cron schedule"))


def test_refusing_server_hides_password(service: Service, run: CommandLine) -> None:
    """A server that does not let us in is told without the password."""
    service.write()
    wrong = service.server.variables(login="admin:not this")
    answer = run("flows", "deploy", "--config", "service.yaml", "--json", **wrong)
    check_refusal(answer, 9, ("does not let us in", "PREFECT_API_AUTH_STRING"))
    assert "not this" not in answer.stdout + answer.stderr


def _all(service: Service) -> list[str]:
    watching = [f"{service.name}: {rule}" for rule in ("silent runs are crashed", "runs that do not begin are crashed")]
    return [service.name, *(f"{flow}/{service.name}" for flow in FLOWS), *watching]


def _create_schedule(service: Service, schedule: dict[str, Any]) -> None:
    deployment = service.deployment("refresh")["id"]
    service.server.ask(f"deployments/{deployment}/schedules", [schedule])
