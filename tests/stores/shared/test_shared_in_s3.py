"""The shared cache in S3, and beside releases: the same contents, fetched and sent once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.records.destination import Location
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.publication import publish_release
from plansmith.stores.store import open_store
from plansmith.system.digest import Digester

from ...support.servers.aws_server import SECRET
from ...support.stores.machines import STEP, Machine
from ...support.stores.releases import BULK_FILE, make_release
from ...support.stores.s3 import S3
from .test_shared_cache import flip_a_bit, the_entry

pytestmark = pytest.mark.slow


def test_other_machine_finds_s3_build(s3: S3, tmp_path: Path) -> None:
    """What one machine has built, another one finds in S3 and builds again where it is damaged."""
    place = s3.place()
    objects = open_store(place, tmp_path).objects
    first, second, third = (Machine(tmp_path / name, place) for name in "abc")
    built, result = first.entry(), second.entry()
    assert (first.built, second.built) == (1, 0)
    assert (result.record, result.files) == (built.record, built.files)
    flip_a_bit(objects)
    third.entry()
    assert third.built == 1
    (notice,) = third.close()
    assert notice.startswith(f"the shared {the_entry(objects)} is damaged (model/model.onnx is not what it was)")
    fourth = Machine(tmp_path / "d", place)
    fourth.entry()
    assert (fourth.built, fourth.close()) == (0, [f"from the shared cache {objects.place}: {STEP} (6.8 KiB)"])


@pytest.mark.parametrize("wrong", ["no bucket", "nobody there"])
def test_unusable_s3_told_once(wrong: str, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An S3 that cannot be used is told once, and everything is built here."""
    monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
    place = (
        s3.place(endpoint_url="http://127.0.0.1:9")
        if wrong == "nobody there"
        else Location(to="s3://no-such-bucket-here/shared", endpoint_url=s3.endpoint)
    )
    machine = Machine(tmp_path / "a", place)
    machine.entry(1)
    machine.entry(2)
    assert machine.built == 2
    (notice,) = machine.close()
    assert notice.startswith(f"the shared cache {place.to}")
    assert "cannot be used, and is left alone: " in notice
    assert SECRET not in notice


def test_shared_release_publishes_cheaply(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of what was shared is published with almost nothing sent."""
    place = s3.place()
    release = make_release(tmp_path / "repository", bulk_bytes=300_000)
    package = {file.path: (release.folder / file.path).read_bytes() for file in release.manifest.files}
    machine = Machine(tmp_path / "a", place, files=package)
    machine.entry()
    sent: list[str] = []
    store = open_store(place, tmp_path)
    send = type(store.objects).send

    def noted(self: Objects, path: Path, *rest: Any) -> None:
        sent.append(path.name)
        send(self, path, *rest)

    monkeypatch.setattr(type(store.objects), "send", noted)
    digester = Digester(tmp_path / "digests.sqlite")
    published = publish_release(store, release.folder, release.manifest, digester)
    assert BULK_FILE in {Path(path).name for path in package}
    assert not {Path(path).name for path in package} & set(sent)
    assert 0 < published.sent_bytes < published.total_bytes / 5
    assert published.total_bytes > 300_000
