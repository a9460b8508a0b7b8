"""What is particular to a store in a folder: modes, what lies between, keys that lead out, and killed writers."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.backend.folder import FolderObjects

CONTENT = b"something"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    """An empty root."""
    return FolderObjects(tmp_path / "store")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that anybody may write and run, and that runs as its owner."""
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    path.chmod(0o6777)
    return path


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """What is taken from the modes of new files."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_file_modes_follow_umask(objects: FolderObjects, source: Path, umask: int, tmp_path: Path) -> None:
    """Files have the modes that the umask leaves."""
    objects.send(source, "objects/ab/content", SHA256)
    objects.create("models/one.json", CONTENT)
    objects.fetch("objects/ab/content", tmp_path / "back", SHA256)
    written = [path for path in (*(tmp_path / "store").rglob("*"), tmp_path / "back") if path.is_file()]
    assert len(written) >= 3
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "/etc/hostname", "a//b", "", "a/./b"])
def test_keys_lead_nowhere_else(objects: FolderObjects, source: Path, tmp_path: Path, key: str) -> None:
    (tmp_path / "outside").write_text("not ours")
    for attempt in (
        lambda: objects.read(key),
        lambda: objects.find(key),
        lambda: objects.put(key, CONTENT),
        lambda: objects.create(key, CONTENT),
        lambda: objects.send(source, key, SHA256),
        lambda: objects.fetch(key, tmp_path / "back", SHA256),
        lambda: objects.remove([key]),
        lambda: objects.copy(key, "a"),
    ):
        with pytest.raises(RepositoryError, match="is no key of") as caught:
            attempt()
        assert caught.value.remedy
    assert (tmp_path / "outside").read_text() == "not ours"
    assert not (tmp_path / "back").exists()


def test_keys_follow_s3_order(objects: FolderObjects, tmp_path: Path) -> None:
    """Keys come in the order of S3, without what lies between."""
    keys = ["a", "a!/b", "a.json", "a/b", "a/b/c", "a0", "b/c"]
    for key in sorted(keys, reverse=True):
        if key not in {"a", "a/b"}:  # a file and a folder of one name are two objects in S3 alone
            objects.put(key, CONTENT)
    (tmp_path / "store" / ".DS_Store").write_text("")
    (tmp_path / "store" / "a" / "b" / ".nfs0000000000a1b2c3").write_text("")
    (tmp_path / "store" / "lost+found").mkdir()
    (tmp_path / "store" / "lost+found" / "x").write_text("")
    expected = ["a!/b", "a.json", "a/b/c", "a0", "b/c"]
    assert [item.key for item in objects.below("")] == expected
    assert [item.key for item in objects.below("a")] == expected[:-1]
    assert [item.key for item in objects.below("a/")] == ["a/b/c"]
    assert [item.key for item in objects.below("none/")] == []


def test_killed_writer_leaves_nothing(objects: FolderObjects, source: Path, tmp_path: Path) -> None:
    """What a killed writer left is neither seen nor kept."""
    objects.put("a", CONTENT)
    staging = tmp_path / "store" / ".staging"
    old, young = staging / "old", staging / "young"
    for path in (old, young):
        path.write_bytes(CONTENT)
    two_days_ago = objects.now() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))
    assert [item.key for item in objects.below("")] == ["a"]
    objects.send(source, "b", SHA256)
    assert sorted(staging.iterdir()) == [young]


def test_link_for_folder_is_foreign(objects: FolderObjects, tmp_path: Path) -> None:
    """A link where a folder should be is something that is not ours."""
    (tmp_path / "store").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store" / "model").symlink_to(tmp_path / "elsewhere")
    assert [item.key for item in objects.below("")] == ["model"]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
def test_objects_are_small_files(kind: str, objects: FolderObjects, tmp_path: Path) -> None:
    """A pipe, on which reading waits, a device that never ends, and a huge document are refused."""
    place = tmp_path / "store" / "models" / "a.json"
    place.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    else:
        place.touch()
        os.truncate(place, 10 * 2**30)
    with pytest.raises(
        RepositoryError, match="has more than the 64 MiB" if kind == "large" else "is no file"
    ) as caught:
        objects.read("models/a.json")
    assert caught.value.remedy
    if kind != "large":
        with pytest.raises(RepositoryError, match="is no file"):
            objects.fetch("models/a.json", tmp_path / "back", SHA256)


def test_an_interrupted_fetch_leaves_nothing(objects: FolderObjects, source: Path, tmp_path: Path) -> None:
    objects.send(source, "a", SHA256)

    def interrupt(_count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        objects.fetch("a", tmp_path / "back", SHA256, interrupt)
    assert not (tmp_path / "back").exists()
    with pytest.raises(KeyboardInterrupt):
        objects.send(source, "b", SHA256, interrupt)
    assert objects.find("b") is None
    assert list((tmp_path / "store" / ".staging").iterdir()) == []
