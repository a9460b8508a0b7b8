"""Versions asked for and brought here, from a registry that tells the truth and from one that does not."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from plansmith.config.mlflow_uri import RegisteredName
from plansmith.errors import EnvironmentFault, SourceError
from plansmith.sources import remote_files
from plansmith.sources.bucket_objects import BucketObjects
from plansmith.sources.mlflow.client import find_server
from plansmith.sources.mlflow.flavors import FlavorOptions
from plansmith.sources.mlflow.model_version import RegisteredVersion, find_version, newest_version

from .registry import Registry
from .registry import running as another_registry
from .written import FOLDER, files_of

WISHES = FlavorOptions(trust_remote_code=False, allow_pickle=False)
ONE = RegisteredName("clf", "1")


def contents(flavour: str, filling: bytes = b"x") -> dict[str, bytes]:
    """Files with the names that MLflow wrote, and its own MLmodel."""
    found = {file.path: filling * 100 for file in files_of(flavour)}
    return found | {"MLmodel": (FOLDER / flavour / "MLmodel").read_bytes()}


def found(model: RegisteredName = ONE) -> RegisteredVersion:
    return find_version(model, WISHES)


def bring(version: RegisteredVersion, folder: Path) -> list[float]:
    shares: list[float] = []
    folder.mkdir(parents=True)
    version.download(folder, lambda _, share: shares.append(share))
    return shares


def test_an_alias_a_number_and_the_newest_are_versions_of_the_server(registry: Registry) -> None:
    for number in ("1", "2", "10"):
        registry.add(f"clf/{number}", contents("transformers"))
    registry.aliases["clf@champion"] = "2"
    asked = ("@champion", "1", "latest")
    assert [found(RegisteredName("clf", one)).version.number for one in asked] == ["2", "1", "10"]
    assert [newest_version("models:/clf", one) for one in asked] == ["2", "1", "10"]
    registry.aliases["clf@champion"] = "10"
    assert newest_version("models:/clf", "@champion") == "10"


def test_what_a_compile_reads_is_brought_and_nothing_else(registry: Registry, tmp_path: Path) -> None:
    registry.add("clf/1", contents("transformers"))
    shares = bring(found(), tmp_path / "clf")
    assert sorted(path.name for path in (tmp_path / "clf").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert not any("conda.yaml" in path for path in registry.requests)


def test_a_logged_model_and_a_version_of_another_model_are_followed(registry: Registry) -> None:
    registry.add("clf/1", contents("onnx"), "models:/m-0123")
    registry.logged["m-0123"] = "mlflow-artifacts:/clf-1"
    registry.addresses["copy/7"] = "models:/clf/1"
    assert found().kept.scheme == "onnx"
    copied = found(RegisteredName("copy", "7"))
    assert (copied.kept.scheme, str(copied.version)) == ("onnx", "models:/copy/7")


def test_versions_that_stand_for_one_another_are_not_followed_for_ever(registry: Registry) -> None:
    registry.addresses |= {"a/1": "models:/b/1", "b/1": "models:/a/1"}
    with pytest.raises(SourceError, match="stand for one another"):
        found(RegisteredName("a", "1"))


@pytest.mark.parametrize("address", ["file:///etc", "/etc/passwd", "s3://bucket/m", "hf://org/model", "dbfs:/m", ""])
def test_files_elsewhere_are_not_gone_to_whatever_way_leads_there(registry: Registry, address: str) -> None:
    registry.add("clf/1", contents("onnx"))
    registry.addresses["clf/1"] = address
    registry.addresses["copy/1"] = "models:/m-0123"
    registry.logged["m-0123"] = address
    for name in ("clf", "copy"):
        with pytest.raises(SourceError, match="no place that models may come from"):
            found(RegisteredName(name, "1"))
    assert not any("mlflow-artifacts" in path for path in registry.requests)


@pytest.mark.slow
def test_another_server_is_asked_for_files_only_where_it_is_allowed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_registry() as other:
        other.add("clf/1", contents("onnx"))
        registry.addresses["clf/1"] = f"{other.url.replace('http', 'mlflow-artifacts')}/clf-1"
        with pytest.raises(SourceError, match="no place"):
            found()
        assert other.requests == []
        monkeypatch.setenv("PLANSMITH_MLFLOW_ALLOWED", other.url)
        assert found().kept.scheme == "onnx"


@pytest.mark.slow
def test_a_redirect_is_not_followed(registry: Registry) -> None:
    with another_registry() as other:
        registry.add("clf/1", contents("onnx"))
        registry.redirect = f"{other.url}/login?secret=1"
        with pytest.raises(EnvironmentFault, match="sends us to") as refused:
            found()
        assert other.requests == []
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/x", "..", "a\\b", "x\ny", ""])
def test_a_listing_that_leads_out_of_its_folder_is_refused(registry: Registry, tmp_path: Path, name: str) -> None:
    registry.add("clf/1", contents("onnx"))
    registry.more_names = (name,)
    with pytest.raises(SourceError, match="leads out of its folder"):
        found()
    assert list(tmp_path.iterdir()) == []


def test_a_listing_without_an_end_is_given_up(registry: Registry) -> None:
    registry.add("clf/1", contents("onnx") | {f"{'deep/' * 12}x": b""})
    with pytest.raises(SourceError, match="more than"):
        found()
    registry.add("clf/1", contents("onnx"))
    registry.more_names = tuple(f"file-{number}" for number in range(remote_files.MOST_FILES))
    with pytest.raises(SourceError, match=f"more than {remote_files.MOST_FILES}"):
        found()


def test_a_file_larger_than_announced_is_cut_and_one_that_breaks_off_is_tried_again(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add("clf/1", contents("transformers"))
    registry.sizes["clf-1/model/model.safetensors"] = 7
    with pytest.raises(SourceError, match="larger than the 7 bytes that were announced"):
        bring(found(), tmp_path / "larger")
    registry.sizes["clf-1/model/model.safetensors"] = 1000
    with pytest.raises(EnvironmentFault, match="broke off 900 B before its end") as shorter:
        bring(found(), tmp_path / "shorter")
    assert shorter.value.transient
    del registry.sizes["clf-1/model/model.safetensors"]
    version = found()
    registry.break_after = 10
    with pytest.raises(EnvironmentFault) as broken:
        bring(version, tmp_path / "broken")
    assert broken.value.transient


def test_a_version_that_is_too_large_is_not_begun(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add("clf/1", contents("transformers"))
    registry.sizes["clf-1/model/model.safetensors"] = 3_000_000_000
    monkeypatch.setenv(remote_files.LIMIT_VARIABLE, "2")
    version = found()
    registry.requests.clear()
    with pytest.raises(SourceError, match="3 GB of files, more than the 2 GB") as refused:
        bring(version, tmp_path / "clf")
    assert refused.value.remedy == "export PLANSMITH_SOURCE_MAX_GB=4 if it is to be that large"
    assert registry.requests == []
    registry.sizes["clf-1/model/model.safetensors"] = 10**18
    monkeypatch.setenv(remote_files.LIMIT_VARIABLE, "1e12")
    with pytest.raises(EnvironmentFault, match="are free where the cache lies"):
        bring(found(), tmp_path / "huge")
    monkeypatch.setenv(remote_files.LIMIT_VARIABLE, "much")
    with pytest.raises(EnvironmentFault, match="which is no number"):
        bring(found(), tmp_path / "wrong")


def test_a_description_without_an_end_is_not_read(registry: Registry) -> None:
    registry.add("clf/1", contents("transformers") | {"MLmodel": b"#" * (5 << 20)})
    with pytest.raises(SourceError, match="larger than any such file"):
        found()


def test_files_that_mlflow_did_not_log_are_no_model(registry: Registry) -> None:
    registry.add("clf/1", {"model.onnx": b"x"})
    with pytest.raises(SourceError, match="has no MLmodel"):
        found()
    registry.addresses["clf/1"] = "mlflow-artifacts:/nowhere"
    with pytest.raises(SourceError, match="no files in its store"):
        found()


def test_a_version_that_is_still_being_registered_is_waited_for(registry: Registry) -> None:
    registry.add("clf/1", contents("onnx"))
    registry.states["clf/1"] = "PENDING_REGISTRATION"
    with pytest.raises(SourceError, match=r"not ready \(pending registration\)") as waiting:
        found()
    registry.states["clf/1"] = "FAILED_REGISTRATION"
    with pytest.raises(SourceError) as failed:
        found()
    assert (waiting.value.transient, failed.value.transient) == (True, False)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("wanted", ["@nobody", "9", "latest"])
def test_what_is_not_there_is_said_with_the_servers_own_words(wanted: str) -> None:
    with pytest.raises(SourceError, match=r"not found|no version yet") as refused:
        found(RegisteredName("nothing", wanted))
    assert refused.value.exit_code == 3


@pytest.mark.slow
@pytest.mark.parametrize(("status", "kind"), [(401, SourceError), (403, SourceError), (503, EnvironmentFault)])
def test_a_server_that_refuses_or_is_overloaded_says_so(
    registry: Registry, status: int, kind: type[SourceError | EnvironmentFault]
) -> None:
    registry.add("clf/1", contents("onnx"))
    registry.status = status
    with pytest.raises(kind) as refused:
        found()
    assert refused.value.transient == (status == 503)
    assert ("MLFLOW_TRACKING_TOKEN" in refused.value.remedy) == (status < 500)


@pytest.mark.usefixtures("registry")
def test_a_server_that_is_not_there_is_an_error_that_may_pass_and_tells_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:hunter2@127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match=r"http://127\.0\.0\.1:9 does not answer: Failed to establish") as away:
        found()
    assert away.value.transient
    assert "urllib3" not in away.value.message
    assert "hunter2" not in str(away.value)


def test_credentials_of_mlflows_own_variables_are_used(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add("clf/1", contents("onnx"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a-token")
    found()
    assert set(registry.logins) == {"Bearer a-token"}


def test_a_login_in_the_address_is_used_for_files_too_and_stands_in_no_key(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add("clf/1", contents("onnx"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.url.replace("://", "://ann:hunter2@"))
    version = found()
    bring(version, tmp_path / "clf")
    assert set(registry.logins) == {f"Basic {b64encode(b'ann:hunter2').decode()}"}
    assert "hunter2" not in str(version.identity())


@pytest.mark.parametrize("address", ["", "sqlite:///mlflow.db", "./mlruns", "databricks", "https://"])
def test_an_environment_without_a_server_is_told_what_to_set(address: str) -> None:
    with pytest.raises(EnvironmentFault) as refused:
        find_server({"MLFLOW_TRACKING_URI": address})
    assert not refused.value.transient
    assert "export MLFLOW_TRACKING_URI=http" in refused.value.remedy


def test_the_registrys_own_address_goes_before_that_of_the_runs() -> None:
    both = {"MLFLOW_TRACKING_URI": "http://runs:5000", "MLFLOW_REGISTRY_URI": "http://ann:pw@registry:5000/"}
    assert find_server(both).shown == "http://registry:5000"


def test_another_content_under_the_same_number_is_another_version(registry: Registry) -> None:
    registry.add("clf/1", contents("onnx"))
    before = found().identity()
    assert found().identity() == before
    registry.add("clf/1", contents("onnx", b"yy"))
    assert found().identity() != before


def test_a_bucket_without_boto3_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    with pytest.raises(EnvironmentFault, match="boto3 is not installed"):
        BucketObjects("s3://models/m", "models:/m/1").listed()
