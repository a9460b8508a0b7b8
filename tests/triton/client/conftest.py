"""One server for all that the client is asked in its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plansmith.triton.server.server import TritonServer

from ...support.cli.in_process import InProcess
from . import raw_models, served

if TYPE_CHECKING:
    import onnx

    from plansmith.triton.client import Protocol
    from plansmith.triton.server.installation import Installation

    Address = Callable[[Protocol], str]

PART = "tiny.part.0123abcd"
"""A model that is named as a part of another one."""


@pytest.fixture(scope="session")
def repository(
    tmp_path_factory: pytest.TempPathFactory,
    site: Path,
    config: str,
    graph: Callable[[int | str], onnx.ModelProto],
    write_model: Callable[[Path, str, str, onnx.ModelProto | None], Path],
) -> Path:
    """`tiny` and `cached` halve and double in the stand-in; others are Python models."""
    folder = tmp_path_factory.mktemp("served")
    write_model(folder, "tiny", config, graph("n"))
    write_model(folder, "cached", f"{config}response_cache {{ enable: true }}\n", graph("n"))
    write_model(folder, PART, config, graph("n"))
    served.write_echo(folder, site)
    served.write_moody(folder, site)
    served.write_changing(folder, site)
    raw_models.write_raw_models(folder, site)
    return folder


@pytest.fixture(scope="session")
def server(
    repository: Path, installation: Installation, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    log = tmp_path_factory.mktemp("log") / "triton.log"
    with TritonServer(repository, installation, log, site=site) as running:
        yield running


@pytest.fixture
def address(server: TritonServer) -> Address:
    """Where the server answers a protocol."""
    return lambda protocol: server.http_url if protocol == "http" else server.grpc_url


@pytest.fixture
def infer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], server: TritonServer
) -> Callable[..., Any]:
    """`plansmith infer`, in a folder of its own and asking the server over HTTP unless told otherwise."""
    command = InProcess(tmp_path, monkeypatch, capfd)

    def run(*arguments: str | Path) -> Any:
        urls = () if "--url" in arguments else ("--url", server.http_url)
        return command("infer", *arguments, *urls)

    return run
