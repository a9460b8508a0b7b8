"""Service checks: Triton on this machine, and remote Prefect servers, registries and stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plansmith.cli.doctor.findings import Finding, Probed, Severity
from plansmith.cli.doctor.libraries import is_imported
from plansmith.config.targets import DEFAULT_TARGET, Target, load_target, require_onnxruntime
from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.system.files import scratch_folder
from plansmith.triton.server.installation import (
    Installation,
    dali_site,
    find_installation,
    python_library_folder,
    require_python,
    stand_in_site,
)
from plansmith.triton.server.server import TritonServer

PREFECT_AREA = "Prefect"
REGISTRY_AREA = "Registries"
STORE_AREA = "Stores"

_FLOWS = "flow runs (plansmith compile --track)"
_HUB = "models named by id (hf:org/model, timm:name)"
_REGISTERED = "models registered in MLflow (mlflow:models:/name@alias)"
_S3 = "stores and caches in S3"
_INSTALL_FLOWS = "pip install 'plansmith[flows]'"
_INSTALL_S3 = "pip install 'plansmith[s3]'"

AREA = "Triton"
_NEEDED_FOR = "the check on a running Triton, plansmith serve"


def prefect_findings(client: Probed, server: Probed, *, fastapi: str, unmet: str = "") -> list[Finding]:
    """Check the Prefect package, the server that comes with it, and the configured API.

    Args:
        client: Prefect imported, its API asked.
        server: its server imported.
        fastapi: the installed version, which decides whether the server imports.
        unmet: what the installed Prefect lacks for the extra `flows`, in words.
    """
    if client.facts is None:
        return [_absent_or_broken(PREFECT_AREA, "package", client, _FLOWS, _INSTALL_FLOWS)]
    version = client.facts["version"]
    findings = [Finding(PREFECT_AREA, "package", Severity.OK, version)]
    if unmet:
        findings = [Finding(PREFECT_AREA, "package", Severity.WARNING, f"{version}; {unmet}", _FLOWS, _INSTALL_FLOWS)]
    if server.facts is None:
        why = server.broken or "not all of it is installed"
        stated = f"does not import with FastAPI {fastapi or '(not installed)'}: {why}"
        needed_for = "running a Prefect server here"
        findings.append(Finding(PREFECT_AREA, "server", Severity.WARNING, stated, needed_for, _INSTALL_FLOWS))
    elif is_imported(server):
        findings.append(Finding(PREFECT_AREA, "server", Severity.OK, f"imports, with FastAPI {fastapi}"))
    return [*findings, api_finding(client.facts)]


def api_finding(facts: dict[str, Any]) -> Finding:
    """Check the API of PREFECT_API_URL or of the active profile: health first, then the credentials."""
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
        detail = f"{url} is healthy, and refuses the credentials ({access['status']})"
        return Finding(PREFECT_AREA, name, Severity.WARNING, detail, _FLOWS, remedy)
    if "error" in access or access["status"] >= 500:
        remedy = "read the log of the Prefect server"
        detail = f"{url} is healthy, and then {_refusal(access)}"
        return Finding(PREFECT_AREA, name, Severity.WARNING, detail, _FLOWS, remedy)
    return Finding(PREFECT_AREA, name, Severity.OK, f"{url} answers")


def hub_finding(hub: Probed) -> Finding:
    """Check the Hugging Face Hub, as its client is configured."""
    name = "Hugging Face hub"
    if hub.facts is None:
        why = "its client is not installed" if hub.is_absent else f"its client does not work: {hub.broken}"
        return Finding(REGISTRY_AREA, name, Severity.OPTIONAL, why, _HUB)
    endpoint = hub.facts["endpoint"]
    token = "with a token" if hub.facts["token"] else "no token (public models only)"
    if hub.facts["held_offline"]:
        detail = "held offline by HF_HUB_OFFLINE: models in folders and in the hub's cache only"
        return Finding(REGISTRY_AREA, name, Severity.OPTIONAL, detail, _HUB, "unset HF_HUB_OFFLINE")
    if "answer" not in hub.facts:
        return Finding(REGISTRY_AREA, name, Severity.OK, f"{endpoint}, {token}, not asked (--offline)")
    answer = hub.facts["answer"]
    if answer.get("status", 500) >= 500:
        remedy = "set HF_ENDPOINT to a mirror that can be reached, or HF_HUB_OFFLINE=1 and use folders"
        return Finding(REGISTRY_AREA, name, Severity.WARNING, f"{endpoint} {_refusal(answer)}", _HUB, remedy)
    return Finding(REGISTRY_AREA, name, Severity.OK, f"{endpoint} answers, {token}")


def mlflow_finding(mlflow: Probed) -> Finding:
    """Check the server of MLFLOW_TRACKING_URI."""
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
    """Check S3: the SDK, its local configuration, and the custom endpoint if one is set.

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
    findings = [package, _credentials(boto3.facts)]
    return [*findings, _endpoint(boto3.facts)] if boto3.facts["endpoint"] else findings


def _endpoint(facts: dict[str, Any]) -> Finding:
    endpoint = facts["endpoint"]
    if "answer" not in facts:
        return Finding(STORE_AREA, "endpoint", Severity.OK, f"{endpoint}, not asked (--offline)")
    if facts["answer"].get("status", 500) >= 500:
        remedy = f"start the store of {endpoint}, or correct AWS_ENDPOINT_URL"
        detail = f"{endpoint} {_refusal(facts['answer'])}"
        return Finding(STORE_AREA, "endpoint", Severity.WARNING, detail, _S3, remedy)
    return Finding(STORE_AREA, "endpoint", Severity.OK, f"{endpoint} answers")


def _credentials(facts: dict[str, Any]) -> Finding:
    if facts["unreadable"]:
        remedy = "correct AWS_PROFILE or the files in ~/.aws"
        return Finding(STORE_AREA, "AWS account", Severity.WARNING, facts["unreadable"], _S3, remedy)
    lacking = [word for word in ("credentials", "region") if not facts[word]]
    if lacking:
        detail = f"no {' and no '.join(lacking)} in the environment or in ~/.aws; roles of a machine were not asked"
        return Finding(STORE_AREA, "AWS account", Severity.OPTIONAL, detail, _S3, "aws configure")
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


def serving_findings(installation: Installation | None, refusal: EnvironmentFault | None) -> list[Finding]:
    """Check the Triton server and its runtimes for ONNX and PyTorch models.

    Args:
        installation: the server, if there is one.
        refusal: why there is none.
    """
    if installation is None:
        assert refusal is not None
        remedy = f"{refusal.remedy.replace('<target>', DEFAULT_TARGET)}; or compile with --no-check-served"
        server = Finding(AREA, "server", Severity.PROBLEM, refusal.message, _NEEDED_FOR, remedy)
        return [server, _python_library_finding(needed=True)]
    stated = f"{installation.version or 'version not stated'}, {installation.binary}"
    brings_python = installation.stub is None or installation.backends in installation.stub.parents
    return [
        Finding(AREA, "server", Severity.OK, stated),
        _runtime_finding(installation),
        *_dali_findings(installation, load_target(DEFAULT_TARGET)),
        _pytorch_finding(installation),
        _python_library_finding(needed=not brings_python),
    ]


def look(*, deep: bool) -> list[Finding]:
    """Check the server that a compile would use.

    Args:
        deep: start it too.
    """
    try:
        installation = find_installation()
    except EnvironmentFault as refusal:
        return serving_findings(None, refusal)
    return [*serving_findings(installation, None), *([start_finding(installation)] if deep else [])]


def start_finding(installation: Installation) -> Finding:
    """Start the server on an empty repository, check that it responds, and stop it."""
    with scratch_folder("doctor") as scratch:
        repository = Path(scratch) / "repository"
        repository.mkdir()
        try:
            with TritonServer(repository, installation, Path(scratch) / "log", models=()) as server:
                return Finding(AREA, "start", Severity.OK, f"Triton {server.version} started, answered and ended")
        except PlansmithError as error:
            detail = " ".join(error.message.split())
            remedy = "correct what it names; plansmith serve keeps all that Triton says in a log"
            return Finding(AREA, "start", Severity.PROBLEM, detail, _NEEDED_FOR, remedy)


def _python_library_finding(*, needed: bool) -> Finding:
    """Check for Python's shared library, with which Triton in the private folder runs Python models."""
    name = "Python library"
    try:
        return Finding(AREA, name, Severity.OK, str(python_library_folder()))
    except EnvironmentFault as error:
        severity = Severity.PROBLEM if needed else Severity.OPTIONAL
        return Finding(AREA, name, severity, error.message, "the Triton of plansmith serve-env", error.remedy)


def _runtime_finding(installation: Installation) -> Finding:
    name = "ONNX Runtime"
    if installation.real_onnxruntime:
        return Finding(AREA, name, Severity.OK, "Triton's own backend")
    target = load_target(DEFAULT_TARGET)
    if installation.stub is None:
        detail = "the server has neither an ONNX Runtime backend nor a Python stub for this Python"
        remedy = f"unset PLANSMITH_TRITONSERVER, then plansmith serve-env add {target.name}"
        return Finding(AREA, name, Severity.PROBLEM, detail, _NEEDED_FOR, remedy)
    try:
        stand_in_site(installation, target)
    except EnvironmentFault as error:
        return Finding(AREA, name, Severity.PROBLEM, error.message, _NEEDED_FOR, error.remedy)
    version = require_onnxruntime(target).version
    return Finding(AREA, name, Severity.OK, f"{version} in a stand-in backend, for target {target.name}")


def _dali_findings(installation: Installation, target: Target) -> list[Finding]:
    """Check what runs DALI pipelines; return nothing if neither the target nor the server has DALI."""
    name, needed_for = "DALI", "preprocessing: dali in a spec"
    if installation.real_dali:
        return [Finding(AREA, name, Severity.OK, "Triton's own backend")]
    if target.dali is None:
        return []
    try:
        dali_site(installation, target)
    except EnvironmentFault as error:
        return [Finding(AREA, name, Severity.OPTIONAL, error.message, needed_for, error.remedy)]
    return [Finding(AREA, name, Severity.OK, f"{target.dali} in a stand-in backend, for target {target.name}")]


def _pytorch_finding(installation: Installation) -> Finding:
    """Check what runs the models of engine python."""
    name = "PyTorch models"
    try:
        require_python(installation)
    except EnvironmentFault as error:
        return Finding(AREA, name, Severity.OPTIONAL, error.message, "engine python", error.remedy)
    own = installation.lends_python
    detail = "this environment's packages, with a NumPy 1 before them" if own else "the packages of the server's Python"
    return Finding(AREA, name, Severity.OK, detail)
