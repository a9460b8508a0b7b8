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
        yield server.told(MODEL, "broken")


def test_a_server_that_follows_starts_with_what_loads_and_says_what_does_not(
    server: Followed, repository: ModelRepository
) -> None:
    assert any(
        "broken: " in line and "InvalidProtobuf" in line and "no version serves" in line for line in server.lines
    )
    # The server is shared: others may have published newer versions before.
    assert (server.triton.ready(MODEL), server.triton.ready("broken")) == (repository.standing(MODEL)[-1:], [])
    assert any("through plansmith's stand-in backend" in line for line in server.lines)


def test_publications_lose_no_request_mix_no_versions_and_broken_ones_leave_the_old_one_serving(
    server: Followed, repository: ModelRepository, folder: Path
) -> None:
    clients = Rounds(repository.root, folder, server).run(PUBLICATIONS)
    assert sorted(clients.answered) == repository.standing(MODEL)
    sound = repository.standing(MODEL)
    assert len(sound) == 1 + PUBLICATIONS // 2


@pytest.mark.slow
def test_models_that_come_and_go_are_loaded_and_unloaded(
    server: Followed, repository: ModelRepository, folder: Path
) -> None:
    release(repository, folder, model="another")
    server.line("another: new, version 1 serves")
    repository.withdraw("another", 1, "nobody wants it")
    server.line("another: not shown any more, unloaded")
    assert server.triton.ready("another") == []
    shutil.copytree((repository.root / MODEL).resolve(), folder / "theirs")
    (folder / "theirs").rename(repository.root / "theirs")
    server.line("theirs: new, version [0-9]+ serves")
