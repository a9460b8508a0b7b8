"""A running server takes up an ensemble with its parts, lets go of those that nobody asks, and loses no request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.errors import ServedCheckError
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.live import RunningTriton, ServerGroup
from plansmith.triton.server.server import TritonServer

from ..support.triton.clients import Clients
from ..support.triton.followed import Followed
from ..support.triton.pipelines import BROKEN, NUMBER_PART, publish_pipeline
from ..support.triton.versions import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("members")]

_GONE_SECONDS = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("members")


@pytest.fixture(scope="module")
def repository(folder: Path) -> ModelRepository:
    """A repository with version 1 of an ensemble."""
    opened = ModelRepository(folder / "repository")
    publish_pipeline(opened, folder)
    return opened


@pytest.fixture(scope="module")
def server(repository: ModelRepository, installation: Installation) -> Iterator[TritonServer]:
    """A server that has loaded version 1."""
    log = repository.root.with_suffix(".log")
    with TritonServer(repository.root, installation, log, models=[], exit_on_error=False) as server:
        assert triton_of(server).load(repository.root / MODEL, version=1) == [1]
        yield server


def triton_of(server: TritonServer) -> RunningTriton:
    """The server, to be told and asked."""
    return RunningTriton(f"grpc://{server.grpc_url}", load_seconds=60)


def serving(server: TritonServer, model: str = MODEL) -> set[str]:
    """The parts of an ensemble that answer requests."""
    rows = triton_of(server).index()
    return {row["name"] for row in rows if row["state"] == "READY" and row["name"].startswith(f"{model}.")}


def parts(repository: ModelRepository, version: int | None = None) -> set[str]:
    """The names of the parts of a version, the one that is shown unless another is asked for."""
    version = version or repository.views(MODEL).shown()[-1]
    return {member.model for member in repository.manifest(MODEL, version).package.members}


def publish(repository: ModelRepository, folder: Path, server: TritonServer, **options: str) -> int:
    """Publish the next version and have the server load it."""
    group = ServerGroup([f"grpc://{server.grpc_url}"], load_seconds=60)
    return publish_pipeline(repository, folder, servers=group, **options).version


def test_publications_lose_no_request(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """Publications lose no request, whether parts are shared or not, and old parts go."""
    with Clients(server.http_url, server.grpc_url, count=4) as clients:
        clients.wait_for(1)
        for salt in ("", "another", "another", "a third"):
            number = publish(repository, folder, server, salt=salt)
            clients.wait_for(number)
            assert serving(server) == parts(repository)
        for _ in range(2):
            repository.withdraw(MODEL, number, "going back")
            number = repository.views(MODEL).shown()[-1]
            assert triton_of(server).load(repository.root / MODEL, version=number) == [number]
            clients.wait_for(number)
            assert serving(server) == parts(repository)
    assert clients.lost == clients.torn == []
    assert triton_of(server).ready(MODEL) == [number]


def test_part_loaded_once_despite_rehearsal(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """A part is loaded once though its ensemble is rehearsed."""
    publish(repository, folder, server, salt="loaded once")
    lines = server.log.read_text().splitlines()
    loads = {name: sum(f"loading: {name}:1" in line for line in lines) for name in parts(repository)}
    assert set(loads.values()) == {1}


@pytest.mark.parametrize(
    ("options", "reason"), [({"initialize": BROKEN}, "there are no words"), ({"whole": "halves"}, "failed to poll")]
)
def test_failed_version_keeps_ensemble_serving(
    options: dict[str, str], reason: str, repository: ModelRepository, server: TritonServer, folder: Path
) -> None:
    """A version that does not load leaves the ensemble and its parts serving, and nothing behind."""
    before, names = repository.views(MODEL).shown(), serving(server)
    with Clients(server.http_url, server.grpc_url, count=2) as clients:
        clients.wait_for(before[-1])
        with pytest.raises(ServedCheckError, match=reason):
            publish(repository, folder, server, salt=reason, **options)
    assert clients.lost == clients.mixed == []
    assert (repository.views(MODEL).shown(), triton_of(server).ready(MODEL)) == (before, before)
    assert serving(server) == names == parts(repository)
    withdrawn = repository.versions(MODEL)[-1]
    assert repository.withdrawals(MODEL).reason(withdrawn) is not None


def test_part_of_other_ensemble_stays(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """A part that another ensemble asks stays loaded."""
    publish(repository, folder, server, salt="for two")
    others = repository.root / "others"
    (others / "1").mkdir(parents=True)
    (others / "config.pbtxt").write_text((repository.root / MODEL / "config.pbtxt").read_text())
    assert triton_of(server).load(others) == [1]
    earlier_parts = parts(repository)
    publish(repository, folder, server, salt="for one")
    assert serving(server) == parts(repository) | earlier_parts
    assert triton_of(server).ready("others") == [1]
    (others / "config.pbtxt").unlink()
    (others / "1").rmdir()
    others.rmdir()
    triton_of(server).unload(others)
    publish(repository, folder, server, salt="for none")
    assert serving(server) == parts(repository)


def test_foreign_model_named_like_part_stays(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """A model of somebody else that is named like a part stays loaded."""
    part = next(name for name in parts(repository) if f".{NUMBER_PART}." in name)
    theirs = repository.root / f"{MODEL}.theirs.0123abcd"
    (theirs / "1").mkdir(parents=True)
    (theirs / "config.pbtxt").write_text((repository.root / part / "config.pbtxt").read_text())
    (theirs / "1" / "model.py").write_text((repository.root / part / "1" / "model.py").read_text())
    assert triton_of(server).load(theirs) == [1]
    publish(repository, folder, server, salt="beside theirs")
    assert serving(server) == parts(repository) | {theirs.name}


def test_released_ensemble_goes_with_parts(repository: ModelRepository, server: TritonServer, folder: Path) -> None:
    """An ensemble that is let go of goes with its parts."""
    publication = publish_pipeline(repository, folder, model="passing")
    assert triton_of(server).load(repository.root / "passing", version=publication.version) == [1]
    assert len(serving(server, "passing")) == 2
    repository.withdraw("passing", 1, "nobody wants it")
    triton_of(server).unload(repository.root / "passing")
    assert (triton_of(server).ready("passing"), serving(server, "passing")) == ([], set())


def test_following_server_loads_and_drops_ensembles(
    tmp_path: Path,
    installation: Installation,
) -> None:
    """A server that follows takes ensembles up, and lets go of them with their parts."""
    del installation
    repository = ModelRepository(tmp_path / "repository")
    publish_pipeline(repository, tmp_path)
    with Followed(repository.root) as followed:
        followed.wait_for_models(MODEL)
        assert not any(line.startswith(f"{MODEL}.") for line in followed.lines), "parts are no models of their own"
        publish_pipeline(repository, tmp_path)
        followed.line(f"{MODEL}: version 2 serves, and no longer version 1")
        assert _parts_of(followed) == parts(repository)
        for number in (2, 1):
            repository.withdraw(MODEL, number, "nobody wants it")
        followed.line(f"{MODEL}: not shown any more, unloaded")
        deadline = time.monotonic() + _GONE_SECONDS
        while _parts_of(followed) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert _parts_of(followed) == set()


def _parts_of(followed: Followed) -> set[str]:
    rows = followed.triton.index()
    return {row["name"] for row in rows if row["state"] == "READY" and row["name"].startswith(f"{MODEL}.")}
