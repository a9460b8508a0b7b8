"""Files on their way: what arrived is proven, what is there is not sent again, and what was cut goes on."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError
from plansmith.stores.backend import s3_transfer as uploads
from plansmith.stores.backend.object_store import Abilities
from plansmith.stores.backend.s3 import S3Objects
from plansmith.stores.backend.s3_transfer import Unfinished

from ....support.stores.fault_proxy import (
    Answer,
    Cut,
    FaultProxy,
    Forward,
    Handling,
    Request,
    cut_after,
    denied,
    failed,
    truncated,
)
from ....support.stores.s3 import S3
from ..test_objects import file_of

KEY = "objects/ab/content"
MIB = 1 << 20
TRUSTED = Abilities(create_once=True, swap=True, safe_in_race=True, checksums=True, probed="2026-11-22T10:00:00Z")


pytestmark = pytest.mark.usefixtures("small_parts")


def is_part(request: Request) -> bool:
    return request.method == "PUT" and "partNumber" in request.query


def parts_sent(proxy: FaultProxy) -> list[int]:
    """The numbers of the parts that were sent, in order."""
    return sorted(int(request.query["partNumber"][0]) for request in proxy.requests if is_part(request))


def only(matches: Any, then: Handling) -> Handling:
    """The requests that match are handled otherwise than the others."""
    return lambda request, forward: then(request, forward) if matches(request) else forward(request)


def once(matches: Any, then: Handling) -> Handling:
    """The first request that matches is handled otherwise than the others."""
    met: list[Request] = []

    def matches_first(request: Request) -> bool:
        if met or not matches(request):
            return False
        met.append(request)
        return True

    return only(matches_first, then)


def interrupt(objects: S3Objects, proxy: FaultProxy, path: Path, sha256: str, part: int) -> None:
    """Send a file until a part that the network does not let through."""

    def cut(_request: Request, _forward: Forward) -> Answer:
        raise Cut

    proxy.handling = only(lambda request: request.query.get("partNumber") == [str(part)], cut)
    with pytest.raises(EnvironmentFault) as caught:
        objects.send(path, KEY, sha256)
    assert caught.value.transient
    proxy.reset()


@pytest.mark.slow
def test_interrupted_upload_resumes(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """What arrived before an interruption is not sent again."""
    path, sha256 = file_of(tmp_path, 22 * MIB)
    interrupt(through, proxy, path, sha256, part=4)
    assert through.find(KEY) is None
    moved: list[int] = []
    through.send(path, KEY, sha256, moved.append)
    assert 4 in parts_sent(proxy)
    assert 1 not in parts_sent(proxy)
    assert sum(moved) == sum(5 * MIB if part < 5 else 2 * MIB for part in parts_sent(proxy))
    assert through.sha256(KEY) == sha256


@pytest.mark.slow
def test_foreign_content_not_taken_over(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """Another content under the same key is not taken for one's own."""
    left, left_sha256 = file_of(tmp_path, 11 * MIB, seed=1)
    interrupt(through, proxy, left, left_sha256, part=3)
    path, sha256 = file_of(tmp_path, 11 * MIB, seed=2)
    through.send(path, KEY, sha256)
    assert parts_sent(proxy) == [1, 2, 3]
    assert through.sha256(KEY) == sha256


@pytest.mark.slow
def test_hidden_uploads_resend_all_parts(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """A server that shows no uploads gets all parts."""
    path, sha256 = file_of(tmp_path, 11 * MIB)
    interrupt(through, proxy, path, sha256, part=3)
    body = b"<Error><Code>AccessDenied</Code></Error>"
    proxy.handling = only(
        lambda request: request.method == "GET" and "uploads" in request.query, lambda *_: Answer(403, {}, body)
    )
    through.send(path, KEY, sha256)
    assert parts_sent(proxy) == [1, 2, 3]
    assert through.sha256(KEY) == sha256


@pytest.mark.slow
def test_failed_parts_sent_again(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """Parts that fail in passing are sent again."""
    path, sha256 = file_of(tmp_path, 11 * MIB)
    proxy.handling = once(is_part, failed)
    through.send(path, KEY, sha256)
    assert len(parts_sent(proxy)) == 4
    assert through.sha256(KEY) == sha256


@pytest.mark.slow
@pytest.mark.parametrize("word", ["uploadId", "partNumber", "uploads"])
def test_lost_answer_does_no_harm(through: S3Objects, proxy: FaultProxy, tmp_path: Path, word: str) -> None:
    """An answer that gets lost does no harm."""
    path, sha256 = file_of(tmp_path, 11 * MIB)
    proxy.handling = once(lambda request: request.is_write and word in request.query, cut_after)
    through.send(path, KEY, sha256)
    assert through.sha256(KEY) == sha256


@pytest.mark.slow
def test_ended_upload_not_begun_anew(s3: S3, through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """An upload that another process ended is not begun anew."""
    path, sha256 = file_of(tmp_path, 11 * MIB)

    def ended_by_another(_request: Request, _forward: Forward) -> Answer:
        S3Objects(s3.place(), Path()).send(path, KEY, sha256)
        return Answer(404, {}, b"<Error><Code>NoSuchUpload</Code></Error>")  # moto has a fault of its own here

    proxy.handling = once(lambda request: request.query.get("partNumber") == ["3"], ended_by_another)
    through.send(path, KEY, sha256)
    assert parts_sent(proxy) == [1, 2, 3]
    assert through.sha256(KEY) == sha256
    assert not s3.client.list_multipart_uploads(Bucket=s3.bucket).get("Uploads")


@pytest.mark.slow
@pytest.mark.parametrize("size", [MIB, 11 * MIB])
def test_altered_bytes_found_and_resent(through: S3Objects, proxy: FaultProxy, tmp_path: Path, size: int) -> None:
    """What arrives otherwise is found out and sent again."""
    path, sha256 = file_of(tmp_path, size)

    def changed(request: Request, forward: Forward) -> Answer:
        return forward(replace(request, body=bytes(len(request.body))))

    proxy.handling = once(lambda request: request.method == "PUT" and bool(request.body), changed)
    through.send(path, KEY, sha256)
    assert through.sha256(KEY) == sha256


@pytest.mark.slow
def test_always_altered_bytes_removed(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """What arrives otherwise each time does not stay."""
    path, sha256 = file_of(tmp_path, MIB)

    def changed(request: Request, forward: Forward) -> Answer:
        return forward(replace(request, body=bytes(len(request.body))))

    proxy.handling = only(lambda request: request.method == "PUT", changed)
    with pytest.raises(RepositoryError, match="otherwise than it was sent") as caught:
        through.send(path, KEY, sha256)
    assert caught.value.remedy
    assert through.find(KEY) is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [MIB, 11 * MIB])
def test_checking_server_believed(through: S3Objects, proxy: FaultProxy, tmp_path: Path, size: int) -> None:
    """A server that checks is believed."""
    path, sha256 = file_of(tmp_path, size)
    through.abilities = TRUSTED
    through.send(path, KEY, sha256)
    assert not [request for request in proxy.requests if request.method == "GET" and request.path.endswith(KEY)]
    proxy.reset()
    through.abilities = TRUSTED.model_copy(update={"checksums": False})
    through.send(path, KEY, sha256)
    read = [request for request in proxy.requests if request.method == "GET" and request.path.endswith(KEY)]
    assert [request for request in read if "range" in request.headers]


@pytest.mark.slow
@pytest.mark.parametrize("size", [MIB, 11 * MIB])
def test_odd_checksum_harmless_with_right_bytes(
    through: S3Objects, proxy: FaultProxy, tmp_path: Path, size: int
) -> None:
    """A checksum that the server tells otherwise is no damage if the bytes are right."""
    path, sha256 = file_of(tmp_path, size)
    through.abilities = TRUSTED

    def told_otherwise(request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        return Answer(answer.status, {**answer.headers, "x-amz-checksum-sha256": "b3RoZXI="}, answer.body)

    proxy.handling = only(lambda request: request.method == "HEAD", told_otherwise)
    through.send(path, KEY, sha256)
    assert through.sha256(KEY) == sha256
    assert "DELETE" not in {request.method for request in proxy.requests}


@pytest.mark.slow
def test_odd_checksum_has_bytes_read(s3: S3, through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """A checksum that the server tells otherwise has the bytes read."""
    path, sha256 = file_of(tmp_path, MIB)
    through.abilities = TRUSTED

    def stored_otherwise(request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        s3.client.put_object(Bucket=s3.bucket, Key=f"team/models/{KEY}", Body=bytes(MIB), ChecksumAlgorithm="SHA256")
        return answer

    proxy.handling = only(lambda request: request.method == "PUT", stored_otherwise)
    with pytest.raises(RepositoryError, match="otherwise than it was sent"):
        through.send(path, KEY, sha256)
    assert not s3.keys()


@pytest.mark.slow
def test_digest_stored_with_object(s3: S3, through: S3Objects, tmp_path: Path) -> None:
    """The digest is stored with the object."""
    through.abilities = TRUSTED
    for size in (MIB, 11 * MIB):
        path, sha256 = file_of(tmp_path, size)
        through.send(path, KEY, sha256)
        head = s3.client.head_object(Bucket=s3.bucket, Key=f"team/models/{KEY}", ChecksumMode="ENABLED")
        assert head["Metadata"] == {"sha256": sha256}
        assert head["ChecksumSHA256"]


@pytest.mark.slow
def test_parts_have_checksums_when_checked(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """Parts have checksums where the server checks them."""
    path, sha256 = file_of(tmp_path, 11 * MIB)
    through.abilities = TRUSTED
    ended: list[bytes] = []

    def noted(request: Request, forward: Forward) -> Answer:
        ended.append(request.body)
        return forward(request)

    proxy.handling = only(lambda request: request.method == "POST" and "uploadId" in request.query, noted)
    through.send(path, KEY, sha256)
    checksums = {request.headers["x-amz-checksum-sha256"] for request in proxy.requests if is_part(request)}
    assert len(checksums) == 3
    assert all(checksum.encode() in ended[0] for checksum in checksums)


@pytest.mark.slow
@pytest.mark.parametrize("size", [MIB, 11 * MIB])
def test_signed_checksum_stands_for_body(through: S3Objects, proxy: FaultProxy, tmp_path: Path, size: int) -> None:
    """A body is not signed besides its checksum where the server checks that, and is signed where it does not."""
    path, sha256 = file_of(tmp_path, size)
    for checks in (True, False):
        proxy.reset()
        through.abilities = TRUSTED.model_copy(update={"checksums": checks})
        through.send(path, KEY, sha256)
        sent = [request.headers for request in proxy.requests if request.method == "PUT"]
        assert sent
        unsigned = [headers for headers in sent if headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"]
        assert unsigned == (sent if checks else [])
        assert all("x-amz-checksum-sha256" in headers["authorization"] for headers in unsigned)


@pytest.mark.slow
def test_checksummed_upload_never_continued_without(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """An upload with checksums is not continued without."""
    path, sha256 = file_of(tmp_path, 11 * MIB)
    through.abilities = TRUSTED
    interrupt(through, proxy, path, sha256, part=3)
    through.abilities = TRUSTED.model_copy(update={"checksums": False})
    through.send(path, KEY, sha256)
    assert parts_sent(proxy) == [1, 2, 3]
    assert through.sha256(KEY) == sha256


def test_part_known_by_best_checksum() -> None:
    """A part that is there is known by its best checksum."""
    md5 = hashlib.md5(b"content").hexdigest()
    upload = Unfinished("id", {1: {"ETag": f'"{md5}"'}, 2: {"ETag": '"tag"', "ChecksumSHA256": "right"}})
    assert upload.tag_of(1, b"content", None) == f'"{md5}"'
    assert upload.tag_of(1, b"content", "right") == f'"{md5}"'
    assert upload.tag_of(1, b"another", None) is None
    assert upload.tag_of(2, b"content", "right") == '"tag"'
    assert upload.tag_of(2, b"content", "wrong") is None
    assert upload.tag_of(2, b"content", None) is None
    assert upload.tag_of(3, b"content", None) is None


@pytest.mark.slow
def test_cut_download_resumed(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """A download goes on where it was cut."""
    path, sha256 = file_of(tmp_path, 5 * MIB)
    through.send(path, KEY, sha256)
    proxy.reset(once(lambda request: "range" in request.headers, truncated))
    moved: list[int] = []
    through.fetch(KEY, tmp_path / "back", sha256, moved.append)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert sum(moved) == 5 * MIB
    ranges = [request.headers["range"] for request in proxy.requests if "range" in request.headers]
    starts = [int(header.removeprefix("bytes=").partition("-")[0]) for header in ranges]
    assert len([start for start in starts if start % (2 * MIB)]) == 1
    assert len(ranges) == 4


def empty(request: Request, forward: Forward) -> Answer:
    """The answer is in order, but for its body, which is empty."""
    return replace(forward(request), body=b"")


@pytest.mark.slow
@pytest.mark.parametrize("handling", [failed, truncated, empty])
def test_failed_download_leaves_nothing(
    through: S3Objects, proxy: FaultProxy, tmp_path: Path, handling: Handling
) -> None:
    """A download that fails for good leaves nothing."""
    path, sha256 = file_of(tmp_path, 64 * 1024)
    through.send(path, KEY, sha256)

    def cut_at_once(request: Request, forward: Forward) -> Answer:
        answer = handling(request, forward)
        return answer if answer.sent_bytes is None else Answer(answer.status, answer.headers, answer.body, 0)

    proxy.reset(only(lambda request: "range" in request.headers, cut_at_once))
    with pytest.raises(EnvironmentFault) as caught:
        through.fetch(KEY, tmp_path / "back", sha256)
    assert caught.value.transient
    assert len([request for request in proxy.requests if "range" in request.headers]) == 5
    assert not (tmp_path / "back").exists()


@pytest.mark.slow
def test_wrong_bytes_found_out(through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """A server that gives other bytes than asked for is found out."""
    path, sha256 = file_of(tmp_path, 5 * MIB)
    through.send(path, KEY, sha256)

    def send_without_range(request: Request, forward: Forward) -> Answer:
        headers = {name: text for name, text in request.headers.items() if name != "range"}
        return forward(replace(request, headers=headers))

    proxy.reset(only(lambda request: "range" in request.headers, send_without_range))
    with pytest.raises(PlansmithError) as caught:
        through.fetch(KEY, tmp_path / "back", sha256)
    assert caught.value.remedy
    assert not (tmp_path / "back").exists()


@pytest.mark.slow
def test_cut_document_read_again(through: S3Objects, proxy: FaultProxy) -> None:
    """A document whose answer was cut is read again."""
    through.put("models/a.json", b"{}" * 1000)
    proxy.reset(once(lambda request: request.method == "GET", truncated))
    document = through.read("models/a.json")
    assert document is not None
    assert document.content == b"{}" * 1000
    assert len(proxy.requests) == 2


@pytest.mark.slow
def test_encryption_asked_for_each_object(s3: S3, proxy: FaultProxy, tmp_path: Path) -> None:
    """Encryption is asked for with each object."""
    place = s3.place(endpoint_url=proxy.endpoint, encryption="aws:kms", kms_key="alias/models")
    objects = S3Objects(place, Path())
    for size in (MIB, 11 * MIB):
        path, sha256 = file_of(tmp_path, size)
        objects.send(path, KEY, sha256)
    objects.create("models/a.json", b"{}")
    objects.copy(KEY, "repository/a/1/model.onnx")
    begun = [
        request
        for request in proxy.requests
        if (request.method == "PUT" and not is_part(request)) or ("uploads" in request.query and request.is_write)
    ]
    assert len(begun) == 4
    for request in begun:
        assert request.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/models"


@pytest.mark.slow
def test_copy_encrypted_like_original(
    s3: S3, through: S3Objects, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is encrypted as the original is."""
    monkeypatch.setattr("plansmith.stores.backend.s3._PART_BYTES", 5 * MIB)
    encrypted = S3Objects(s3.place(encryption="aws:kms", kms_key="alias/models"), Path())
    for size in (MIB, 11 * MIB):
        path, sha256 = file_of(tmp_path, size)
        encrypted.send(path, KEY, sha256)
        through.copy(KEY, KEY)
        head = s3.client.head_object(Bucket=s3.bucket, Key=f"team/models/{KEY}")
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/models")
    begun = [request for request in proxy.requests if "x-amz-server-side-encryption-aws-kms-key-id" in request.headers]
    assert [request.method for request in begun] == ["PUT", "POST"]


@pytest.mark.slow
def test_failed_part_copy_leaves_nothing(
    s3: S3, through: S3Objects, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in parts that fails leaves nothing half done."""
    monkeypatch.setattr("plansmith.stores.backend.s3._PART_BYTES", 5 * MIB)
    path, sha256 = file_of(tmp_path, 11 * MIB)
    through.send(path, KEY, sha256)
    proxy.handling = only(lambda request: request.query.get("partNumber") == ["2"], denied)
    with pytest.raises(RepositoryError, match="not allowed s3:PutObject"):
        through.copy(KEY, "repository/a/1/model.onnx")
    assert not s3.client.list_multipart_uploads(Bucket=s3.bucket).get("Uploads")


def test_file_parts_reproducible_within_limit() -> None:
    """A file is cut into the same parts each time, and into as many as S3 takes."""
    for size in (1, 10 << 30, 100 << 30, 5 << 40):
        assert size / uploads.part_bytes(size) <= 10_000
    assert uploads.part_bytes(5 << 40) <= 5 << 30


@pytest.mark.slow
def test_unfinished_uploads_given_up(s3: S3, through: S3Objects, proxy: FaultProxy, tmp_path: Path) -> None:
    """Uploads that were never ended are given up."""
    path, sha256 = file_of(tmp_path, 11 * MIB)
    interrupt(through, proxy, path, sha256, part=3)
    begun = datetime.now(UTC)

    def dated(request: Request, forward: Forward) -> Answer:
        answer = forward(request)  # moto says the same date of all uploads
        body = re.sub(rb"(<Initiated>)[^<]*", b"\\g<1>" + begun.isoformat().encode(), answer.body)
        return Answer(answer.status, answer.headers, body)

    proxy.handling = only(lambda request: "uploads" in request.query, dated)
    assert through.give_up(before=begun.timestamp() - 3600) == 0
    assert s3.client.list_multipart_uploads(Bucket=s3.bucket)["Uploads"]
    assert through.give_up(before=begun.timestamp() + 3600) == 1
    assert not s3.client.list_multipart_uploads(Bucket=s3.bucket).get("Uploads")


@pytest.mark.slow
def test_oversized_copy_made_in_parts(
    s3: S3, through: S3Objects, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too large to be copied at once is copied in parts."""
    monkeypatch.setattr("plansmith.stores.backend.s3._PART_BYTES", 5 * MIB)
    path, sha256 = file_of(tmp_path, 11 * MIB)
    through.send(path, KEY, sha256)
    proxy.reset()
    for key in ("repository/a/1/model.onnx", KEY):
        through.copy(KEY, key)
        assert through.sha256(key) == sha256
        head = s3.client.head_object(Bucket=s3.bucket, Key=f"team/models/{key}")
        assert head["Metadata"] == {"sha256": sha256}
    assert parts_sent(proxy) == [1, 1, 2, 2, 3, 3]
    assert proxy.sent_bytes < 10_000
