"""prefect.yaml and the job templates: in step with the service's file, and taken by Prefect as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.schemas.actions import WorkPoolUpdate

from plansmith.flows.deploy.deploying import FOREIGN, SLUG, job_template
from plansmith.flows.deploy.deployments import deployments_of, load_service

from ...support.cli.command import COMMAND, environment
from ...support.prefect.prefect_server import PrefectServer
from ...support.prefect.service import Service

CHECKOUT = Path(__file__).parents[3]
SERVICE = CHECKOUT / "configs" / "service.yaml"
TYPES = ("process", "docker", "kubernetes")


@pytest.mark.slow
def test_prefect_file_has_deployments() -> None:
    """Prefect's own file has the deployments of the service."""
    text = (CHECKOUT / "prefect.yaml").read_text().replace("{{ $PWD }}", str(CHECKOUT))
    written = yaml.safe_load(text)
    assert written["pull"] == [], "Prefect would take the code of this folder there otherwise"
    assert written["deployments"] == [
        _as_prefect_writes(deployment) for deployment in deployments_of(load_service(SERVICE).config)
    ]


@pytest.mark.services
def test_prefect_makes_same_deployments(prefect: PrefectServer) -> None:
    """Prefect makes the same deployments of the file."""
    variables = environment(**prefect.variables(), PWD=str(CHECKOUT))
    for arguments in (
        ("work-pool", "create", "local", "--type", "process", "--overwrite"),
        ("--no-prompt", "deploy", "--all"),
    ):
        prefects = [sys.executable, "-m", "prefect", *arguments]
        done = subprocess.run(prefects, cwd=CHECKOUT, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    ours = [*COMMAND, "flows", "deploy", "--dry-run", "--json"]
    done = subprocess.run(ours, cwd=CHECKOUT, env=variables, capture_output=True, text=True, check=True)
    changes = json.loads(done.stdout)["changes"]
    assert {change["outcome"] for change in changes if change["what"] != "automation"} == {"left"}
    assert len(changes) == 8


@pytest.mark.parametrize("kind", TYPES)
def test_job_template_covers_prefect_one(kind: str) -> None:
    """A job template has all that Prefect's own has."""
    ours, theirs = job_template(kind), _prefects_template(kind)
    # Prefect's list of collections is older than the collections themselves.
    exceptions = {"docker": {"container_wait_timeout"}}.get(kind, set())
    assert set(theirs["variables"]["properties"]) - exceptions <= set(ours["variables"]["properties"])
    assert set(theirs["job_configuration"]) - exceptions <= set(ours["job_configuration"])


@pytest.mark.parametrize("kind", TYPES)
def test_job_template_uses_its_variables(kind: str) -> None:
    """A job template uses the variables that it has and their defaults fit."""
    import jsonschema
    from prefect.utilities.templating import find_placeholders

    template = job_template(kind)
    used = {placeholder.name for placeholder in find_placeholders(template["job_configuration"])}
    properties = template["variables"]["properties"]
    assert used == set(properties)
    defaults = {name: schema["default"] for name, schema in properties.items() if schema.get("default") is not None}
    jsonschema.validate(defaults, template["variables"])


def test_container_runs_have_gpu() -> None:
    """Runs in containers have a GPU and what outlives them."""
    from prefect.utilities.templating import apply_values

    docker = job_template("docker")["variables"]["properties"]
    (request,) = docker["container_create_kwargs"]["default"]["device_requests"]
    assert request == {"driver": "nvidia", "count": 1, "capabilities": [["gpu"]]}
    assert {volume.partition(":")[2] for volume in docker["volumes"]["default"]} == _worker_volumes()
    kubernetes = job_template("kubernetes")
    values = {name: entry.get("default") for name, entry in kubernetes["variables"]["properties"].items()}
    manifest = apply_values(kubernetes["job_configuration"]["job_manifest"], values)
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    mounted = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    assert set(mounted) == {entry["name"] for entry in pod["volumes"]}
    assert set(mounted.values()) - {"/dev/shm"} == _worker_volumes()


@pytest.mark.services
def test_server_takes_pool_templates(service: Service) -> None:
    """The server takes pools with these templates."""
    for kind in ("docker", "kubernetes"):
        settings = {"type": kind, "create": True, "directory": "/work", "job_variables": {"image": "ours:1"}}
        service.values["pools"][f"{service.name}-{kind}"] = settings
    service.changes()
    for kind in ("docker", "kubernetes"):
        (pool,) = service.server.ask("work_pools/filter", work_pools={"name": {"any_": [f"{service.name}-{kind}"]}})
        assert (pool["type"], pool["base_job_template"]) == (kind, job_template(kind))
    assert service.changes() == {}


@pytest.mark.services
def test_unchanged_job_template_renewed(service: Service) -> None:
    """A job template is renewed where nobody has changed it."""
    pool = f"{service.name}-docker"
    service.values["pools"][pool] = {"type": "docker", "create": True, "directory": "/work"}
    service.server.ask("work_pools/", name=pool, type="docker", base_job_template=_prefects_template("docker"))
    assert service.changes()[pool] == ("changed", ("job template",))
    assert _template_of(service, pool) == job_template("docker")
    own = job_template("docker")
    own["variables"]["properties"]["image"]["default"] = "mine:1"
    with service.client() as client:
        client.update_work_pool(pool, WorkPoolUpdate(base_job_template=own))
    (left,) = [change for change in service.deploy().changes if change.name == pool]
    assert (left.outcome, left.words) == ("left", (FOREIGN,))
    assert _template_of(service, pool) == own


def _template_of(service: Service, pool: str) -> dict[str, Any]:
    (work_pool,) = service.server.ask("work_pools/filter", work_pools={"name": {"any_": [pool]}})
    template = work_pool["base_job_template"]
    assert isinstance(template, dict)
    return template


def _as_prefect_writes(deployment: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": deployment.name,
        "entrypoint": deployment.entrypoint,
        "description": deployment.description,
        "tags": list(deployment.tags),
        "work_pool": {"name": deployment.pool, "job_variables": deployment.job_variables},
        "enforce_parameter_schema": True,
    }
    if deployment.parameters:
        document["parameters"] = deployment.parameters
    if deployment.schedules:
        document["schedules"] = [
            {"cron": each.cron, "timezone": each.timezone, "slug": SLUG + each.name} for each in deployment.schedules
        ]
    return document


def _prefects_template(kind: str) -> dict[str, Any]:
    """The one that Prefect's server offers for a type of pools, from the file that it has them in."""
    import prefect

    file = Path(prefect.__file__).parent / "server/api/collections_data/views/aggregate-worker-metadata.json"
    workers = {
        name: worker for collection in json.loads(file.read_text()).values() for name, worker in collection.items()
    }
    template = workers[kind]["default_base_job_configuration"]
    assert isinstance(template, dict)
    return template


def _worker_volumes() -> set[str]:
    """The volumes of the image that compiles for GPUs."""
    text = (CHECKOUT / "docker" / "Dockerfile").read_text()
    stage = text.partition(" AS worker\n")[2].partition("\nFROM ")[0]
    (line,) = [line for line in stage.splitlines() if line.startswith("VOLUME ")]
    return set(json.loads(line.removeprefix("VOLUME ")))
