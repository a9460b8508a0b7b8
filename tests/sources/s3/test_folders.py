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


def test_a_folder_is_the_same_model_as_the_directory_that_was_put_there(shelf: Shelf) -> None:
    folder = transformers_folder(shelf.folder / "ranker")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "training.log").write_text("not of the model")
    address = shelf.put_folder("team/ranker", folder)
    shelf.put("team/ranker/_READY", b"")
    found, local = shelf.fetched(address), shelf.fetched(f"hf:{folder}")
    assert (found.record.scheme, found.record.registered, found.record.address) == ("hf", address, address)
    assert found.record.digest == local.record.digest
    assert found.folder.is_relative_to(shelf.folder / "artifacts" / "cache" / "fetch")
    assert not (found.folder / "training.log").exists()


def test_a_second_fetch_asks_for_the_listing_alone(shelf: Shelf) -> None:
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    assert shelf.fetch(address, dry=True) is None
    first = shelf.fetched(address)
    assert sorted(shelf.asked()) == [
        "listing",
        *(f"ranker/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")),
    ]
    again = shelf.fetched(f"{address}/")
    assert shelf.asked() == ["listing"]
    dry = shelf.fetched(address, dry=True)
    assert (first.cached, again.cached, dry.cached) == (False, True, True)
    assert first.digest == again.digest == dry.digest
    assert first.record.revision == again.record.revision


def test_a_graph_is_brought_with_its_weights_in_other_files(shelf: Shelf) -> None:
    found = shelf.fetched(shelf.put_folder("net", graph_folder(shelf.folder / "net")))
    assert found.record.scheme == "onnx"
    assert [path.name for path in found.files] == ["net.onnx", "weights.bin"]


def test_a_folder_of_timm_is_read_by_timm(shelf: Shelf) -> None:
    folder = transformers_folder(shelf.folder / "net", config='{"architecture": "resnet18"}')
    found = shelf.fetched(shelf.put_folder("net", folder), task="image-classification")
    assert found.record.scheme == "timm"


def test_a_folder_that_mlflow_wrote_is_read_by_its_own_description(shelf: Shelf) -> None:
    written = Path(__file__).parents[1] / "mlflow" / "written" / "transformers" / "MLmodel"
    folder = transformers_folder(shelf.folder / "logged" / "model")
    (folder.parent / "MLmodel").write_bytes(written.read_bytes())
    found = shelf.fetched(shelf.put_folder("logged", folder.parent))
    assert (found.record.scheme, (found.folder / "model.safetensors").is_file()) == ("hf", True)


def test_what_is_no_model_is_one_clear_error(shelf: Shelf) -> None:
    shelf.put("notes/a.md", b"x")
    with pytest.raises(SourceError, match=r"it holds neither config\.json nor \.onnx"):
        shelf.fetched(shelf.address("notes"))
    shelf.put("many/a.onnx", b"x")
    shelf.put("many/b.onnx", b"x")
    with pytest.raises(SourceError, match=r"it holds several .onnx files \(a.onnx, b.onnx\)"):
        shelf.fetched(shelf.address("many"))


@pytest.mark.parametrize("key", ["nothing", "only-marked"])
def test_an_empty_prefix_is_one_clear_error(key: str, shelf: Shelf) -> None:
    shelf.put("nothing-like-it/config.json", b"{}")
    shelf.put("only-marked/_READY", b"")
    shelf.put("only-marked/", b"")
    with pytest.raises(SourceError, match=f"there is nothing at s3://{shelf.bucket}/{key}") as refused:
        shelf.fetched(shelf.address(key))
    assert refused.value.remedy == f"see what is there: aws s3 ls s3://{shelf.bucket}/{key}/"


def test_a_bucket_that_is_missing_is_one_clear_error(shelf: Shelf) -> None:
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
    shelf.proxy.handling = at(1, denied, among=lambda request: "list-type" not in request.words)
    with pytest.raises(SourceError, match="not allowed s3:GetObject"):
        shelf.fetched(address)


def test_without_its_client_it_is_said_what_to_install(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    with pytest.raises(EnvironmentFault) as missing:
        shelf.fetched(shelf.address("ranker"))
    assert missing.value.remedy == "pip install 'plansmith[s3]'"


def test_without_credentials_it_is_said_which_variables_name_them(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(EnvironmentFault, match="there are no usable AWS credentials here") as refused:
        shelf.fetched(shelf.address("ranker"))
    assert "AWS_ACCESS_KEY_ID" in refused.value.remedy
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "nowhere")
    with pytest.raises(UsageError, match="cannot be reached like that") as wrong:
        shelf.fetched(shelf.address("ranker"))
    assert wrong.value.remedy.endswith("or name AWS_REGION and AWS_ENDPOINT_URL_S3")


def test_a_download_that_is_cut_goes_on_where_it_was(shelf: Shelf) -> None:
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    shelf.put("ranker/vocab.txt", big := bytes(range(256)) * 8192)
    shelf.proxy.handling = at(1, truncated, among=lambda request: request.path.endswith("vocab.txt"))
    assert (shelf.fetched(address).folder / "vocab.txt").read_bytes() == big
    parts = [one.headers for one in shelf.proxy.requests if one.path.endswith("vocab.txt")]
    assert len(parts) == 2
    assert parts[0]["range"] == f"bytes=0-{len(big) - 1}"
    start = re.fullmatch(rf"bytes=(\d+)-{len(big) - 1}", parts[1]["range"])
    assert start is not None
    assert int(start[1]) > 0
    assert {one["if-match"] for one in parts} == {parts[0]["if-match"]}


def test_a_server_that_goes_away_in_between_leaves_nothing_half_and_works_when_it_is_back(shelf: Shelf) -> None:
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))

    def gone(request: Request, forward: Forward) -> Answer:
        return (cut_before if request.path.endswith("safetensors") else lambda r, f: f(r))(request, forward)

    shelf.proxy.handling = gone
    with pytest.raises(EnvironmentFault) as away:
        shelf.fetched(address)
    assert away.value.transient
    assert not list((shelf.folder / "artifacts").rglob("config.json"))
    shelf.proxy.reset()
    assert not shelf.fetched(address).cached


@pytest.mark.parametrize("knows_conditions", [True, False])
def test_objects_that_are_written_again_meanwhile_are_noticed(knows_conditions: bool, shelf: Shelf) -> None:
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


def test_an_object_that_is_removed_meanwhile_is_noticed(shelf: Shelf) -> None:
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))

    def removed(request: Request, forward: Forward) -> Answer:
        if request.path.endswith("safetensors"):
            shelf.client.delete_object(Bucket=shelf.bucket, Key="ranker/model.safetensors")
        return forward(request)

    shelf.proxy.handling = removed
    with pytest.raises(SourceError, match=r"model\.safetensors of .* was removed while it was fetched"):
        shelf.fetched(address)


@pytest.mark.slow
def test_what_was_announced_is_built_and_nothing_else(shelf: Shelf) -> None:
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


def test_a_release_is_made_again_from_the_revision_that_it_was_made_of(shelf: Shelf) -> None:
    source = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    spec = make_spec({"source": source, "artifacts": str(shelf.folder / "artifacts"), "name": "ranker"})
    found = shelf.fetched(source).record
    reference = parse_reference(source, relative_to=shelf.folder)
    files = reproduction(spec, reference, found, relative_to=shelf.folder, data=None)
    assert f"\nsource: {source}@{found.revision}\n" in f"\n{files['spec.yaml']}"


def test_a_fleet_that_asks_learns_that_a_folder_changed(shelf: Shelf) -> None:
    source = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    first = str(shelf.fetched(source).record.revision)
    assert Hub(ask=True).commit(source, None, first, of=IN_BUCKET) == first
    shelf.put("ranker/tokenizer.json", b'{"a": 1}')
    assert Hub(ask=True).commit(source, None, first, of=IN_BUCKET) != first
    assert Hub(ask=True).commit(source, first, first, of=IN_BUCKET) == first
    assert Hub(ask=False).commit(source, None, first, of=IN_BUCKET) == first


def test_keys_that_lead_out_of_the_folder_are_refused(shelf: Shelf) -> None:
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    shelf.put("ranker/../../etc/passwd.json", b"x")
    with pytest.raises(SourceError, match="leads out of its folder"):
        shelf.fetched(address)


def test_a_model_above_the_limit_is_not_begun(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    address = shelf.put_folder("ranker", transformers_folder(shelf.folder / "ranker"))
    monkeypatch.setenv("PLANSMITH_SOURCE_MAX_GB", "1e-8")
    with pytest.raises(SourceError, match="more than the 10 B"):
        shelf.fetched(address)
    assert shelf.asked() == ["listing"]


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
def test_a_model_has_the_name_of_its_folder_or_archive(source: str, name: str, tmp_path: Path) -> None:
    assert parse_reference(source, relative_to=tmp_path).default_name == name


@pytest.mark.parametrize("source", ["s3:", "s3://", "s3:models", "s3://a", "s3://models//x", "s3://models/a/../b"])
def test_what_is_no_place_in_s3_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no place in S3") as refused:
        parse_reference(source, relative_to=tmp_path)
    assert "s3://BUCKET/PREFIX" in refused.value.remedy


def test_a_model_in_a_bucket_has_its_weights(shelf: Shelf) -> None:
    spec = make_spec({"source": "s3://models/ranker", "random_weights": True})
    with pytest.raises(UsageError, match="a model in a bucket has its weights"):
        refuse_unfitting(parse_reference(spec.source, relative_to=shelf.folder), spec)
