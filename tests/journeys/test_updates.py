"""A running server takes up versions that are published and taken back, and loses no request meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.triton.repository.repository import ModelRepository

from ..support.cli.command import CommandLine
from ..support.triton.clients import Clients
from ..support.triton.followed import Followed
from ..support.triton.live_rounds import Rounds
from ..support.triton.versions import MODEL, release


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("updates")


@pytest.fixture(scope="module")
def repository(folder: Path) -> ModelRepository:
    """A repository with one version of a model whose answers tell its version."""
    opened = ModelRepository(folder / "repository")
    release(opened, folder)
    return opened


@pytest.fixture(scope="module")
def server(repository: ModelRepository) -> Iterator[Followed]:
    """`plansmith serve --follow` on it."""
    with Followed(repository.root) as server:
        yield server.wait_for_models(MODEL)


def test_publications_lose_no_request(server: Followed, repository: ModelRepository, folder: Path) -> None:
    """Two versions are published while eight clients ask: each answer is whole and of one version."""
    rounds = Rounds(repository.root, folder, server)
    rounds.serving = repository.standing(MODEL)[-1]
    with Clients(server.http_url, server.grpc_url) as clients:
        clients.wait_for(rounds.serving)
        for publish in (rounds.sound_told, rounds.sound_followed):
            publish()
            clients.wait_for(rounds.serving)
            assert server.triton.ready(MODEL) == [rounds.serving]
    assert (clients.lost, clients.mixed) == ([], [])
    assert len(clients.answered) == 3


def test_rollback_serves_previous_version(server: Followed, repository: ModelRepository, folder: Path) -> None:
    """After `plansmith rollback` the running server answers by the version before, and no request is lost."""
    old, new = repository.standing(MODEL)[-1], release(repository, folder).version
    server.line(f"{MODEL}: version {new} serves")
    terminal = CommandLine(folder)
    with Clients(server.http_url, server.grpc_url, count=2) as clients:
        clients.wait_for(new)
        output = terminal.text("rollback", MODEL, "--repository", "repository")
        assert output.startswith(f"version {new} of {MODEL} is withdrawn, and Triton is shown version {old} again\n")
        server.line(f"{MODEL}: version {old} serves")
        clients.wait_for(old)
    assert (clients.lost, clients.mixed) == ([], [])
    answer = terminal.document("infer", MODEL, "--input", "x=1", "--url", server.http_url)
    assert answer["outputs"]["whole"]["data"] == [[old]]
