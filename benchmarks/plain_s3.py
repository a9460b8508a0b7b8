"""A small S3 server for benchmarks: objects in a folder, checksums checked, bytes counted, no signatures.

    python -m benchmarks.plain_s3 FOLDER

It prints its port. moto copies an object for each range that is asked of it, and checks no checksums; this one knows
what plansmith and awscli ask of a bucket and no more. GET /-/bytes tells how many bytes of contents came so far.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import sys
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_CHUNK_BYTES = 1 << 20


@dataclass
class Stored:
    """A content and what was said of it."""

    path: Path
    bytes: int
    tag: str
    checksum: str
    metadata: dict[str, str]
    changed: float


@dataclass
class Upload:
    """One in parts."""

    key: str
    metadata: dict[str, str]
    parts: dict[int, Stored] = field(default_factory=dict)


class Refused(Exception):
    """A status and a code."""


class Server(ThreadingHTTPServer):
    """One bucket, whatever its name."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.lock = threading.Lock()
        self.received_bytes = 0
        self.numbers = itertools.count(1)
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        """Give an object, or a list."""
        key, parameters = self._parse_request()
        if key == "-/bytes":
            self._tell(200, str(self.server.received_bytes).encode())
        elif "uploads" in parameters:
            self._list_uploads(parameters.get("prefix", ""))
        elif "uploadId" in parameters:
            self._list_parts(parameters["uploadId"])
        elif not key:
            self._list(parameters.get("prefix", ""))
        else:
            self._give(key)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def do_PUT(self) -> None:
        """Take an object, or a part."""
        key, parameters = self._parse_request()
        if not key:
            self._tell(200)
            return
        try:
            came = self._receive()
            with self.server.lock:
                if "partNumber" in parameters:
                    self._upload(parameters["uploadId"]).parts[int(parameters["partNumber"])] = came
                else:
                    self._require_condition(key)
                    self.server.objects[key] = came
        except Refused as refused:
            self._refuse(*refused.args)
            return
        self._tell(200, headers={"ETag": came.tag, "x-amz-checksum-sha256": came.checksum})

    def do_POST(self) -> None:
        """Begin or end an upload."""
        key, parameters = self._parse_request()
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if "uploads" in parameters:
            name = f"upload-{next(self.server.numbers)}"
            self.server.uploads[name] = Upload(key, self._metadata())
            self._tell(200, _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>"))
            return
        try:
            with self.server.lock:
                tag = self._complete(key, parameters["uploadId"], body)
        except Refused as refused:
            self._refuse(*refused.args)
            return
        self._tell(200, _xml("CompleteMultipartUploadResult", f"<ETag>{escape(tag)}</ETag>"))

    def do_DELETE(self) -> None:
        """Forget an object or an upload."""
        key, parameters = self._parse_request()
        with self.server.lock:
            if "uploadId" in parameters:
                self.server.uploads.pop(parameters["uploadId"], None)
            else:
                self.server.objects.pop(key, None)
        self._tell(204)

    def log_message(self, *_words: object) -> None:
        """Nothing is logged."""

    def _parse_request(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        parameters = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        path = unquote(parts.path).lstrip("/")
        return (path if path.startswith("-/") else path.partition("/")[2]), parameters

    def _metadata(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}

    def _receive(self) -> Stored:
        """Write a body to a file."""
        path = self.server.folder / str(next(self.server.numbers))
        left = size = int(self.headers.get("content-length", 0))
        sha256, md5 = hashlib.sha256(), hashlib.md5()
        with path.open("wb") as out:
            while left:
                piece = self.rfile.read(min(left, _CHUNK_BYTES))
                left -= len(piece)
                sha256.update(piece)
                md5.update(piece)
                out.write(piece)
        with self.server.lock:
            self.server.received_bytes += size
        checksum = base64.b64encode(sha256.digest()).decode()
        if self.headers.get("x-amz-checksum-sha256", checksum) != checksum:
            raise Refused(400, "BadDigest")
        return Stored(path, size, f'"{md5.hexdigest()}"', checksum, self._metadata(), path.stat().st_mtime)

    def _require_condition(self, key: str) -> None:
        existing = self.server.objects.get(key)
        if self.headers.get("if-none-match") == "*" and existing is not None:
            raise Refused(412, "PreconditionFailed")
        expected = self.headers.get("if-match")
        if expected is not None and existing is None:
            raise Refused(404, "NoSuchKey")
        if expected is not None and existing is not None and existing.tag != expected:
            raise Refused(412, "PreconditionFailed")

    def _upload(self, name: str) -> Upload:
        if name not in self.server.uploads:
            raise Refused(404, "NoSuchUpload")
        return self.server.uploads[name]

    def _complete(self, key: str, name: str, body: bytes) -> str:
        """Put the parts together."""
        upload = self._upload(name)
        numbers = [
            int(str(element.text))
            for element in ElementTree.fromstring(body).iter()
            if element.tag.endswith("PartNumber")
        ]
        parts = [upload.parts[number] for number in numbers]
        path = self.server.folder / str(next(self.server.numbers))
        with path.open("wb") as out:
            for part in parts:
                with part.path.open("rb") as stream:
                    os.sendfile(out.fileno(), stream.fileno(), 0, part.bytes)
                part.path.unlink()
        whole = hashlib.sha256(b"".join(base64.b64decode(part.checksum) for part in parts)).digest()
        checksum = f"{base64.b64encode(whole).decode()}-{len(parts)}"
        tag = f'"{hashlib.md5(str(path).encode()).hexdigest()}-{len(parts)}"'
        stat = path.stat()
        self.server.objects[key] = Stored(path, stat.st_size, tag, checksum, upload.metadata, stat.st_mtime)
        del self.server.uploads[name]
        return tag

    def _give(self, key: str) -> None:
        stored = self.server.objects.get(key)
        if stored is None:
            self._refuse(404, "NoSuchKey")
            return
        first, end, status = 0, stored.bytes, 200
        headers = {"ETag": stored.tag, "Last-Modified": formatdate(stored.changed, usegmt=True), **stored.metadata}
        if self.headers.get("x-amz-checksum-mode"):
            headers["x-amz-checksum-sha256"] = stored.checksum
        if "range" in self.headers:
            start, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
            first, end, status = int(start), min(int(last or end) + 1, end), 206
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{stored.bytes}"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(end - first)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with stored.path.open("rb") as stream:
            while first < end:
                first += os.sendfile(self.connection.fileno(), stream.fileno(), first, end - first)

    def _list(self, prefix: str) -> None:
        with self.server.lock:
            entries = sorted((key, stored) for key, stored in self.server.objects.items() if key.startswith(prefix))
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{stored.bytes}</Size><ETag>{escape(stored.tag)}</ETag>"
            f"<LastModified>{formatdate(stored.changed, usegmt=True)}</LastModified></Contents>"
            for key, stored in entries
        )
        self._tell(200, _xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{rows}"))

    def _list_uploads(self, prefix: str) -> None:
        rows = "".join(
            f"<Upload><Key>{escape(upload.key)}</Key><UploadId>{name}</UploadId><ChecksumAlgorithm>SHA256</ChecksumAlgorithm>"
            f"<Initiated>{formatdate(usegmt=True)}</Initiated></Upload>"
            for name, upload in list(self.server.uploads.items())
            if upload.key.startswith(prefix)
        )
        self._tell(200, _xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{rows}"))

    def _list_parts(self, name: str) -> None:
        rows = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.tag)}</ETag><Size>{part.bytes}</Size>"
            f"<ChecksumSHA256>{part.checksum}</ChecksumSHA256></Part>"
            for number, part in list(self.server.uploads[name].parts.items())
        )
        self._tell(200, _xml("ListPartsResult", f"<IsTruncated>false</IsTruncated>{rows}"))

    def _refuse(self, status: int, code: str) -> None:
        self._tell(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _tell(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _xml(name: str, content: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{content}</{name}>'.encode()


if __name__ == "__main__":
    with Server(Path(sys.argv[1])) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
