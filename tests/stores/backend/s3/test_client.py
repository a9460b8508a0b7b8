"""A place says how S3 is reached, and what it leaves open is found as every AWS tool does."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.records.destination import Location
from plansmith.stores.backend.s3 import S3Objects
from plansmith.stores.store import open_objects
from plansmith.system.aws.bucket import connect

from ....support.certificates import write_certificate
from ....support.stores.fault_proxy import FaultProxy
from ....support.stores.s3 import S3

KEYS = "aws_access_key_id = id\naws_secret_access_key = secret\n"

pytestmark = pytest.mark.usefixtures("aws")


class SentRequest(Exception):
    """The request that a client was about to send."""


def address(client: Any) -> str:
    """Where a client looks for an object."""

    def before_send(request: Any, **_: Any) -> None:
        raise SentRequest(request.url)

    client.meta.events.register("before-send.s3.HeadObject", before_send, unique_id="address")
    with pytest.raises(SentRequest) as caught:
        client.head_object(Bucket="bucket", Key="a")
    return str(caught.value)


def test_aws_names_each_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS has a name for each bucket, and other servers have not."""
    place = Location(to="s3://bucket/models", region="eu-west-1")
    assert address(connect(place, Path())) == "https://bucket.s3.eu-west-1.amazonaws.com/a"
    local = place.model_copy(update={"endpoint_url": "http://minio.lan:9000"})
    assert address(connect(local, Path())) == "http://minio.lan:9000/bucket/a"
    named = local.model_copy(update={"path_style": False})
    assert address(connect(named, Path())) == "http://bucket.minio.lan:9000/a"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other.lan:9000")
    assert address(connect(place, Path())) == "http://other.lan:9000/bucket/a"


def test_usual_chain_completes_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The usual chain completes a place."""
    (tmp_path / "config").write_text(
        f"[profile work]\nregion = eu-west-1\nendpoint_url = http://minio.lan:9000\n{KEYS}"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    client = connect(Location(to="s3://bucket/models", profile="work"), Path())
    assert client.meta.region_name == "eu-west-1"
    assert address(client) == "http://minio.lan:9000/bucket/a"
    named = connect(Location(to="s3://bucket/models", profile="work", region="eu-north-1"), Path())
    assert named.meta.region_name == "eu-north-1"


@pytest.mark.slow
def test_region_variable_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of the region that most tools read is read."""
    place = Location(to="s3://bucket/models")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert connect(place, Path()).meta.region_name == "eu-west-1"
    named = place.model_copy(update={"region": "eu-north-1"})
    assert connect(named, Path()).meta.region_name == "eu-north-1"


@pytest.mark.slow
def test_unprotected_bodies_signed() -> None:
    """Bodies are signed where nothing else protects them."""

    def signs_bodies(url: str) -> bool:
        client = connect(Location(to="s3://bucket/models", endpoint_url=url), Path())
        return bool(client.meta.config.s3["payload_signing_enabled"])

    assert signs_bodies("http://minio.lan:9000")
    assert not signs_bodies("https://minio.lan:9000")


def test_opening_store_asks_nothing() -> None:
    """Opening a store asks for nothing."""
    objects = open_objects(Location(to="s3://bucket/team/", profile="nobody"), Path())
    assert isinstance(objects, S3Objects)
    assert objects.place == "s3://bucket/team"


@pytest.mark.slow
def test_a_prefix_keeps_to_itself(s3: S3) -> None:
    for prefix in ("team", "team2", ""):
        S3Objects(s3.place(prefix), Path()).put("models/a.json", prefix.encode())
    assert sorted(s3.keys()) == ["models/a.json", "team/models/a.json", "team2/models/a.json"]
    content = [content.key for content in S3Objects(s3.place("team"), Path()).below("")]
    assert content == ["models/a.json"]


@pytest.mark.slow
def test_long_lists_come_in_pages(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = S3Objects(s3.place(), Path())
    for number in range(7):
        objects.put(f"models/{number}.json", b"")
    call = objects.bucket.call
    pages: list[str] = []

    def by_threes(operation: str, *args: Any, **more: Any) -> Any:
        pages.append(operation)
        return call(operation, *args, **more, MaxKeys=3)

    monkeypatch.setattr(objects.bucket, "call", by_threes)
    assert [item.key for item in objects.below("models/")] == [f"models/{number}.json" for number in range(7)]
    assert pages == ["list_objects_v2"] * 3


@pytest.mark.slow
def test_missing_extra_named(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, it is named."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(EnvironmentFault) as caught:
        connect(s3.place(), Path())
    assert caught.value.remedy == "pip install 'plansmith[s3]'"


@pytest.mark.slow
def test_own_certificates_trusted(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates of one's own are trusted."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_certificate(tmp_path / "both.pem"))
    proxy = FaultProxy(int(s3.endpoint.rpartition(":")[2]))
    proxy._server.socket = context.wrap_socket(proxy._server.socket, server_side=True)
    with proxy.running():
        place = s3.place(endpoint_url=proxy.endpoint.replace("http:", "https:"), ca_bundle="both.pem")
        S3Objects(place, tmp_path).put("models/a.json", b"{}")
        with pytest.raises(EnvironmentFault, match="is not trusted") as caught:
            S3Objects(place.model_copy(update={"ca_bundle": ""}), tmp_path).read("models/a.json")
    assert "--ca-bundle" in caught.value.remedy
    (put,) = proxy.requests
    assert put.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "x-amz-checksum-sha256" in put.headers["authorization"]
