"""What every kind of store does alike: a folder and S3."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.backend.object_store import Changed, KeyTaken, Objects

pytestmark = pytest.mark.usefixtures("small_parts")


def file_of(folder: Path, size: int, seed: int = 0) -> tuple[Path, str]:
    """A file of bytes that do not repeat, and its SHA-256."""
    path = folder / f"{size}-{seed}.bin"
    path.write_bytes(random.Random(seed).randbytes(size))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 100_000, 11 << 20])
def test_file_comes_back_unchanged(objects: Objects, tmp_path: Path, size: int) -> None:
    """A file comes back as it was sent."""
    path, sha256 = file_of(tmp_path, size)
    sent: list[int] = []
    fetched: list[int] = []
    objects.send(path, "objects/ab/content", sha256, sent.append)
    objects.fetch("objects/ab/content", tmp_path / "back", sha256, fetched.append)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert sum(sent) == sum(fetched) == size
    item = objects.find("objects/ab/content")
    assert item is not None
    assert item.bytes == size
    assert objects.sha256("objects/ab/content") == sha256


@pytest.mark.slow
def test_changed_file_does_not_appear(objects: Objects, tmp_path: Path) -> None:
    """A file that changed since it was hashed does not appear."""
    for size in (1000, 6 << 20):
        path, sha256 = file_of(tmp_path, size)
        with path.open("r+b") as stream:
            stream.write(b"changed")
        with pytest.raises(RepositoryError, match="content is not that of SHA-256") as caught:
            objects.send(path, "objects/ab/content", sha256)
        assert caught.value.remedy
        assert objects.find("objects/ab/content") is None


@pytest.mark.slow
def test_damaged_object_leaves_no_file(objects: Objects, tmp_path: Path) -> None:
    """What is damaged in the store leaves no file here."""
    objects.put("objects/ab/content", b"damaged")
    with pytest.raises(RepositoryError, match="damaged") as caught:
        objects.fetch("objects/ab/content", tmp_path / "back", "0" * 64)
    assert caught.value.remedy
    assert not (tmp_path / "back").exists()


def test_missing_object_leaves_no_file(objects: Objects, tmp_path: Path) -> None:
    """What is not in the store leaves no file here."""
    objects.put("other", b"")
    with pytest.raises(RepositoryError, match="has no objects/ab/content") as caught:
        objects.fetch("objects/ab/content", tmp_path / "back", "0" * 64)
    assert caught.value.remedy
    assert not (tmp_path / "back").exists()


def test_a_document_is_created_once(objects: Objects) -> None:
    tag = objects.create("models/a.json", b"first")
    with pytest.raises(KeyTaken):
        objects.create("models/a.json", b"second")
    assert objects.create("models/a.json", b"first") == tag
    document = objects.read("models/a.json")
    assert document is not None
    assert (document.content, document.tag) == (b"first", tag)


def test_last_reader_swaps_document(objects: Objects) -> None:
    """A document is swapped only by the one who read it last."""
    first = objects.create("models/a.json", b"first")
    second = objects.swap("models/a.json", b"second", first)
    with pytest.raises(Changed):
        objects.swap("models/a.json", b"third", first)
    assert objects.swap("models/a.json", b"third", second)
    document = objects.read("models/a.json")
    assert document is not None
    assert document.content == b"third"


def test_removed_document_not_swapped(objects: Objects) -> None:
    """A document that is gone is not swapped."""
    tag = objects.create("models/a.json", b"first")
    objects.remove(["models/a.json"])
    with pytest.raises(Changed):
        objects.swap("models/a.json", b"second", tag)
    assert objects.read("models/a.json") is None


def test_keys_listed_in_order_under_prefix(objects: Objects) -> None:
    """Keys are listed in order and below their prefix only."""
    for key in ("models/b.json", "models/a.json", "models-of-others/c.json", "live/a/x.json", "live/ab/x.json"):
        objects.put(key, b"{}")
    assert [item.key for item in objects.below("models/")] == ["models/a.json", "models/b.json"]
    assert [item.key for item in objects.below("live/a/")] == ["live/a/x.json"]
    assert len(list(objects.below(""))) == 5
    assert not list(objects.below("releases/"))


def test_removing_missing_object_no_error(objects: Objects) -> None:
    """Removing what is not there is no error."""
    objects.put("a", b"")
    objects.remove(["a", "b"])
    objects.remove([])
    assert not list(objects.below(""))


@pytest.mark.slow
def test_copy_has_new_age(objects: Objects, tmp_path: Path) -> None:
    """A copy has the same content and a new age."""
    path, sha256 = file_of(tmp_path, 6 << 20)
    objects.send(path, "objects/ab/content", sha256)
    objects.copy("objects/ab/content", "repository/m/1/model.onnx")
    assert objects.sha256("repository/m/1/model.onnx") == sha256
    before = objects.find("objects/ab/content")
    time.sleep(1.1)
    objects.copy("objects/ab/content", "objects/ab/content")
    after = objects.find("objects/ab/content")
    assert before is not None
    assert after is not None
    assert after.changed > before.changed
    assert objects.sha256("objects/ab/content") == sha256


def test_store_knows_time(objects: Objects) -> None:
    """The store knows what time it is."""
    assert abs(objects.now() - time.time()) < 5
