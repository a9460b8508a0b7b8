"""Archives have the same bytes wherever they are made, and any tar reads them."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.sagemaker.archives import archive_size, archive_stream
from plansmith.triton.repository.renamed import Content

LONG = "model/" + "a-long-name" * 20


def entries(folder: Path) -> dict[str, Content]:
    """Two small files, one larger than a block of deflate, one with a name that ustar cannot hold, one of no bytes."""
    contents = {
        "b/config.pbtxt": b"b",
        "a/1/weights": os.urandom(200_000),
        LONG: b"long",
        "a/1/empty": b"",
        "a.b/x": b"x",
    }
    by_name = {}
    for number, (name, content) in enumerate(contents.items()):
        (folder / str(number)).write_bytes(content)
        by_name[name] = Content(folder / str(number), len(content), hashlib.sha256(content).hexdigest())
    return by_name


def test_entries_sorted_with_fixed_metadata(tmp_path: Path) -> None:
    """Entries are sorted, with one time, owner and mode."""
    contents = entries(tmp_path)
    data = b"".join(archive_stream(contents, frozenset({"c/2"})))
    assert len(data) == archive_size(contents, frozenset({"c/2"}))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        members = archive.getmembers()
        by_name = {member.name: archive.extractfile(member).read() for member in members if member.isfile()}  # type: ignore[union-attr]
    assert by_name == {name: content.source.read_bytes() for name, content in contents.items()}  # type: ignore[union-attr]
    assert [member.name for member in members] == [
        *("a", "a/1", "a/1/empty", "a/1/weights", "a.b", "a.b/x", "b", "b/config.pbtxt", "c", "c/2", "model", LONG)
    ]
    assert {(member.mtime, member.uid, member.gid, member.uname, member.gname) for member in members} == {
        (315532800, 0, 0, "", "")
    }
    assert {member.mode for member in members if member.isfile()} == {0o644}
    assert {member.mode for member in members if member.isdir()} == {0o755}


def test_tar_unpacks_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    contents = entries(tmp_path / "in")
    (tmp_path / "model.tar.gz").write_bytes(b"".join(archive_stream(contents)))
    done = subprocess.run(
        ["tar", "-C", tmp_path / "out", "-xzf", tmp_path / "model.tar.gz"], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert (tmp_path / "out" / "a" / "1" / "weights").read_bytes() == (tmp_path / "in" / "1").read_bytes()


def test_bytes_of_a_known_archive() -> None:
    """A change of these bytes gives all archives other names, and has to be meant."""
    data = b"".join(
        archive_stream({"m/config.pbtxt": Content.of(b'backend: "python"\n'), "m/1/x": Content.of(b"x" * 70_000)})
    )
    assert hashlib.sha256(data).hexdigest() == "9ba07100286b81945fcf2dd31306cb9c3ee0d20e2549caae3ae141ad3ff60ee6"
    assert data[:10] == bytes.fromhex("1f8b08000000000000ff")


@pytest.mark.parametrize("size", [0, 1, 0xFFFF - 1536, 0xFFFF, 3 * 0xFFFF, 2**20, 2**20 + 1])
def test_size_is_known_before(size: int) -> None:
    contents = {"m": Content.of(b"\x07" * size)}
    data = b"".join(archive_stream(contents))
    assert len(data) == archive_size(contents)
    assert gzip.decompress(data).count(b"\x07") >= size
    engine = zlib.decompressobj(31)
    engine.decompress(data)
    assert engine.eof
    assert engine.unused_data == b""


def test_file_of_9_gib(tmp_path: Path) -> None:
    """9 GiB, of which the first pieces are read."""
    size = 9 * 2**30
    with (tmp_path / "weights").open("wb") as stream:
        stream.truncate(size)
    contents = {"m/1/weights": Content(tmp_path / "weights", size, "")}
    first = b"".join(itertools.islice(archive_stream(contents), 4))
    with tarfile.open(fileobj=io.BytesIO(zlib.decompressobj(31).decompress(first)), mode="r|") as archive:
        assert [(member.name, member.size) for member in itertools.islice(archive, 3)][-1] == ("m/1/weights", size)
    assert archive_size(contents) > size


@pytest.mark.parametrize("change", [b"other", b"shorter"[:3], b"much longer than it was"])
def test_changed_file_is_refused(change: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"right")
    contents = {"m/weights": Content(tmp_path / "weights", 5, hashlib.sha256(b"right").hexdigest())}
    (tmp_path / "weights").write_bytes(change)
    with pytest.raises(RepositoryError, match="weights is damaged"):
        list(archive_stream(contents))


def test_progress_adds_up(tmp_path: Path) -> None:
    contents, progress = entries(tmp_path), list[int]()
    list(archive_stream(contents, progress=progress.append))
    assert sum(progress) == sum(content.size for content in contents.values())
