"""What the tests of stores share: an S3 server, and a store on it and in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.records.destination import Location
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.store import Store, open_objects

from ..support.servers.aws_server import aws, s3_server
from ..support.stores.crowds import Publishers, publishers
from ..support.stores.s3 import S3, plain_client, proxy, s3, server_abilities, standing_proxy

__all__ = ["aws", "plain_client", "proxy", "s3", "s3_server", "server_abilities", "standing_proxy"]


@pytest.fixture(scope="session")
def crowd() -> Iterator[Publishers]:
    """A process that has others publish."""
    with publishers() as crowd:
        yield crowd


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 5 MiB, the least that S3 takes, and pieces of 2 MiB, so that files need not be large."""
    monkeypatch.setattr("plansmith.stores.backend.s3_transfer._SMALLEST_PART_BYTES", 5 << 20)
    monkeypatch.setattr("plansmith.stores.backend.s3_transfer._PIECE_BYTES", 2 << 20)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Where a store can be: a folder, and a prefix in S3."""
    if request.param == "folder":
        return Location(to=str(tmp_path / "store"))
    s3: S3 = request.getfixturevalue("s3")
    return s3.place()


@pytest.fixture
def objects(place: Location) -> Objects:
    """An empty root, in a folder and in S3."""
    return open_objects(place, Path())


@pytest.fixture
def store(objects: Objects) -> Store:
    """A store that is not there yet, in a folder and in S3."""
    return Store(objects)


@pytest.fixture
def in_folder(tmp_path: Path) -> Store:
    """A store in a folder that is not there yet, for what does not hang on where a store is."""
    return Store(FolderObjects(tmp_path / "store"))


@pytest.fixture
def s3_store(s3: S3) -> Store:
    """A store in S3 that is not there yet, for what S3 alone does."""
    return Store(open_objects(s3.place(), Path()))
