"""What goes wrong with S3 is told in our words, with what to type next, and without credentials."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, UsageError
from plansmith.records.destination import Location
from plansmith.stores.backend.s3 import S3Objects

from ....support.prefect.wire import Wire
from ....support.servers.aws_server import KEY_ID, SECRET
from ....support.stores.fault_proxy import Answer, FaultProxy, Handling
from ....support.stores.s3 import S3
from ....support.waiting import wait_until

pytestmark = pytest.mark.slow

READ = "models/a.json"


def saying(status: int, code: str, message: str = "No.", **headers: str) -> Handling:
    """A server that answers everything so."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"
    fields = {"content-type": "application/xml", "date": "Sat, 21 Nov 2026 10:00:00 GMT"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda *_: Answer(status, fields, body.encode())


def fault(objects: S3Objects, asked: Callable[[S3Objects], object] = lambda objects: objects.read(READ)) -> str:
    """The text of the error that comes of a request, which is one of ours, and safe to show."""
    with pytest.raises(PlansmithError) as caught:
        asked(objects)
    assert caught.value.remedy
    assert SECRET not in str(caught.value)
    assert KEY_ID not in str(caught.value)
    return f"{type(caught.value).__name__} {caught.value}"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "NoSuchBucket", "RepositoryError there is no bucket"),
        (403, "AccessDenied", "RepositoryError"),
        (403, "InvalidAccessKeyId", "EnvironmentFault"),
        (403, "SignatureDoesNotMatch", "EnvironmentFault"),
        (400, "ExpiredToken", "EnvironmentFault"),
        (503, "SlowDown", "EnvironmentFault"),
        (500, "InternalError", "EnvironmentFault"),
        (501, "NotImplemented", "plansmith store --probe"),
        (400, "BadDigest", "arrived otherwise than it was sent"),
        (507, "XMinioStorageFull", "plansmith prune --store"),
        (403, "InvalidObjectState", "InvalidObjectState: No."),
    ],
)
def test_server_refusal_has_remedy(
    proxy: FaultProxy, through: S3Objects, status: int, code: str, expected: str
) -> None:
    """What a server refuses has a remedy."""
    proxy.handling = saying(status, code)
    text = fault(through)
    assert expected in text
    assert "Next: " in text


@pytest.mark.parametrize("asked", [lambda o: o.put(READ, b""), lambda o: o.create(READ, b"")], ids=["put", "create"])
def test_unencrypting_server_asked_without(proxy: FaultProxy, s3: S3, asked: Callable[[S3Objects], object]) -> None:
    """A server that does not encrypt is asked without encryption."""
    proxy.handling = saying(501, "NotImplemented")
    objects = S3Objects(s3.place(endpoint_url=proxy.endpoint, encryption="AES256"), Path())
    assert "Next: leave --encryption out" in fault(objects, asked)


def test_absent_server_waited_for_and_told(
    s3: S3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that goes away for a while is waited for, and that is said once."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with Wire(int(s3.endpoint.rpartition(":")[2])) as wire, ThreadPoolExecutor(4) as threads:
        objects = S3Objects(s3.place(endpoint_url=f"http://127.0.0.1:{wire.port}"), Path())
        objects.put(READ, b"before")
        wire.cut()
        futures = [threads.submit(objects.read, READ) for _ in range(4)]
        wait_until(lambda: "is away" in caplog.text)
        assert not any(future.done() for future in futures)
        wire.mend()
        assert {document.content for document in (future.result() for future in futures) if document} == {b"before"}
    assert caplog.text.count("is away; it is asked again for up to 60 s") == 1


def test_silent_server_not_waited_for(s3: S3) -> None:
    """A server that never answered is not waited for."""
    with Wire(int(s3.endpoint.rpartition(":")[2])) as wire:
        wire.cut()
        objects = S3Objects(s3.place(endpoint_url=f"http://127.0.0.1:{wire.port}"), Path())
        assert "cannot be reached" in fault(objects)


def test_remedy_names_store_access(proxy: FaultProxy, through: S3Objects) -> None:
    """A remedy names how the store is reached."""
    proxy.handling = saying(507, "XMinioStorageFull")
    store = f"s3://{through.bucket.name}/team/models --endpoint-url {proxy.endpoint}"
    assert fault(through).endswith(f"plansmith prune --store {store}")


@pytest.mark.parametrize(
    ("action", "asked"),
    [
        ("s3:GetObject", lambda objects: objects.read(READ)),
        ("s3:GetObject", lambda objects: objects.find(READ)),
        ("s3:PutObject", lambda objects: objects.put(READ, b"")),
        ("s3:ListBucket", lambda objects: list(objects.below("models/"))),
        ("s3:DeleteObject", lambda objects: objects.remove([READ])),
    ],
)
def test_a_missing_permission_is_named(
    proxy: FaultProxy, through: S3Objects, action: str, asked: Callable[[S3Objects], object]
) -> None:
    proxy.handling = saying(403, "AccessDenied")
    text = fault(through, asked)
    assert f"not allowed {action} " in text
    resource = through.bucket.name if action == "s3:ListBucket" else f"{through.bucket.name}/team/models/*"
    assert f"allow {action} on arn:aws:s3:::{resource}, or" in text


def test_server_named_permission_believed(proxy: FaultProxy, through: S3Objects) -> None:
    """The permission that the server names is believed."""
    proxy.handling = saying(
        403, "AccessDenied", "User: arn:aws:iam::1:user/x is not authorized to perform: kms:Decrypt"
    )
    assert "allow kms:Decrypt on the key that encrypts" in fault(through)


def test_missing_list_permission_suspected(proxy: FaultProxy, through: S3Objects) -> None:
    """A permission to list may be what is missing where nothing is found."""
    proxy.handling = saying(403, "AccessDenied")
    assert "without s3:ListBucket" in fault(through, lambda objects: objects.find(READ))
    assert "without s3:ListBucket" in fault(through, lambda objects: objects.read(READ))


@pytest.mark.parametrize(
    "handling",
    [
        saying(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1"),
        saying(
            400,
            "AuthorizationHeaderMalformed",
            "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'",
        ),
    ],
)
def test_right_region_named(proxy: FaultProxy, through: S3Objects, handling: Handling) -> None:
    """The right region is named where the server tells it."""
    proxy.handling = handling
    assert "lies in eu-west-1, not in us-east-1\nNext: name the region: --region eu-west-1" in fault(through)


def test_clock_error_told(proxy: FaultProxy, through: S3Objects) -> None:
    """How wrong the clock is is told."""
    proxy.handling = saying(403, "RequestTimeTooSkewed", date=formatdate(time.time() - 900, usegmt=True))
    text = fault(through)
    assert "EnvironmentFault the clock of this machine differs" in text
    assert re.search(r"by 90\d s, which refuses", text)


def test_busy_server_asked_five_times(proxy: FaultProxy, through: S3Objects) -> None:
    """A busy server is asked five times."""
    proxy.handling = saying(503, "SlowDown")
    with pytest.raises(EnvironmentFault) as caught:
        through.read(READ)
    assert caught.value.transient
    assert len(proxy.requests) == 5


def test_final_refusal_asked_once(proxy: FaultProxy, through: S3Objects) -> None:
    """What is refused for good is asked once."""
    proxy.handling = saying(403, "AccessDenied")
    fault(through)
    assert len(proxy.requests) == 1


def test_unanswered_place_told(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place where nothing answers is told."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    text = fault(S3Objects(s3.place(endpoint_url=endpoint), Path()))
    assert "EnvironmentFault" in text
    assert f"cannot be reached at {endpoint.removeprefix('http://')}: " in text
    assert "Connection refused" in text


def test_server_without_tls_told(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without TLS is told."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    text = fault(S3Objects(s3.place(endpoint_url=s3.endpoint.replace("http:", "https:")), Path()))
    assert "EnvironmentFault" in text
    assert "does not speak TLS" in text


@pytest.mark.parametrize("status", [200, 400, 404, 405])
def test_web_server_is_no_s3(s3: S3, status: int) -> None:
    """A server of web pages is no S3 server."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "6")
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        text = fault(S3Objects(s3.place(endpoint_url=f"http://127.0.0.1:{server.server_port}"), Path()))
        server.shutdown()
    assert "EnvironmentFault what answers at 127.0.0.1:" in text
    assert "is no S3 server" in text


def test_missing_bucket_told(s3: S3) -> None:
    """A bucket that is not there is told."""
    text = fault(S3Objects(Location(to="s3://not-there/x", endpoint_url=s3.endpoint), Path()))
    assert f"there is no bucket 'not-there' at {s3.endpoint.removeprefix('http://')}\n" in text
    assert f"aws s3 mb s3://not-there --endpoint-url {s3.endpoint}" in text


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_missing_credentials_are_told(s3: S3, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    if name == "AWS_SECRET_ACCESS_KEY":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.delenv(name)
    else:
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "EnvironmentFault" in (text := fault(S3Objects(s3.place(), Path())))
    assert "no usable AWS credentials" in text


def test_available_profiles_named(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiles that are there are named."""
    (tmp_path / "config").write_text("[profile work]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    text = fault(S3Objects(s3.place(profile="nobody"), Path()))
    assert "there is no profile 'nobody'" in text
    assert "name one of these: work" in text


def test_invalid_region_told(s3: S3) -> None:
    """A region that does not exist is told."""
    with pytest.raises(UsageError, match="not a region"):
        S3Objects(s3.place(region="not a region"), Path()).read(READ)


def test_missing_certificates_told(s3: S3, tmp_path: Path) -> None:
    """Certificates that are not there are told."""
    text = fault(S3Objects(s3.place(ca_bundle="ca.pem"), tmp_path))
    assert f"there is no file {tmp_path / 'ca.pem'}" in text


def test_keys_lead_nowhere_else(through: S3Objects) -> None:
    for key in ("../other/a.json", "models/../../a.json", "models//a.json", "./a"):
        with pytest.raises(RepositoryError, match="is no key of"):
            through.put(key, b"")


def test_a_damaged_document_is_told(s3: S3, through: S3Objects) -> None:
    through.put(READ, b"{}")
    s3.client.put_object(Bucket=s3.bucket, Key=f"team/models/{READ}", Body=b"{ }", Metadata={"sha256": "0" * 64})
    assert "RepositoryError models/a.json in" in (text := fault(through))
    assert "is damaged" in text


def test_the_time_is_the_servers(proxy: FaultProxy, through: S3Objects) -> None:
    proxy.handling = saying(404, "")
    assert through.now() == datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp()
