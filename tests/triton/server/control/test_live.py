"""A running server is kept on what its repository shows, and loses nothing while it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation

from ....support.triton.followed import Followed
from ....support.triton.live_rounds import Rounds
from ....support.triton.versions import MODEL, release

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live")]

PUBLICATIONS = int(os.environ.get("PLANSMITH_SOAK_PUBLICATIONS") or 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def repository(folder: Path) -> ModelRepository:
    """A repository with version 1 of a sound model, and one of a model that does not load."""
    opened = ModelRepository(folder / "repository")
    release(opened, folder)
    release(opened, folder, model="broken", broken="garbage")
    return opened


@pytest.fixture(scope="module")
def server(repository: ModelRepository, installation: Installation, site: Path) -> Iterator[Followed]:
    """`plansmith serve --follow` on it."""
    del installation, site
    with Followed(repository.root) as server:
        yield server.wait_for_models(MODEL, "broken")


def test_following_server_starts_with_loadable(server: Followed, repository: ModelRepository) -> None:
    """A server that follows starts with what loads, and says what does not."""
    assert any(
        "broken: " in line and "InvalidProtobuf" in line and "no version serves" in line for line in server.lines
    )
    # The server is shared: others may have published newer versions before.
    assert (server.triton.ready(MODEL), server.triton.ready("broken")) == (repository.standing(MODEL)[-1:], [])
    assert any("through plansmith's stand-in backend" in line for line in server.lines)


def test_publications_lose_no_request(server: Followed, repository: ModelRepository, folder: Path) -> None:
    """Publications lose no request, mix no versions, and broken ones leave the old one serving."""
    clients = Rounds(repository.root, folder, server).run(PUBLICATIONS)
    assert sorted(clients.answered) == repository.standing(MODEL)
    sound = repository.standing(MODEL)
    assert len(sound) == 1 + PUBLICATIONS // 2


@pytest.mark.slow
def test_models_loaded_and_unloaded(server: Followed, repository: ModelRepository, folder: Path) -> None:
    """Models that come and go are loaded and unloaded."""
    release(repository, folder, model="another")
    server.line("another: new, version 1 serves")
    repository.withdraw("another", 1, "nobody wants it")
    server.line("another: not shown any more, unloaded")
    assert server.triton.ready("another") == []
    shutil.copytree((repository.root / MODEL).resolve(), folder / "theirs")
    (folder / "theirs").rename(repository.root / "theirs")
    server.line("theirs: new, version [0-9]+ serves")
