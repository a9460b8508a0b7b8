"""Where the files of a version may come from: what anybody who may register can write is no reason to go there."""

from __future__ import annotations

import pytest

from plansmith.errors import SourceError, UsageError
from plansmith.sources.mlflow.client import VARIABLE, Allowed, ArtifactLocation, allowed_here, place_of
from plansmith.sources.remote_files import safe_path

SERVER = "https://mlflow.example.com/team"
OTHER = "https://files.example.com"
API = "/api/2.0/mlflow-artifacts/artifacts"
ALLOWED = Allowed(buckets=(("models", ""), ("shared", "ml/prod")), servers=(OTHER,))


def find_place(address: str, allowed: Allowed = ALLOWED) -> ArtifactLocation:
    return place_of(address, server=SERVER, allowed=allowed, of="models:/ranker/3")


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("mlflow-artifacts:/0/models/m-1/artifacts", ArtifactLocation("served", SERVER, "0/models/m-1/artifacts")),
        ("mlflow-artifacts://mlflow.example.com/0/a", ArtifactLocation("served", SERVER, "0/a")),
        (f"{SERVER}{API}/0/a%20b", ArtifactLocation("served", SERVER, "0/a b")),
        ("mlflow-artifacts://files.example.com/0/a", ArtifactLocation("served", OTHER, "0/a")),
        (f"{OTHER}{API}/0/a", ArtifactLocation("served", OTHER, "0/a")),
        ("s3://models/anywhere/m", ArtifactLocation("s3", "models", "anywhere/m")),
        ("s3://shared/ml/prod/m", ArtifactLocation("s3", "shared", "ml/prod/m")),
    ],
)
def test_own_store_and_named_places_allowed(address: str, place: ArtifactLocation) -> None:
    """The server's own store and what the operator named may be gone to."""
    assert find_place(address) == place


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc",
        "/etc/passwd",
        "etc",
        "",
        "hf://org/model",
        "dbfs:/models",
        "gs://models/m",
        "ftp://models/m",
        "s3://elsewhere/m",
        "s3://shared/ml/production/m",
        "s3://shared/ml/prod/../../secret",
        "s3://shared/ml/prod/%2e%2e/%2e%2e/secret",
        "s3://models@elsewhere/m",
        "http://169.254.169.254/latest/meta-data",
        f"https://evil.example.com{API}/0/a",
        f"https://files.example.com.evil.net{API}/0/a",
        f"http://files.example.com{API}/0/a",
        f"{SERVER}/api/2.0/mlflow/users/get",
        "mlflow-artifacts://evil.example.com/0/a",
        "mlflow-artifacts://mlflow.example.com@evil.example.com/0/a",
        "mlflow-artifacts:/0/../1/a",
        "mlflow-artifacts:/0/%2e%2e/1/a",
        "mlflow-artifacts:/0/a\\..\\b",
        "mlflow-artifacts:/0/a?path=..",
        "mlflow-artifacts:/0/a#b",
        "http://[::1",
        "models:/m-1/../..",
    ],
)
def test_unnamed_places_refused(address: str) -> None:
    """No other place is gone to."""
    with pytest.raises(SourceError, match="no place that models may come from") as refused:
        find_place(address)
    assert refused.value.exit_code == 3
    assert refused.value.remedy


def test_own_store_allowed_by_default() -> None:
    """Nothing but the server's own store is allowed unless somebody says so."""
    with pytest.raises(SourceError) as refused:
        find_place("s3://models/m", Allowed())
    assert refused.value.remedy.endswith(f"export {VARIABLE}=s3://models")
    with pytest.raises(SourceError):
        find_place("mlflow-artifacts://files.example.com/0/a", Allowed())


def test_refusal_hides_password() -> None:
    """A refusal tells no password and leaves the terminal alone."""
    with pytest.raises(SourceError) as refused:
        find_place("https://user:hunter2@evil.example.com/\x1b[2J?token=abc")
    assert "hunter2" not in str(refused.value)
    assert "abc" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_environment_names_buckets_and_servers() -> None:
    """The environment names buckets and servers."""
    read = allowed_here({VARIABLE: "s3://models, s3://shared/ml/prod/ ,https://files.example.com/"})
    assert read == ALLOWED
    assert allowed_here({}) == Allowed()


@pytest.mark.parametrize("entry", ["models", "file:///srv", "s3://", "https://user:pass@host", "s3:models", "*"])
def test_invalid_allowed_entry_is_error(entry: str) -> None:
    """An entry that is no place is an error, and not left out."""
    with pytest.raises(UsageError, match=VARIABLE) as refused:
        allowed_here({VARIABLE: f"s3://models,{entry}"})
    assert "pass" not in str(refused.value)


@pytest.mark.parametrize("path", ["", "/a", "a/../b", "..", "a//b", "./a", "a\\b", "a\0b", "a\nb", "a/", "x" * 300])
def test_path_leading_elsewhere_refused(path: str) -> None:
    """A path that leads elsewhere is no path of a model."""
    assert safe_path(path) is None
    assert safe_path("model/1_Pooling/config.json") is not None
