"""No answer mixes two versions of a model, whatever is loaded while its parts are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tritonclient.http

from plansmith.errors import ServedCheckError
from plansmith.triton.client import Client, Protocol
from plansmith.triton.client.connection import Connection
from plansmith.triton.client.messages import Reply, Request
from plansmith.triton.server.server import TritonServer

from . import served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("client")]

FEED = {"x": [0] * 7}


def test_version_loaded_between_parts_unified(
    server: TritonServer,
    repository: Path,
    site: Path,
    address: Callable[[Protocol], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version that is loaded between two parts answers them all."""
    ask = Connection.ask
    answered: list[str] = []

    def load_meanwhile(self: Connection, request: Request) -> Reply:
        if len(answered) == 2:
            served.write_changing(repository, site, version=2)
            with tritonclient.http.InferenceServerClient(server.http_url) as connection:
                connection.load_model("changing")
        reply = ask(self, request)
        answered.append(reply.version)
        return reply

    def take_turns(self: Connection, request: Request) -> Reply:
        answered.append("")
        return ask(self, replace(request, version=str(1 + len(answered) % 2)))

    with Client(address("grpc"), model="changing", protocol="grpc") as client:
        monkeypatch.setattr(Connection, "ask", load_meanwhile)
        answer = client.ask(FEED)
        assert answered == ["1", "1", "2", "2", "2", "2", "2", "2"]
        assert (answer.version, answer.requests) == ("2", 4)
        assert answer.outputs["which"].tolist() == [2] * 7
        monkeypatch.setattr(Connection, "ask", take_turns)
        with pytest.raises(ServedCheckError, match="versions 1 and 2 of changing answered") as refused:
            client.ask(FEED)
        assert refused.value.transient
        monkeypatch.setattr(Connection, "ask", ask)
    for version in (1, 2):
        with Client(address("http"), model="changing", version=str(version)) as client:
            assert client.infer(FEED)["which"].tolist() == [version] * 7
