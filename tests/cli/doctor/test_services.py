"""Prefect, registries and stores: what their answers mean."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.cli.doctor import services
from plansmith.cli.doctor.findings import Probed, Severity

URL = "http://prefect:4200/api"
HUB = {"version": "2.4.0", "endpoint": "https://hub", "held_offline": False, "token": False}
BOTO3 = {"version": "1.44.5", "region": "eu-west-1", "credentials": "env", "unreadable": "", "endpoint": ""}


@pytest.mark.parametrize(
    ("facts", "severity", "words"),
    [
        ({"url": ""}, Severity.OPTIONAL, "PREFECT_API_URL is not set"),
        ({"url": URL}, Severity.OK, "not asked"),
        (
            {"url": URL, "health": {"error": "no answer in 3 s"}},
            Severity.WARNING,
            "cannot be reached: no answer in 3 s",
        ),
        ({"url": URL, "health": {"status": 502}}, Severity.WARNING, "answers with status 502"),
        ({"url": URL, "health": {"status": 200}, "access": {"status": 401}}, Severity.WARNING, "credentials (401)"),
        ({"url": URL, "health": {"status": 200}, "access": {"error": "reset"}}, Severity.WARNING, "healthy, and then"),
        ({"url": URL, "health": {"status": 200}, "access": {"status": 200}}, Severity.OK, f"{URL} answers"),
    ],
)
def test_prefect_judged_by_health(facts: dict[str, Any], severity: Severity, words: str) -> None:
    """The Prefect API is judged by its health and then by its door."""
    finding = services.api_finding(facts)
    assert finding.severity is severity
    assert words in finding.found
    assert finding.remedy or severity is Severity.OK


def test_broken_prefect_names_extra() -> None:
    """A Prefect server that FastAPI breaks names the version and the extra."""
    broken = Probed(broken="TypeError: Body() got an unexpected keyword argument 'min_items'")
    client = Probed({"version": "3.8.8", "url": ""})
    package, server, _ = services.prefect_findings(client, broken, fastapi="0.163.2")
    assert package.severity is Severity.OK
    assert server.severity is Severity.WARNING
    assert "FastAPI 0.163.2: TypeError" in server.found
    assert server.remedy == "pip install 'plansmith[flows]'"


def test_other_prefect_major_is_warning() -> None:
    """A Prefect of another major version is a warning that says what is needed."""
    client = Probed({"version": "2.20.0", "url": ""})
    package, *_ = services.prefect_findings(client, Probed({}), fastapi="0.150.0", unmet="needed is >=3.8, <4")
    assert (package.severity, package.found) == (Severity.WARNING, "2.20.0; needed is >=3.8, <4")


def test_missing_prefect_is_optional() -> None:
    """A missing Prefect is optional, and a broken one is a warning."""
    (absent,) = services.prefect_findings(Probed(), Probed(), fastapi="")
    (broken,) = services.prefect_findings(Probed(broken="ImportError: x"), Probed(), fastapi="")
    assert (absent.severity, absent.remedy) == (Severity.OPTIONAL, "pip install 'plansmith[flows]'")
    assert (broken.severity, broken.remedy) == (Severity.WARNING, "pip install --force-reinstall 'plansmith[flows]'")


@pytest.mark.parametrize(
    ("facts", "severity", "words"),
    [
        (HUB | {"answer": {"status": 200}, "token": True}, Severity.OK, "https://hub answers, with a token"),
        (HUB | {"answer": {"status": 404}}, Severity.OK, "no token"),
        (HUB, Severity.OK, "not asked"),
        (HUB | {"held_offline": True}, Severity.OPTIONAL, "HF_HUB_OFFLINE"),
        (HUB | {"answer": {"error": "Name or service not known"}}, Severity.WARNING, "Name or service not known"),
    ],
)
def test_hub_needed_for_ids_only(facts: dict[str, Any], severity: Severity, words: str) -> None:
    """The Hub is needed only for models that are named by ID."""
    finding = services.hub_finding(Probed(facts))
    assert finding.severity is severity
    assert words in finding.found


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        ({"uri": ""}, Severity.OPTIONAL),
        ({"uri": "sqlite:///ml.db"}, Severity.OPTIONAL),
        ({"uri": "http://ml", "answer": {"status": 200}}, Severity.OK),
        ({"uri": "http://ml", "answer": {"status": 503}}, Severity.WARNING),
    ],
)
def test_mlflow_counts_where_named(facts: dict[str, Any], severity: Severity) -> None:
    """MLflow counts only where a server is named."""
    finding = services.mlflow_finding(Probed(facts))
    assert finding.severity is severity
    assert severity is Severity.OK or "mlflow:models:/name@alias" in finding.needed_for


def test_s3_needs_sdk_and_credentials() -> None:
    """S3 wants the SDK, credentials, a region and its endpoint."""
    (absent,) = services.store_findings(Probed())
    assert (absent.severity, absent.remedy) == (Severity.OPTIONAL, "pip install 'plansmith[s3]'")
    package, _ = services.store_findings(Probed(BOTO3), unmet="needs >=1.36")
    assert (package.severity, package.found) == (Severity.WARNING, "1.44.5; needs >=1.36")
    assert package.remedy == absent.remedy
    _, account = services.store_findings(Probed(BOTO3))
    assert (account.severity, account.found) == (Severity.OK, "credentials by env, eu-west-1")
    _, account = services.store_findings(Probed(BOTO3 | {"credentials": "", "region": ""}))
    assert account.severity is Severity.OPTIONAL
    assert account.found.startswith("no credentials and no region")
    _, account = services.store_findings(Probed(BOTO3 | {"unreadable": "The config profile (none) could not be found"}))
    assert (account.severity, account.found) == (Severity.WARNING, "The config profile (none) could not be found")
    away = {"endpoint": "http://minio:9000", "answer": {"error": "Connection refused"}}
    *_, endpoint = services.store_findings(Probed(BOTO3 | away))
    assert (endpoint.severity, endpoint.found) == (
        Severity.WARNING,
        "http://minio:9000 cannot be reached: Connection refused",
    )
    *_, endpoint = services.store_findings(Probed(BOTO3 | away | {"answer": {"status": 403}}))
    assert endpoint.severity is Severity.OK
