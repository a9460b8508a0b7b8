"""Versions asked for and brought here, from a registry that tells the truth and from one that does not."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from plansmith.config.source_reference import RegisteredName
from plansmith.errors import EnvironmentFault, SourceError
from plansmith.sources import remote_files
from plansmith.sources.bucket_objects import BucketObjects
from plansmith.sources.mlflow.client import find_server
from plansmith.sources.mlflow.model_version import FlavorOptions, RegisteredVersion, find_version, newest_version

from .registry import Registry
from .registry import running as another_registry
from .written import FOLDER, files_of

WISHES = FlavorOptions(trust_remote_code=False, allow_pickle=False)
ONE = RegisteredName("clf", "1")


def contents(flavour: str, filling: bytes = b"x") -> dict[str, bytes]:
    """Files with the names that MLflow wrote, and its own MLmodel."""
    files = {file.path: filling * 100 for file in files_of(flavour)}
    return files | {"MLmodel": (FOLDER / flavour / "MLmodel").read_bytes()}


def find_registered(model: RegisteredName = ONE) -> RegisteredVersion:
    return find_version(model, WISHES)


def bring(version: RegisteredVersion, folder: Path) -> list[float]:
    shares: list[float] = []
    folder.mkdir(parents=True)
    version.download(folder, lambda _, share: shares.append(share))
    return shares


def test_alias_number_newest_name_versions(registry: Registry) -> None:
    """An alias, a number and the newest are versions of the server."""
    for number in ("1", "2", "10"):
        registry.add(f"clf/{number}", contents("transformers"))
    registry.aliases["clf@champion"] = "2"
    references = ("@champion", "1", "latest")
    assert [find_registered(RegisteredName("clf", reference)).version.number for reference in references] == [
        "2",
        "1",
        "10",
    ]
    assert [newest_version("models:/clf", reference) for reference in references] == ["2", "1", "10"]
    registry.aliases["clf@champion"] = "10"
    assert newest_version("models:/clf", "@champion") == "10"


def test_only_needed_files_fetched(registry: Registry, tmp_path: Path) -> None:
    """What a compile reads is brought and nothing else."""
    registry.add("clf/1", contents("transformers"))
    shares = bring(find_registered(), tmp_path / "clf")
    assert sorted(path.name for path in (tmp_path / "clf").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert not any("conda.yaml" in path for path in registry.requests)


def test_logged_model_and_reference_followed(registry: Registry) -> None:
    """A logged model and a version of another model are followed."""
    registry.add("clf/1", contents("onnx"), "models:/m-0123")
    registry.logged["m-0123"] = "mlflow-artifacts:/clf-1"
    registry.addresses["copy/7"] = "models:/clf/1"
    assert find_registered().flavor_files.scheme == "onnx"
    copied = find_registered(RegisteredName("copy", "7"))
    assert (copied.flavor_files.scheme, str(copied.version)) == ("onnx", "models:/copy/7")


def test_circular_versions_not_followed_forever(registry: Registry) -> None:
    """Versions that stand for one another are not followed forever."""
    registry.addresses |= {"a/1": "models:/b/1", "b/1": "models:/a/1"}
    with pytest.raises(SourceError, match="stand for one another"):
        find_registered(RegisteredName("a", "1"))


@pytest.mark.parametrize("address", ["file:///etc", "/etc/passwd", "s3://bucket/m", "hf://org/model", "dbfs:/m", ""])
def test_files_elsewhere_never_fetched(registry: Registry, address: str) -> None:
    """Files elsewhere are not gone to, whatever way leads there."""
    registry.add("clf/1", contents("onnx"))
    registry.addresses["clf/1"] = address
    registry.addresses["copy/1"] = "models:/m-0123"
    registry.logged["m-0123"] = address
    for name in ("clf", "copy"):
        with pytest.raises(SourceError, match="no place that models may come from"):
            find_registered(RegisteredName(name, "1"))
    assert not any("mlflow-artifacts" in path for path in registry.requests)


@pytest.mark.slow
def test_other_server_asked_only_if_allowed(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server is asked for files only where it is allowed."""
    with another_registry() as server:
        server.add("clf/1", contents("onnx"))
        registry.addresses["clf/1"] = f"{server.url.replace('http', 'mlflow-artifacts')}/clf-1"
        with pytest.raises(SourceError, match="no place"):
            find_registered()
        assert server.requests == []
        monkeypatch.setenv("PLANSMITH_MLFLOW_ALLOWED", server.url)
        assert find_registered().flavor_files.scheme == "onnx"


@pytest.mark.slow
def test_a_redirect_is_not_followed(registry: Registry) -> None:
    with another_registry() as server:
        registry.add("clf/1", contents("onnx"))
        registry.redirect = f"{server.url}/login?secret=1"
        with pytest.raises(EnvironmentFault, match="sends us to") as refused:
            find_registered()
        assert server.requests == []
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/x", "..", "a\\b", "x\ny", ""])
def test_escaping_listing_refused(registry: Registry, tmp_path: Path, name: str) -> None:
    """A listing that leads out of its folder is refused."""
    registry.add("clf/1", contents("onnx"))
    registry.more_names = (name,)
    with pytest.raises(SourceError, match="leads out of its folder"):
        find_registered()
    assert list(tmp_path.iterdir()) == []


def test_endless_listing_given_up(registry: Registry) -> None:
    """A listing without an end is given up."""
    registry.add("clf/1", contents("onnx") | {f"{'deep/' * 12}x": b""})
    with pytest.raises(SourceError, match="more than"):
        find_registered()
    registry.add("clf/1", contents("onnx"))
    registry.more_names = tuple(f"file-{number}" for number in range(remote_files.MOST_FILES))
    with pytest.raises(SourceError, match=f"more than {remote_files.MOST_FILES}"):
        find_registered()


def test_oversized_file_cut_broken_retried(registry: Registry, tmp_path: Path) -> None:
    """A file larger than announced is cut, and one that breaks off is tried again."""
    registry.add("clf/1", contents("transformers"))
    registry.sizes["clf-1/model/model.safetensors"] = 7
    with pytest.raises(SourceError, match="larger than the 7 bytes that were announced"):
        bring(find_registered(), tmp_path / "larger")
    registry.sizes["clf-1/model/model.safetensors"] = 1000
    with pytest.raises(EnvironmentFault, match="broke off 900 B before its end") as shorter:
        bring(find_registered(), tmp_path / "shorter")
    assert shorter.value.transient
    del registry.sizes["clf-1/model/model.safetensors"]
    version = find_registered()
    registry.break_after = 10
    with pytest.raises(EnvironmentFault) as broken:
        bring(version, tmp_path / "broken")
    assert broken.value.transient


def test_oversized_version_not_begun(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is too large is not begun."""
    registry.add("clf/1", contents("transformers"))
    registry.sizes["clf-1/model/model.safetensors"] = 3_000_000_000
    monkeypatch.setenv(remote_files.LIMIT_VARIABLE, "2")
    version = find_registered()
    registry.requests.clear()
    with pytest.raises(SourceError, match="3 GB of files, more than the 2 GB") as refused:
        bring(version, tmp_path / "clf")
    assert refused.value.remedy == "export PLANSMITH_SOURCE_MAX_GB=4 if it is to be that large"
    assert registry.requests == []
    registry.sizes["clf-1/model/model.safetensors"] = 10**18
    monkeypatch.setenv(remote_files.LIMIT_VARIABLE, "1e12")
    with pytest.raises(EnvironmentFault, match="are free where the cache lies"):
        bring(find_registered(), tmp_path / "huge")
    monkeypatch.setenv(remote_files.LIMIT_VARIABLE, "much")
    with pytest.raises(EnvironmentFault, match="which is no number"):
        bring(find_registered(), tmp_path / "wrong")


def test_endless_description_not_read(registry: Registry) -> None:
    """A description without an end is not read."""
    registry.add("clf/1", contents("transformers") | {"MLmodel": b"#" * (5 << 20)})
    with pytest.raises(SourceError, match="larger than any such file"):
        find_registered()


def test_unlogged_files_are_no_model(registry: Registry) -> None:
    """Files that MLflow did not log are no model."""
    registry.add("clf/1", {"model.onnx": b"x"})
    with pytest.raises(SourceError, match="has no MLmodel"):
        find_registered()
    registry.addresses["clf/1"] = "mlflow-artifacts:/nowhere"
    with pytest.raises(SourceError, match="no files in its store"):
        find_registered()


def test_pending_version_waited_for(registry: Registry) -> None:
    """A version that is still being registered is waited for."""
    registry.add("clf/1", contents("onnx"))
    registry.states["clf/1"] = "PENDING_REGISTRATION"
    with pytest.raises(SourceError, match=r"not ready \(pending registration\)") as waiting:
        find_registered()
    registry.states["clf/1"] = "FAILED_REGISTRATION"
    with pytest.raises(SourceError) as failed:
        find_registered()
    assert (waiting.value.transient, failed.value.transient) == (True, False)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("version", ["@nobody", "9", "latest"])
def test_missing_version_quotes_server(version: str) -> None:
    """What is not there is told in the server's own words."""
    with pytest.raises(SourceError, match=r"not found|no version yet") as refused:
        find_registered(RegisteredName("nothing", version))
    assert refused.value.exit_code == 3


@pytest.mark.slow
@pytest.mark.parametrize(("status", "kind"), [(401, SourceError), (403, SourceError), (503, EnvironmentFault)])
def test_refusing_or_overloaded_server_told(
    registry: Registry, status: int, kind: type[SourceError | EnvironmentFault]
) -> None:
    """A server that refuses or is overloaded says so."""
    registry.add("clf/1", contents("onnx"))
    registry.status = status
    with pytest.raises(kind) as refused:
        find_registered()
    assert refused.value.transient == (status == 503)
    assert ("MLFLOW_TRACKING_TOKEN" in refused.value.remedy) == (status < 500)


@pytest.mark.usefixtures("registry")
def test_absent_server_error_hides_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is not there is an error that may pass, and tells no password."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:hunter2@127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match=r"http://127\.0\.0\.1:9 does not answer: Failed to establish") as away:
        find_registered()
    assert away.value.transient
    assert "urllib3" not in away.value.message
    assert "hunter2" not in str(away.value)


def test_mlflow_credentials_used(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of MLflow's own variables are used."""
    registry.add("clf/1", contents("onnx"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a-token")
    find_registered()
    assert set(registry.logins) == {"Bearer a-token"}


def test_address_login_used_for_files(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login in the address is used for files too and stands in no key."""
    registry.add("clf/1", contents("onnx"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.url.replace("://", "://ann:hunter2@"))
    version = find_registered()
    bring(version, tmp_path / "clf")
    assert set(registry.logins) == {f"Basic {b64encode(b'ann:hunter2').decode()}"}
    assert "hunter2" not in str(version.identity())


@pytest.mark.parametrize("address", ["", "sqlite:///mlflow.db", "./mlruns", "databricks", "https://"])
def test_serverless_environment_told_variable(address: str) -> None:
    """An environment without a server is told what to set."""
    with pytest.raises(EnvironmentFault) as refused:
        find_server({"MLFLOW_TRACKING_URI": address})
    assert not refused.value.transient
    assert "export MLFLOW_TRACKING_URI=http" in refused.value.remedy


def test_registry_address_before_runs() -> None:
    """The registry's own address goes before that of the runs."""
    both = {"MLFLOW_TRACKING_URI": "http://runs:5000", "MLFLOW_REGISTRY_URI": "http://ann:pw@registry:5000/"}
    assert find_server(both).shown == "http://registry:5000"


def test_changed_content_is_other_version(registry: Registry) -> None:
    """Another content under the same number is another version."""
    registry.add("clf/1", contents("onnx"))
    before = find_registered().identity()
    assert find_registered().identity() == before
    registry.add("clf/1", contents("onnx", b"yy"))
    assert find_registered().identity() != before


def test_bucket_without_boto3_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket without boto3 is told."""
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    with pytest.raises(EnvironmentFault, match="boto3 is not installed"):
        BucketObjects("s3://models/m", "models:/m/1").listed()
