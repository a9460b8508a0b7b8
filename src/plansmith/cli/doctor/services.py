"""Services elsewhere: Prefect, registries, stores. None is needed by a plain compile."""

from __future__ import annotations

from typing import Any

from plansmith.cli.doctor.children import Probed
from plansmith.cli.doctor.findings import Finding, Severity
from plansmith.cli.doctor.libraries import is_imported

PREFECT_AREA = "Prefect"
REGISTRY_AREA = "Registries"
STORE_AREA = "Stores"

_FLOWS = "flow runs (plansmith compile --track)"
_HUB = "models named by id (hf:org/model, timm:name)"
_REGISTERED = "models registered in MLflow (mlflow:models:/name@alias)"
_S3 = "stores and caches in S3"
_INSTALL_FLOWS = "pip install 'plansmith[flows]'"
_INSTALL_S3 = "pip install 'plansmith[s3]'"


def prefect_findings(client: Probed, server: Probed, *, fastapi: str, unmet: str = "") -> list[Finding]:
    """The package, the server that comes with it, and the API that is configured.

    Args:
        client: Prefect imported, its API asked.
        server: its server imported.
        fastapi: the installed version, which decides whether the server imports.
        unmet: what the installed Prefect lacks for the extra `flows`, in words.
    """
    if client.facts is None:
        return [_absent_or_broken(PREFECT_AREA, "package", client, _FLOWS, _INSTALL_FLOWS)]
    version = client.facts["version"]
    found = [Finding(PREFECT_AREA, "package", Severity.OK, version)]
    if unmet:
        found = [Finding(PREFECT_AREA, "package", Severity.WARNING, f"{version}; {unmet}", _FLOWS, _INSTALL_FLOWS)]
    if server.facts is None:
        why = server.broken or "not all of it is installed"
        stated = f"does not import with FastAPI {fastapi or '(not installed)'}: {why}"
        needed_for = "running a Prefect server here"
        found.append(Finding(PREFECT_AREA, "server", Severity.WARNING, stated, needed_for, _INSTALL_FLOWS))
    elif is_imported(server):
        found.append(Finding(PREFECT_AREA, "server", Severity.OK, f"imports, with FastAPI {fastapi}"))
    return [*found, api_finding(client.facts)]


def api_finding(facts: dict[str, Any]) -> Finding:
    """The API of PREFECT_API_URL or of the active profile, asked for its health and then with the credentials."""
    name, url = "API", facts["url"]
    if not url:
        remedy = "prefect server start, then prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api"
        return Finding(PREFECT_AREA, name, Severity.OPTIONAL, "PREFECT_API_URL is not set", _FLOWS, remedy)
    if "health" not in facts:
        return Finding(PREFECT_AREA, name, Severity.OK, f"{url}, not asked (--offline)")
    health = facts["health"]
    if health.get("status") != 200:
        remedy = f"start the Prefect server of {url}, or correct PREFECT_API_URL"
        return Finding(PREFECT_AREA, name, Severity.WARNING, f"{url} {_refusal(health)}", _FLOWS, remedy)
    access = facts["access"]
    if access.get("status") in {401, 403}:
        remedy = "prefect config set PREFECT_API_AUTH_STRING=<user>:<password>"
        found = f"{url} is healthy, and refuses the credentials ({access['status']})"
        return Finding(PREFECT_AREA, name, Severity.WARNING, found, _FLOWS, remedy)
    if "error" in access or access["status"] >= 500:
        remedy = "read the log of the Prefect server"
        found = f"{url} is healthy, and then {_refusal(access)}"
        return Finding(PREFECT_AREA, name, Severity.WARNING, found, _FLOWS, remedy)
    return Finding(PREFECT_AREA, name, Severity.OK, f"{url} answers")


def hub_finding(hub: Probed) -> Finding:
    """The Hugging Face hub, as its client is configured."""
    name = "Hugging Face hub"
    if hub.facts is None:
        why = "its client is not installed" if hub.is_absent else f"its client does not work: {hub.broken}"
        return Finding(REGISTRY_AREA, name, Severity.OPTIONAL, why, _HUB)
    endpoint = hub.facts["endpoint"]
    token = "with a token" if hub.facts["token"] else "no token (public models only)"
    if hub.facts["held_offline"]:
        found = "held offline by HF_HUB_OFFLINE: models in folders and in the hub's cache only"
        return Finding(REGISTRY_AREA, name, Severity.OPTIONAL, found, _HUB, "unset HF_HUB_OFFLINE")
    if "answer" not in hub.facts:
        return Finding(REGISTRY_AREA, name, Severity.OK, f"{endpoint}, {token}, not asked (--offline)")
    answer = hub.facts["answer"]
    if answer.get("status", 500) >= 500:
        remedy = "set HF_ENDPOINT to a mirror that can be reached, or HF_HUB_OFFLINE=1 and use folders"
        return Finding(REGISTRY_AREA, name, Severity.WARNING, f"{endpoint} {_refusal(answer)}", _HUB, remedy)
    return Finding(REGISTRY_AREA, name, Severity.OK, f"{endpoint} answers, {token}")


def mlflow_finding(mlflow: Probed) -> Finding:
    """The server of MLFLOW_TRACKING_URI."""
    name, facts = "MLflow", mlflow.facts
    if facts is None:
        remedy = "set MLFLOW_TRACKING_URI to http://<host>:<port>"
        return Finding(REGISTRY_AREA, name, Severity.WARNING, mlflow.broken, _REGISTERED, remedy)
    uri = facts["uri"]
    if not uri:
        return Finding(REGISTRY_AREA, name, Severity.OPTIONAL, "MLFLOW_TRACKING_URI is not set", _REGISTERED)
    if not uri.startswith(("http://", "https://")):
        return Finding(REGISTRY_AREA, name, Severity.OPTIONAL, f"{uri} is no server that could be asked", _REGISTERED)
    if "answer" not in facts:
        return Finding(REGISTRY_AREA, name, Severity.OK, f"{uri}, not asked (--offline)")
    if facts["answer"].get("status") != 200:
        remedy = f"start the MLflow server of {uri}, or correct MLFLOW_TRACKING_URI"
        return Finding(REGISTRY_AREA, name, Severity.WARNING, f"{uri} {_refusal(facts['answer'])}", _REGISTERED, remedy)
    return Finding(REGISTRY_AREA, name, Severity.OK, f"{uri} answers")


def store_findings(boto3: Probed, *, unmet: str = "") -> list[Finding]:
    """S3: the SDK, what it knows without asking anyone, and the endpoint if one of its own is set.

    Args:
        boto3: the SDK imported, its configuration read.
        unmet: what the installed SDK lacks for the extra `s3`, in words.
    """
    if boto3.facts is None:
        return [_absent_or_broken(STORE_AREA, "boto3", boto3, _S3, _INSTALL_S3)]
    version = boto3.facts["version"]
    package = Finding(STORE_AREA, "boto3", Severity.OK, version)
    if unmet:
        package = Finding(STORE_AREA, "boto3", Severity.WARNING, f"{version}; {unmet}", _S3, _INSTALL_S3)
    found = [package, _credentials(boto3.facts)]
    return [*found, _endpoint(boto3.facts)] if boto3.facts["endpoint"] else found


def _endpoint(facts: dict[str, Any]) -> Finding:
    endpoint = facts["endpoint"]
    if "answer" not in facts:
        return Finding(STORE_AREA, "endpoint", Severity.OK, f"{endpoint}, not asked (--offline)")
    if facts["answer"].get("status", 500) >= 500:
        remedy = f"start the store of {endpoint}, or correct AWS_ENDPOINT_URL"
        found = f"{endpoint} {_refusal(facts['answer'])}"
        return Finding(STORE_AREA, "endpoint", Severity.WARNING, found, _S3, remedy)
    return Finding(STORE_AREA, "endpoint", Severity.OK, f"{endpoint} answers")


def _credentials(facts: dict[str, Any]) -> Finding:
    if facts["unreadable"]:
        remedy = "correct AWS_PROFILE or the files in ~/.aws"
        return Finding(STORE_AREA, "AWS account", Severity.WARNING, facts["unreadable"], _S3, remedy)
    lacking = [word for word in ("credentials", "region") if not facts[word]]
    if lacking:
        found = f"no {' and no '.join(lacking)} in the environment or in ~/.aws; roles of a machine were not asked"
        return Finding(STORE_AREA, "AWS account", Severity.OPTIONAL, found, _S3, "aws configure")
    return Finding(STORE_AREA, "AWS account", Severity.OK, f"credentials by {facts['credentials']}, {facts['region']}")


def _absent_or_broken(area: str, name: str, probe: Probed, needed_for: str, remedy: str) -> Finding:
    if probe.is_absent:
        return Finding(area, name, Severity.OPTIONAL, "not installed", needed_for, remedy)
    repair = remedy.replace("pip install", "pip install --force-reinstall")
    return Finding(area, name, Severity.WARNING, f"does not work: {probe.broken}", needed_for, repair)


def _refusal(answer: dict[str, Any]) -> str:
    if "status" in answer:
        return f"answers with status {answer['status']}"
    return f"cannot be reached: {answer['error']}"
