"""A running Triton takes up what it is told to, keeps what it has where that fails, and says why."""

from __future__ import annotations

import http.client
import itertools
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import tritonclient.http
from tritonclient import grpc

from plansmith.errors import EnvironmentFault, ServedCheckError, UsageError
from plansmith.system.urls import HEADER_VARIABLE
from plansmith.triton.server import control as control_client
from plansmith.triton.server import process
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.live import RunningTriton, ServerGroup
from plansmith.triton.server.server import TritonServer

pytestmark = pytest.mark.xdist_group("control")

PYTHON_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        if args["model_version"] == "13":
            raise RuntimeError("thirteen is\\nno number")
    def execute(self, requests):
        return []
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "member" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
} ] }
"""
LABELLED = "labelled"
KEY = "admin-key: secret"


class Shown:
    """A repository of models that each are a link to a folder, as `views` makes them, but of any content."""

    def __init__(self, root: Path) -> None:
        self.root = root / "repository"
        self.root.mkdir()
        self._folders = (root / f"view-{number}" for number in itertools.count())

    def show(self, model: str, config: str, *versions: int, source: str | None = MODEL) -> Path:
        """Exchange a model's folder; `source` is that of its Python model, None leaves it out."""
        folder = next(self._folders)
        for version in versions:
            (folder / str(version)).mkdir(parents=True)
            if source is not None:
                (folder / str(version) / "model.py").write_text(source)
        (folder / "config.pbtxt").write_text(config)
        link = folder.with_suffix(".link")
        link.symlink_to(folder)
        return link.rename(self.root / model)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    shown = Shown(tmp_path_factory.mktemp("control"))
    shown.show("member", PYTHON_CONFIG, 1)
    shown.show("ensemble", ENSEMBLE, 1, source=None)
    return shown


@pytest.fixture(scope="module")
def server(shown: Shown, installation: Installation) -> Iterator[TritonServer]:
    """A server that lets only those control its models who have the key."""
    ways = ("http-restricted-api", "grpc-restricted-protocol")
    arguments = [
        "--disable-auto-complete-config",
        *(f"--{way}=model-repository:{KEY.replace(': ', '=')}" for way in ways),
    ]
    log = shown.root.with_suffix(".log")
    with (
        pytest.MonkeyPatch.context() as patch,
        TritonServer(shown.root, installation, log, arguments=arguments) as server,
    ):
        yield server
        patch.setattr(process, "_TERMINATE_SECONDS", 1)  # with a load that never ends, it does not end gently


@pytest.fixture
def by_http(server: TritonServer, monkeypatch: pytest.MonkeyPatch) -> RunningTriton:
    """The server as somebody with the key reaches it."""
    monkeypatch.setenv(HEADER_VARIABLE, KEY)
    return RunningTriton(f"http://{server.http_url}", load_seconds=120)


@pytest.fixture
def by_grpc(server: TritonServer, monkeypatch: pytest.MonkeyPatch) -> RunningTriton:
    """The same over gRPC."""
    monkeypatch.setenv(HEADER_VARIABLE, KEY)
    return RunningTriton(f"grpc://{server.grpc_url}", load_seconds=120)


def proxy_of(server: TritonServer, spoiled: Sequence[str] = ()) -> type[BaseHTTPRequestHandler]:
    """Passes on what it is sent below /triton; the answers to calls that end so, in this order, it keeps to itself."""
    due = list(spoiled)

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            behind = http.client.HTTPConnection(server.http_url)
            behind.request("POST", self.path.removeprefix("/triton"), body, dict(self.headers.items()))
            answer = behind.getresponse()
            status, content = answer.status, answer.read()
            behind.close()
            if due and self.path.endswith(due[0]):
                del due[0]
                status, content = http.client.GATEWAY_TIMEOUT, b"<html>the gateway lost its patience</html>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    return Proxy


@contextmanager
def impatient(server: TritonServer, *spoiled: str) -> Iterator[str]:
    """The address of a proxy that answers 504 to those calls, though the server has done what they ask for."""
    with ThreadingHTTPServer(("127.0.0.1", 0), proxy_of(server, spoiled)) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_port}/triton"
        proxy.shutdown()
        thread.join()


def wiring(url: str, ensemble: str) -> dict[str, str]:
    """What a server that answers at an address has for the output map of an ensemble's one step."""
    address = urlsplit(url)
    if address.scheme == "grpc":
        with grpc.InferenceServerClient(address.netloc) as client:
            config = client.get_model_config(ensemble, as_json=True)["config"]
    else:
        with tritonclient.http.InferenceServerClient(address.netloc) as client:
            config = client.get_model_config(ensemble)
    return dict(config["ensemble_scheduling"]["step"][0]["output_map"])


@pytest.mark.slow
def test_failed_load_keeps_old_serving(by_http: RunningTriton, by_grpc: RunningTriton, shown: Shown) -> None:
    """A failed load has Triton's reason, and leaves the old version serving."""
    (before,) = by_http.ready("member")
    shown.show("member", PYTHON_CONFIG, before, 13)
    for triton in (by_http, by_grpc):
        with pytest.raises(ServedCheckError, match=r"does not load member: version 13 .* thirteen is") as refused:
            triton.load(shown.root / "member", version=13)
        assert "serves on" in refused.value.remedy
        assert triton.ready("member") == [before]
        failed = next(entry for entry in triton.version_states("member") if entry.version == 13)
        assert (failed.state, "thirteen is" in failed.reason) == ("UNAVAILABLE", True)


@pytest.mark.slow
def test_shown_version_serves_once_loaded(by_http: RunningTriton, by_grpc: RunningTriton, shown: Shown) -> None:
    """A newer version serves once it is loaded, and an older one once it is shown again."""
    (before,) = by_http.ready("member")
    shown.show("member", PYTHON_CONFIG, before, 20)
    assert by_http.load(shown.root / "member", version=20) == [20]
    shown.show("member", PYTHON_CONFIG, before)
    assert by_grpc.load(shown.root / "member", version=before) == [before]


@pytest.mark.slow
def test_unread_folder_is_no_success(by_grpc: RunningTriton, shown: Shown) -> None:
    """A folder that the server does not read is no success."""
    (before,) = by_grpc.ready("member")
    with pytest.raises(ServedCheckError, match=f"serves version {before} of it") as refused:
        by_grpc.load(shown.root / "member", version=99)
    assert f"--model-repository={shown.root}" in refused.value.remedy


@pytest.mark.slow
def test_failed_ensemble_keeps_old_serving(by_http: RunningTriton, by_grpc: RunningTriton, shown: Shown) -> None:
    """Loaded as other models are, it would be unloaded."""
    before = by_http.ready("ensemble")[-1]
    shown.show("ensemble", ENSEMBLE.replace('key: "y"', 'key: "z"'), before + 1, source=None)
    for triton in (by_http, by_grpc):
        with pytest.raises(ServedCheckError, match="non-existing output z in model member") as refused:
            triton.load(shown.root / "ensemble", version=before + 1)
        assert "rehearsal" not in refused.value.message
        # Triton has taken the number of the new folder for what it had read of the old one; the wiring is the old one.
        assert triton.ready("ensemble") == [before + 1]
        assert wiring(triton.url, "ensemble") == {"y": "y"}
    for number, triton in enumerate((by_http, by_grpc), before + 2):
        shown.show("ensemble", ENSEMBLE, number, source=None)
        assert triton.load(shown.root / "ensemble", version=number) == [number]
    assert by_http.ready("member") != []
    assert "plansmith-rehearsal-of-ensemble" not in {row["name"] for row in by_http.index()}


@pytest.mark.slow
def test_unfitting_member_refused_and_restored(by_grpc: RunningTriton, shown: Shown) -> None:
    """A member that its ensemble does not fit is refused, and taking it back restores both."""
    (before,) = by_grpc.ready("member")
    servers = ServerGroup([by_grpc.url])
    member = shown.show("member", PYTHON_CONFIG.replace('"y"', '"z"'), before + 1)
    with pytest.raises(ServedCheckError, match="let go of ensemble"):
        servers.take(member, before + 1)
    assert by_grpc.ready("ensemble") == []
    shown.show("member", PYTHON_CONFIG, before)
    servers.take_back(member)
    assert (by_grpc.ready("member"), len(by_grpc.ready("ensemble"))) == ([before], 1)


@pytest.mark.slow
def test_named_ensemble_loaded_rehearsal_goes(by_grpc: RunningTriton, shown: Shown) -> None:
    """An ensemble that names its versions and labels is loaded, and a rehearsal that was left goes."""
    number = by_grpc.ready("ensemble")[-1] + 1
    left = f"plansmith-rehearsal-of-{LABELLED}"
    shown.show(left, ENSEMBLE, 1, source=None)
    by_grpc.load(shown.root / left)
    (shown.root / left).unlink()
    named = ENSEMBLE.replace("dims: [ 1 ] } ]\nensemble", 'dims: [ 1 ] label_filename: "labels.txt" } ]\nensemble')
    named += f"version_policy {{ specific {{ versions: [ {number} ] }} }}"
    folder = shown.show(LABELLED, named, number, source=None)
    (folder / "labels.txt").write_text("good\n")
    assert by_grpc.load(folder, version=number) == [number]
    assert left not in {entry["name"] for entry in by_grpc.index() if entry.get("state") == "READY"}
    folder.unlink()
    by_grpc.unload(shown.root / LABELLED)


@pytest.mark.slow
def test_accepting_server_follows_refusing_one(
    by_grpc: RunningTriton, shown: Shown, installation: Installation, tmp_path: Path
) -> None:
    """Of two servers, the one that took a version goes back where the other refuses."""
    (before,) = by_grpc.ready("member")
    messages: list[str] = []
    (tmp_path / "empty").mkdir()
    with TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[]) as second:
        servers = ServerGroup([by_grpc.url, f"grpc://{second.grpc_url}"], messages.append)
        member = shown.show("member", PYTHON_CONFIG, before, before + 1)
        with pytest.raises(ServedCheckError, match=f"the Triton at grpc://{second.grpc_url} does not load member"):
            servers.take(member, before + 1)
        assert by_grpc.ready("member") == [before + 1]
        shown.show("member", PYTHON_CONFIG, before)
        servers.take_back(member)
    assert by_grpc.ready("member") == [before]
    assert messages[2:] == [f"going back in {by_grpc.url}"]


@pytest.mark.slow
def test_silent_server_goes_back_or_named(
    server: TritonServer, by_grpc: RunningTriton, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of which no answer came goes back too, and is named where it cannot."""
    monkeypatch.setattr(control_client, "_GONE_SECONDS", 0)
    (before,) = by_grpc.ready("member")
    for spoiled in (["/load"], ["/load", "/load"]):
        with impatient(server, *spoiled) as address:
            servers = ServerGroup([address])
            member = shown.show("member", PYTHON_CONFIG, before, before + 1)
            with pytest.raises(EnvironmentFault, match="cannot be asked: HTTP 504 Gateway Timeout"):
                servers.take(member, before + 1)
            assert by_grpc.ready("member") == [before + 1]
            shown.show("member", PYTHON_CONFIG, before)
            if len(spoiled) == 1:
                servers.take_back(member)
            else:
                with pytest.raises(EnvironmentFault, match=rf"{address} cannot be .*; it may serve what was withdrawn"):
                    servers.take_back(member)
        assert by_grpc.ready("member") == [before]


@pytest.mark.slow
def test_successful_load_stands_despite_slowness(server: TritonServer, by_grpc: RunningTriton, shown: Shown) -> None:
    """A load that succeeded stands though the server is slow to say so."""
    folder = shown.show("alone", PYTHON_CONFIG, 4)
    with impatient(server, "/index", "/index") as address:
        assert RunningTriton(address, load_seconds=120).load(folder, version=4) == [4]
    folder.unlink()
    by_grpc.unload(shown.root / "alone")


def test_policy_excluded_version_not_loaded(shown: Shown) -> None:
    """No server is told of a version that its policy leaves out."""
    nobody = ServerGroup(["grpc://127.0.0.1:1"], serves=lambda version: version != 3)
    nobody.take(shown.root / "member", 3)
    nobody.take_back(shown.root / "member")


@pytest.mark.slow
def test_key_holder_controls_models(
    by_http: RunningTriton, by_grpc: RunningTriton, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a client that has the key controls the models."""
    monkeypatch.delenv(HEADER_VARIABLE)
    for triton in (by_http, by_grpc):
        with pytest.raises(EnvironmentFault, match="does not let its models be controlled") as refused:
            RunningTriton(triton.url).load(shown.root / "member")
        assert HEADER_VARIABLE in refused.value.remedy


@pytest.mark.slow
def test_endless_load_given_up(server: TritonServer, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python model without its file loads for ever, with Triton 2.51; so this one has a name of its own."""
    monkeypatch.setenv(HEADER_VARIABLE, KEY)
    triton = RunningTriton(f"grpc://{server.grpc_url}")
    folder = shown.show("endless", PYTHON_CONFIG, 1)
    assert triton.load(folder) == [1]
    shown.show("endless", PYTHON_CONFIG, 1, 2, source=None)
    with pytest.raises(ServedCheckError, match="still loading endless after 2 s"):
        ServerGroup([triton.url], load_seconds=2).take(folder, 2)
    assert triton.ready("endless") == [1]
    assert triton.ready("member") != []


def test_absent_server_is_fault() -> None:
    """A server that is not there is a fault by every scheme."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        for scheme in ("http", "https", "grpc", "grpcs"):
            with pytest.raises(EnvironmentFault, match=f"{scheme}://127.0.0.1:{port} cannot be asked"):
                RunningTriton(f"{scheme}://127.0.0.1:{port}").require_reachable()


@pytest.mark.parametrize(
    ("address", "wrong"),
    [
        ("127.0.0.1", "names no port"),
        ("http://exa mple:80", "a character that has no place"),
        (f"http://{'a' * 70}:80", "longer than 63 letters"),
        ("ftp://127.0.0.1", "begins with none of http://"),
        ("http://", "names no host"),
        ("https://user:secret@host", "secrets belong into"),
        ("grpc://host", "gRPC has a host and a port"),
        ("http://host:port", "port"),
        (f"http://{'a' * 70}:80", "its host has a part that is empty"),
        ("http://a..b:80", "its host has a part that is empty"),
        ("http://host/mod\u00e8les", "a character that has no place"),
        ("http://host/my models", "a character that has no place"),
    ],
)
def test_invalid_address_refused(address: str, wrong: str) -> None:
    """An address that is no address is refused."""
    with pytest.raises(UsageError, match=wrong) as refused:
        RunningTriton(address)
    assert "secret@" not in str(refused.value)


@pytest.mark.parametrize("address", ["http://[::1]:8000", "http://models.example:80/a/b", "grpcs://gpu_7.local:1"])
def test_valid_address_accepted(address: str) -> None:
    """An address that is one is accepted."""
    assert RunningTriton(address).url == address


@pytest.mark.parametrize(
    "header",
    [
        "no header",
        ": secret",
        "admin key: secret",
        "kl\u00e9: secret",
        "admin-bin: secret",
        "admin-key: s\u00e9cret",
        "admin-key: secret\nother: more",
    ],
)
def test_invalid_header_refused_not_repeated(header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no header is refused, and not repeated."""
    monkeypatch.setenv(HEADER_VARIABLE, header)
    for scheme in ("http", "grpc"):
        with pytest.raises(UsageError, match=f"{HEADER_VARIABLE} holds is not 'NAME: VALUE'") as refused:
            RunningTriton(f"{scheme}://127.0.0.1:8000")
        assert "cret" not in refused.value.message
        assert "Authorization" in refused.value.remedy


@pytest.fixture
def stranger() -> Iterator[Callable[[int, bytes], str]]:
    """The address of a service that answers everything with what it is given, and is no Triton."""
    answer: list[tuple[int, bytes]] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, content = answer[-1]
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()

        def answers(status: int, content: bytes) -> str:
            answer.append((status, content))
            return f"http://127.0.0.1:{service.server_port}"

        yield answers
        service.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (200, b"<html>welcome</html>", "what answers there is no Triton"),
        (200, b'{"models": []}', "what answers there is no Triton"),
        (200, b'[{"name": "m", "version": "one"}]', "what answers there is no Triton"),
        (200, b"{}", "what answers there is no Triton"),
        (200, b"[1]", "what answers there is no Triton"),
        (404, b"<html>none here</html>", "HTTP 404 Not Found, which no Triton said"),
        (504, b'{"error": {"code": 7}}', "HTTP 504 Gateway Timeout, which no Triton said"),
    ],
)
def test_foreign_service_is_fault(
    status: int,
    content: bytes,
    said: str,
    stranger: Callable[[int, bytes], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that is no Triton is a fault and refuses nothing."""
    monkeypatch.setattr(control_client, "_GONE_SECONDS", 0.1)
    address = stranger(status, content)
    with pytest.raises(EnvironmentFault, match=f"cannot be asked: {said}") as refused:
        RunningTriton(address).require_reachable()
    assert "<html>" not in refused.value.message
    with pytest.raises(EnvironmentFault, match="cannot be asked"):
        RunningTriton(address).load(Path("/models/m"))
    with pytest.raises(EnvironmentFault, match="does not let its models be controlled: HTTP 403"):
        RunningTriton(stranger(403, b"<html>keep out</html>")).require_reachable()
    with pytest.raises(EnvironmentFault, match="cannot be asked"):
        RunningTriton(address.replace("http", "grpc", 1)).require_reachable()


@pytest.mark.slow
def test_schemeless_address_is_http(server: TritonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without scheme is one of HTTP."""
    monkeypatch.setenv(HEADER_VARIABLE, KEY)
    assert RunningTriton(server.http_url).ready("member") != []
    with pytest.raises(EnvironmentFault, match="cannot be asked"):
        RunningTriton(server.grpc_url).ready("member")


@pytest.mark.slow
def test_uncontrolled_server_is_fault(installation: Installation, shown: Shown, tmp_path: Path) -> None:
    """A server whose models nobody controls is a fault."""
    (tmp_path / "empty").mkdir()
    arguments = ["--model-control-mode=none"]
    with TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[], arguments=arguments) as server:
        for url in (f"http://{server.http_url}", f"grpc://{server.grpc_url}"):
            with pytest.raises(EnvironmentFault, match="takes no calls to load models") as refused:
                RunningTriton(url).load(shown.root / "member")
            assert "--model-control-mode=explicit" in refused.value.remedy


@pytest.fixture
def encrypted(server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """A proxy that speaks TLS and passes on what it is sent, under a path of its own; trusted once it is called."""
    files = {name: tmp_path / name for name in ("key.pem", "certificate.pem")}
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            files["key.pem"],
            "-out",
            files["certificate.pem"],
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate.pem"], files["key.pem"])
    with ThreadingHTTPServer(("localhost", 0), proxy_of(server)) as proxy:
        proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()

        def trusted() -> str:
            monkeypatch.setenv("SSL_CERT_FILE", str(files["certificate.pem"]))
            return address

        address = f"https://localhost:{proxy.server_port}/triton"
        with pytest.raises(EnvironmentFault, match="certificate"):
            RunningTriton(address).require_reachable()
        yield trusted
        proxy.shutdown()
        thread.join()


@pytest.mark.slow
def test_encrypted_address_needs_trusted_certificate(
    encrypted: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encrypted address with a path is asked once its certificate is trusted."""
    monkeypatch.setenv(HEADER_VARIABLE, KEY)
    assert RunningTriton(encrypted()).ready("member") != []
