"""Folders of objects on their way into a compile: listed each time, fetched once, and only what was announced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import make_spec
from plansmith.errors import EnvironmentFault, SourceError, UsageError
from plansmith.sources.reference import refuse_unfitting
from plansmith.steps.provenance.fingerprint import IN_BUCKET, Hub
from plansmith.steps.provenance.reproduction import reproduction

from ...support.models.archives import graph_folder, transformers_folder
from ...support.stores.fault_proxy import Answer, Forward, Request, at, cut_before, denied, truncated
from .conftest import Shelf

OTHER = "0" * 64


def test_folder_equals_uploaded_directory(shelf: Shelf) -> None:
    """A folder is the same model as the directory that was put there."""
    folder = transformers_folder(shelf.folder / "ranker")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "training.log").write_text("not of the model")
    address = shelf.put_folder("team/ranker", folder)
    shelf.put("team/ranker/_READY", b"")
    result, local = shelf.fetched(address), shelf.fetched(f"hf:{folder}")
    assert (result.record.scheme, result.record.registered, result.record.address) == ("hf", address, address)
    assert result.record.digest == local.record.digest
    assert result.folder.is_relative_to(shelf.folder / "artifacts" / "cache" / "fetch")
    assert not (result.folder / "training.log").exists()


def test_second_fetch_asks_listing_alone(shelf: Shelf) -> None:
    """A second fetch asks for the listing alone."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    assert shelf.fetch(address, dry=True) is None
    first = shelf.fetched(address)
    assert sorted(shelf.requested_keys()) == [
        "listing",
        *(f"ranker/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")),
    ]
    again = shelf.fetched(f"{address}/")
    assert shelf.requested_keys() == ["listing"]
    dry = shelf.fetched(address, dry=True)
    assert (first.cached, again.cached, dry.cached) == (False, True, True)
    assert first.digest == again.digest == dry.digest
    assert first.record.revision == again.record.revision


def test_graph_brings_external_weights(shelf: Shelf) -> None:
    """A graph is brought with its weights in other files."""
    result = shelf.fetched(shelf.put_folder("net", graph_folder(shelf.folder / "net")))
    assert result.record.scheme == "onnx"
    assert [path.name for path in result.files] == ["net.onnx", "weights.bin"]


def test_timm_folder_read_by_timm(shelf: Shelf) -> None:
    """A folder of timm is read by timm."""
    folder = transformers_folder(shelf.folder / "net", config='{"architecture": "resnet18"}')
    result = shelf.fetched(shelf.put_folder("net", folder), task="image-classification")
    assert result.record.scheme == "timm"


def test_mlflow_folder_read_by_description(shelf: Shelf) -> None:
    """A folder that MLflow wrote is read by its own description."""
    written = Path(__file__).parents[1] / "mlflow" / "written" / "transformers" / "MLmodel"
    folder = transformers_folder(shelf.folder / "logged" / "model")
    (folder.parent / "MLmodel").write_bytes(written.read_bytes())
    result = shelf.fetched(shelf.put_folder("logged", folder.parent))
    assert (result.record.scheme, (result.folder / "model.safetensors").is_file()) == ("hf", True)


def test_non_model_is_clear_error(shelf: Shelf) -> None:
    """What is no model is one clear error."""
    shelf.put("notes/a.md", b"x")
    with pytest.raises(SourceError, match=r"it holds neither config\.json nor \.onnx"):
        shelf.fetched(shelf.address("notes"))
    shelf.put("many/a.onnx", b"x")
    shelf.put("many/b.onnx", b"x")
    with pytest.raises(SourceError, match=r"it holds several .onnx files \(a.onnx, b.onnx\)"):
        shelf.fetched(shelf.address("many"))


@pytest.mark.parametrize("key", ["nothing", "only-marked"])
def test_empty_prefix_is_clear_error(key: str, shelf: Shelf) -> None:
    """An empty prefix is one clear error."""
    shelf.put("nothing-like-it/config.json", b"{}")
    shelf.put("only-marked/_READY", b"")
    shelf.put("only-marked/", b"")
    with pytest.raises(SourceError, match=f"there is nothing at s3://{shelf.bucket}/{key}") as refused:
        shelf.fetched(shelf.address(key))
    assert refused.value.remedy == f"see what is there: aws s3 ls s3://{shelf.bucket}/{key}/"


def test_missing_bucket_is_clear_error(shelf: Shelf) -> None:
    """A bucket that is missing is one clear error."""
    with pytest.raises(SourceError, match="there is no bucket 'no-such-bucket' at") as refused:
        shelf.fetched("s3://no-such-bucket/ranker")
    assert refused.value.remedy.endswith(f"aws s3 mb s3://no-such-bucket --endpoint-url {shelf.proxy.endpoint}")


def test_a_missing_permission_is_named(shelf: Shelf) -> None:
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    shelf.proxy.handling = denied
    with pytest.raises(SourceError, match="not allowed s3:ListBucket") as refused:
        shelf.fetched(address)
    assert "AWS_PROFILE" in refused.value.remedy
    assert "--" not in refused.value.remedy
    shelf.proxy.handling = at(1, denied, among=lambda request: "list-type" not in request.query)
    with pytest.raises(SourceError, match="not allowed s3:GetObject"):
        shelf.fetched(address)


def test_missing_client_says_install(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its client, it is said what to install."""
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    with pytest.raises(EnvironmentFault) as missing:
        shelf.fetched(shelf.address("ranker"))
    assert missing.value.remedy == "pip install 'plansmith[s3]'"


def test_missing_credentials_name_variables(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials, it is said which variables name them."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(EnvironmentFault, match="there are no usable AWS credentials here") as refused:
        shelf.fetched(shelf.address("ranker"))
    assert "AWS_ACCESS_KEY_ID" in refused.value.remedy
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "nowhere")
    with pytest.raises(UsageError, match="cannot be reached like that") as wrong:
        shelf.fetched(shelf.address("ranker"))
    assert wrong.value.remedy.endswith("or name AWS_REGION and AWS_ENDPOINT_URL_S3")


def test_cut_download_resumed(shelf: Shelf) -> None:
    """A download that is cut goes on where it was."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    shelf.put("ranker/vocab.txt", big := bytes(range(256)) * 8192)
    shelf.proxy.handling = at(1, truncated, among=lambda request: request.path.endswith("vocab.txt"))
    assert (shelf.fetched(address).folder / "vocab.txt").read_bytes() == big
    parts = [item.headers for item in shelf.proxy.requests if item.path.endswith("vocab.txt")]
    assert len(parts) == 2
    assert parts[0]["range"] == f"bytes=0-{len(big) - 1}"
    start = re.fullmatch(rf"bytes=(\d+)-{len(big) - 1}", parts[1]["range"])
    assert start is not None
    assert int(start[1]) > 0
    assert {item["if-match"] for item in parts} == {parts[0]["if-match"]}


def test_vanishing_server_leaves_nothing_half(shelf: Shelf) -> None:
    """A server that goes away in between leaves nothing half done, and works when it is back."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))

    def outage(request: Request, forward: Forward) -> Answer:
        return (cut_before if request.path.endswith("safetensors") else lambda r, f: f(r))(request, forward)

    shelf.proxy.handling = outage
    with pytest.raises(EnvironmentFault) as away:
        shelf.fetched(address)
    assert away.value.transient
    assert not list((shelf.folder / "artifacts").rglob("config.json"))
    shelf.proxy.reset()
    assert not shelf.fetched(address).cached


@pytest.mark.parametrize("knows_conditions", [True, False])
def test_rewritten_objects_noticed(knows_conditions: bool, shelf: Shelf) -> None:
    """Objects that are written again meanwhile are noticed."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))

    def replaced(request: Request, forward: Forward) -> Answer:
        if request.path.endswith("safetensors"):
            shelf.put("ranker/model.safetensors", b"y" * 500)
            return forward(request if knows_conditions else request.without_conditions())
        return forward(request)

    shelf.proxy.handling = replaced
    with pytest.raises(
        SourceError, match=r"model\.safetensors of .* was written again while it was fetched"
    ) as changed:
        shelf.fetched(address)
    assert changed.value.transient


def test_removed_object_noticed(shelf: Shelf) -> None:
    """An object that is removed meanwhile is noticed."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))

    def removed(request: Request, forward: Forward) -> Answer:
        if request.path.endswith("safetensors"):
            shelf.client.delete_object(Bucket=shelf.bucket, Key="ranker/model.safetensors")
        return forward(request)

    shelf.proxy.handling = removed
    with pytest.raises(SourceError, match=r"model\.safetensors of .* was removed while it was fetched"):
        shelf.fetched(address)


@pytest.mark.slow
def test_only_announced_revision_built(shelf: Shelf) -> None:
    """What was announced is built and nothing else."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    first = shelf.fetched(address).record.revision
    assert shelf.fetched(f"{address}@{first}").cached
    shelf.put("ranker/_SUCCESS", b"now")
    assert shelf.fetched(f"{address}@{first}").cached
    shelf.put("ranker/tokenizer.json", b'{"a": 1}')
    with pytest.raises(SourceError, match=f"something else than was announced: revision .*, not {first}") as refused:
        shelf.fetched(f"{address}@{first}")
    newer = shelf.fetched(address).record.revision
    assert newer != first
    assert f"{address}@{newer}" in refused.value.remedy


def test_release_rebuilt_from_its_revision(shelf: Shelf) -> None:
    """A release is made again from the revision that it was made of."""
    source = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    spec = make_spec({"source": source, "artifacts": str(shelf.folder / "artifacts"), "name": "ranker"})
    source_record = shelf.fetched(source).record
    reference = parse_reference(source, relative_to=shelf.folder)
    files = reproduction(spec, reference, source_record, relative_to=shelf.folder, data=None)
    assert f"\nsource: {source}@{source_record.revision}\n" in f"\n{files['spec.yaml']}"


def test_fleet_learns_folder_changed(shelf: Shelf) -> None:
    """A fleet that asks learns that a folder changed."""
    source = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    first = str(shelf.fetched(source).record.revision)
    assert Hub(ask=True).commit(source, None, first, of=IN_BUCKET) == first
    shelf.put("ranker/tokenizer.json", b'{"a": 1}')
    assert Hub(ask=True).commit(source, None, first, of=IN_BUCKET) != first
    assert Hub(ask=True).commit(source, first, first, of=IN_BUCKET) == first
    assert Hub(ask=False).commit(source, None, first, of=IN_BUCKET) == first


def test_escaping_keys_refused(shelf: Shelf) -> None:
    """Keys that lead out of the folder are refused."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    shelf.put("ranker/../../etc/passwd.json", b"x")
    with pytest.raises(SourceError, match="leads out of its folder"):
        shelf.fetched(address)


def test_oversized_model_not_begun(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model above the limit is not begun."""
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    monkeypatch.setenv("PLANSMITH_SOURCE_MAX_GB", "1e-8")
    with pytest.raises(SourceError, match="more than the 10 B"):
        shelf.fetched(address)
    assert shelf.requested_keys() == ["listing"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("s3://models/team/ranker", "ranker"),
        ("s3://models/team/ranker/", "ranker"),
        (f"s3://models/team/ranker@{OTHER}", "ranker"),
        ("s3://models/team/ran@ker", "ran-ker"),
        ("s3://models/team/ranker.tar.gz", "ranker"),
        ("s3://models", "models"),
    ],
)
def test_model_named_after_folder_or_archive(source: str, name: str, tmp_path: Path) -> None:
    """A model has the name of its folder or archive."""
    assert parse_reference(source, relative_to=tmp_path).default_name == name


@pytest.mark.parametrize("source", ["s3:", "s3://", "s3:models", "s3://a", "s3://models//x", "s3://models/a/../b"])
def test_invalid_s3_place_refused(source: str, tmp_path: Path) -> None:
    """What is no place in S3 is refused."""
    with pytest.raises(UsageError, match="is no place in S3") as refused:
        parse_reference(source, relative_to=tmp_path)
    assert "s3://BUCKET/PREFIX" in refused.value.remedy


def test_bucket_model_has_weights(shelf: Shelf) -> None:
    """A model in a bucket has its weights."""
    spec = make_spec({"source": "s3://models/ranker", "random_weights": True})
    with pytest.raises(UsageError, match="a model in a bucket has its weights"):
        refuse_unfitting(parse_reference(spec.source, relative_to=shelf.folder), spec)
