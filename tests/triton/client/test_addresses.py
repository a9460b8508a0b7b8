"""Servers are found where a person says they are; over TLS, too, and with headers."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.system.urls import Address, read_address, read_header, wrong_triton
from plansmith.triton.client import Client, Protocol
from plansmith.triton.server.live import RunningTriton

from ...support.certificates import write_certificate

pytestmark = pytest.mark.xdist_group("client")

PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")


@pytest.mark.parametrize(
    ("url", "protocol", "place", "secure"),
    [
        ("box:8000", "http", "box:8000", False),
        ("http://box:8000/", "http", "box:8000", False),
        ("https://box", "http", "box:443", True),
        ("http://box/triton", "http", "box:80/triton", False),
        ("box:8001", "grpc", "box:8001", False),
        ("grpc://box:8001", "grpc", "box:8001", False),
        ("grpcs://box:8001", "grpc", "box:8001", True),
        ("https://box:8001", "grpc", "box:8001", True),
        ("[::1]:8000", "http", "[::1]:8000", False),
    ],
)
def test_address_read_as_written(url: str, protocol: Protocol, place: str, secure: bool) -> None:
    """An address is read as it is written."""
    assert read_address(url, protocol) == Address(place, secure, protocol)
    assert wrong_triton(url) is None


def test_scheme_decides_protocol() -> None:
    """The scheme says what is spoken, and without one it is HTTP."""
    protocols = [read_address(url).protocol for url in ("box:1", "https://box", "grpc://box:1", "grpcs://box:1")]
    assert protocols == ["http", "http", "grpc", "grpc"]


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("box", "http"),
        ("", "http"),
        ("box:http", "http"),
        ("box:99999", "http"),
        ("ftp://box:21", "http"),
        ("grpc://box:8001", "http"),
        ("http://user:secret@box:8000", "http"),
        ("http://box:8000/?a=b", "http"),
        ("user:secret@box:8000", "http"),
        ("http://box:secret", "http"),
        ("http://[secret", "http"),
        ("http://exa mple:80", "http"),
        ("http://box:80/ä", "http"),
        (f"{'a' * 70}:80", "http"),
        ("box..de:80", "http"),
        ("grpc://box", "grpc"),
        ("box:8001/triton", "grpc"),
    ],
)
def test_invalid_address_refused_with_example(url: str, protocol: Protocol) -> None:
    """What is no address is refused with an example."""
    with pytest.raises(UsageError, match="is no address of a Triton: ") as refused:
        read_address(url, protocol)
    assert "127.0.0.1:800" in refused.value.remedy
    assert "secret@" not in refused.value.message
    assert "a=b" not in refused.value.message


def test_header_read_secret_not_repeated() -> None:
    """A header is read as it is written, and no secret is repeated."""
    assert read_header("Authorization:  Bearer a:b ", "a --header") == ("Authorization", "Bearer a:b")
    for text in (
        "secret",
        ": secret",
        "two words: secret",
        "name: secret\nmore: secret",
        "name: sécret",
        "näme: secret",
    ):
        with pytest.raises(UsageError, match="a --header is not 'NAME: VALUE'") as refused:
            read_header(text, "a --header")
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_missing_certificates_named(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of certificates that is not there is named."""
    monkeypatch.setenv("SSL_CERT_FILE", "missing.pem")
    with pytest.raises(EnvironmentFault, match=r"missing\.pem cannot be read") as missing:
        Client("https://127.0.0.1:1", model="tiny", protocol=protocol)
    assert "SSL_CERT_FILE" in missing.value.remedy


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_missing_package_named(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to be installed is named."""
    monkeypatch.setitem(sys.modules, "tritonclient", None)
    with pytest.raises(EnvironmentFault, match="the client of Triton cannot be imported") as missing:
        Client("127.0.0.1:8000", model="tiny", protocol=protocol)
    assert missing.value.remedy == "pip install 'plansmith[client]'"


@pytest.mark.slow
def test_grpc_needs_no_http_packages(address: Callable[[Protocol], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC needs none of the packages of HTTP."""
    for name in ("geventhttpclient", "geventhttpclient.response", "gevent", "tritonclient.http"):
        monkeypatch.setitem(sys.modules, name, None)
    feed = {"a": np.ones((1, 3), np.float32), "ids": [[1, 2]]}
    with Client(address("grpc"), model="tiny", protocol="grpc") as client:
        assert client.infer(feed)["twice"].tolist() == [[2, 4]]


@dataclass
class Tunnel:
    """Takes TLS off and hands what remains to a server; `heard` is what clients said."""

    url: str
    certificate: Path
    heard: bytearray = field(default_factory=bytearray)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that nobody signed, with its key."""
    return write_certificate(tmp_path_factory.mktemp("tls") / "both.pem")


@pytest.fixture
def tunnel(address: Callable[[Protocol], str], certificate: Path) -> Iterator[Callable[[Protocol], Tunnel]]:
    """Open a tunnel to the server for a protocol."""
    listeners: list[socket.socket] = []

    def open_tunnel(protocol: Protocol) -> Tunnel:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.set_alpn_protocols(["h2"] if protocol == "grpc" else ["http/1.1"])
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        instance = Tunnel(f"https://127.0.0.1:{listener.getsockname()[1]}", certificate)
        host, port = address(protocol).split(":")
        threading.Thread(target=serve, args=(listener, context, (host, int(port)), instance.heard), daemon=True).start()
        return instance

    yield open_tunnel
    for listener in listeners:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def serve(listener: socket.socket, context: ssl.SSLContext, server: tuple[str, int], heard: bytearray) -> None:
    """Serve one client after the other until the listener is closed."""
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        with plain, suppress(OSError), context.wrap_socket(plain, server_side=True) as client:
            client.settimeout(0.02)
            with socket.create_connection(server) as upstream:
                upstream.settimeout(0.02)
                while hand_over(client, upstream, heard) and hand_over(upstream, client, bytearray()):
                    pass


def hand_over(giver: socket.socket, taker: socket.socket, heard: bytearray) -> bool:
    """Pass on what is there; False at the end."""
    try:
        data = giver.recv(65536)
    except TimeoutError:
        return True
    heard += data
    taker.sendall(data)
    return bool(data)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tls_server_must_prove_itself(
    protocol: Protocol, tunnel: Callable[[Protocol], Tunnel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server behind TLS is asked, and must be who it says."""
    opened = tunnel(protocol)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with (
        Client(opened.url, model="tiny", protocol=protocol, timeout_seconds=5) as client,
        pytest.raises(EnvironmentFault, match=r"(?i)no server is reached.*certificate"),
    ):
        client.signature()
    monkeypatch.setenv("SSL_CERT_FILE", str(opened.certificate))
    feed = {"a": np.ones((1, 3), np.float32), "ids": [[1, 2]]}
    headers = {"Authorization": "Bearer of-the-token"}
    with Client(opened.url, model="tiny", protocol=protocol, headers=headers) as client:
        assert client.infer(feed)["twice"].tolist() == [[2, 4]]
    if protocol == "http":  # gRPC's are compressed
        assert opened.heard.count(b"Authorization: Bearer of-the-token\r\n") == 2


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_controlled_server_trusted_by_file(
    protocol: Protocol, tunnel: Callable[[Protocol], Tunnel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is told what to serve is trusted by the same file."""
    opened = tunnel(protocol)
    url = opened.url.replace("https", "grpcs") if protocol == "grpc" else opened.url
    monkeypatch.setenv("SSL_CERT_FILE", str(opened.certificate))
    assert RunningTriton(url).ready("tiny") == [1]
