"""Packed models: unpacked where they are models, and refused where they might harm the machine that unpacks them."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, SourceError
from plansmith.sources.s3 import extract

from ...support.models.archives import bomb, graph_folder, hostile, member, packed, transformers_folder
from .conftest import Shelf


def unpacked(content: bytes, folder: Path) -> Path:
    """The folder that an archive's files are in."""
    (folder / "model.tar.gz").write_bytes(content)
    return extract(folder / "model.tar.gz", folder / "files", of="s3://b/model.tar.gz", progress=lambda *_: None)


@pytest.mark.parametrize("below", [".", "", "ranker"])
def test_packed_folder_equals_folder(below: str, shelf: Shelf) -> None:
    """A packed folder is the same model as the folder."""
    folder = transformers_folder(shelf.folder / "ranker")
    shelf.put("team/ranker.tar.gz", packed(folder, below=below))
    address = shelf.address("team/ranker.tar.gz")
    result, local = shelf.fetched(address), shelf.fetched(f"hf:{folder}")
    assert (result.record.scheme, result.record.address) == ("hf", address)
    assert result.record.digest == local.record.digest
    assert sorted(path.name for path in result.folder.iterdir() if not path.name.startswith("entry")) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_packed_graph_keeps_weights(shelf: Shelf) -> None:
    """A packed graph is brought with its weights."""
    shelf.put("net.tgz", packed(graph_folder(shelf.folder / "net")))
    result = shelf.fetched(shelf.address("net.tgz"))
    assert [path.name for path in result.files] == ["net.onnx", "weights.bin"]


def test_second_archive_fetch_asks_nothing(shelf: Shelf) -> None:
    """A second fetch of an archive asks for no content."""
    shelf.put("net.tar.gz", packed(graph_folder(shelf.folder / "net")))
    first = shelf.fetched(shelf.address("net.tar.gz"))
    again = shelf.fetched(f"{shelf.address('net.tar.gz')}@{first.record.revision}")
    assert again.cached
    assert [request.method for request in shelf.proxy.requests] == ["HEAD"]


def test_missing_archive_is_clear_error(shelf: Shelf) -> None:
    """An archive that is not there is one clear error."""
    with pytest.raises(SourceError, match=f"there is nothing at s3://{shelf.bucket}/net.tar.gz") as missing:
        shelf.fetched(shelf.address("net.tar.gz"))
    assert missing.value.remedy.endswith("net.tar.gz")


def test_packed_content_may_be_no_model(shelf: Shelf) -> None:
    """What is packed may be no model."""
    shelf.put("notes.tar.gz", hostile(member("notes.md")))
    with pytest.raises(SourceError, match="it holds neither"):
        shelf.fetched(shelf.address("notes.tar.gz"))
    assert not list((shelf.folder / "artifacts").rglob("notes.md"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    {
        "absolute": (member("/etc/passwd"), "leads out of its folder"),
        "upwards": (member("a/../../b"), "leads out of its folder"),
        "upwards at once": (member("../b"), "leads out of its folder"),
        "backslash": (member("a\\..\\b"), "leads out of its folder"),
        "line": (member("a\nb"), "leads out of its folder"),
        "link": (member("a", kind=tarfile.SYMTYPE, link="/etc/passwd"), "is a link"),
        "link inside": (member("a", kind=tarfile.SYMTYPE, link="config.json"), "is a link"),
        "hard link": (member("a", kind=tarfile.LNKTYPE, link="/etc/passwd"), "is a link"),
        "device": (member("a", kind=tarfile.CHRTYPE), "is a device"),
        "disk": (member("a", kind=tarfile.BLKTYPE), "is a device"),
        "pipe": (member("a", kind=tarfile.FIFOTYPE), "is a device"),
        "sparse": (member("a", kind=tarfile.GNUTYPE_SPARSE), "is a file of another kind"),
        "reversed text": (member("a\u202eb"), "leads out of its folder"),
        "twice": (member("config.json"), "is there twice"),
        "file as a folder": (member("config.json/a"), "is there twice"),
    }.values(),
)
def test_foreign_archive_entries_refused(wrong: tarfile.TarInfo, words: str, tmp_path: Path) -> None:
    """What no model consists of is refused."""
    with pytest.raises(SourceError, match=words) as refused:
        unpacked(hostile(member("config.json"), wrong), tmp_path)
    assert "do not use it if others made it" in refused.value.remedy
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "files", "model.tar.gz"]


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANSMITH_SOURCE_MAX_GB", "0.01")
    with pytest.raises(SourceError, match="20 MB of files, more than the 10 MB") as refused:
        unpacked(bomb(20_000_000), tmp_path)
    assert refused.value.remedy == "export PLANSMITH_SOURCE_MAX_GB=1 if it is to be that large"
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_greedy_header_gets_little_memory(kind: bytes, tmp_path: Path) -> None:
    """A header that wants all memory gets little."""
    content = bomb(200_000_000, kind=kind)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="it holds more than it may, beside its files"):
            unpacked(content, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_trailing_bytes_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows the files is bounded too."""
    monkeypatch.setenv("PLANSMITH_SOURCE_MAX_GB", "0.001")
    monkeypatch.setattr("plansmith.sources.s3.MOST_FILES", 10)
    good = gzip.decompress(hostile(member("config.json")))
    with pytest.raises(SourceError, match="it holds more than it may, beside its files"):
        unpacked(gzip.compress(good + bytes(20_000_000)), tmp_path)


def test_too_many_files_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than any model has are refused."""
    monkeypatch.setattr("plansmith.sources.s3.MOST_FILES", 3)
    folders = [member(f"folder-{number}", kind=tarfile.DIRTYPE) for number in range(4)]
    with pytest.raises(SourceError, match="has more than"):
        unpacked(hostile(*folders), tmp_path)


def test_full_disk_told_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room is told before it is full."""
    monkeypatch.setenv("PLANSMITH_SOURCE_MAX_GB", "1e12")
    head = tarfile.TarInfo("huge")
    head.size = 10**17
    with pytest.raises(EnvironmentFault, match="are free where the cache lies"):
        unpacked(gzip.compress(head.tobuf(tarfile.GNU_FORMAT)), tmp_path)


NO_ARCHIVES = {
    "empty": b"",
    "no gzip": b"PK\x03\x04" + bytes(600),
    "no tar": gzip.compress(b"x" * 2048),
    "of nothing": gzip.compress(bytes(10240)),
    "without files": hostile(member("folder", kind=tarfile.DIRTYPE)),
}


@pytest.mark.parametrize("content", NO_ARCHIVES.values(), ids=NO_ARCHIVES)
def test_non_archive_is_clear_error(content: bytes, tmp_path: Path) -> None:
    """What is no archive is one clear error."""
    with pytest.raises(SourceError, match=r"is no whole .tar.gz|holds no files") as refused:
        unpacked(content, tmp_path)
    assert "tar czf model.tar.gz -C FOLDER ." in refused.value.remedy


def test_damaged_archive_refused(tmp_path: Path) -> None:
    """An archive that was cut or damaged anywhere is refused."""
    noise = random.Random(0).randbytes(50_000)
    source = tmp_path / "model"
    source.mkdir()
    for name in ("config.json", "model.safetensors"):
        (source / name).write_bytes(noise)
    whole = packed(source)
    dice = random.Random(1)
    for number in range(40):
        at = dice.randrange(20, len(whole))
        flipped = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        (folder := tmp_path / str(number)).mkdir()
        with pytest.raises(SourceError):
            unpacked(flipped if number % 2 else whole[:at], folder)


def test_random_bytes_raise_nothing_else(tmp_path: Path) -> None:
    """An archive of made up bytes raises nothing else."""
    dice = random.Random(2)
    good = bytearray(gzip.decompress(hostile(member("config.json"), member("a/b", b"y" * 700), member("c"))))
    for number in range(200):
        changed = bytearray(good)
        for _ in range(dice.randrange(1, 5)):
            changed[dice.randrange(min(len(changed), 3000))] = dice.randrange(256)
        (folder := tmp_path / str(number)).mkdir()
        try:
            unpacked(gzip.compress(bytes(changed), 1), folder)
        except (SourceError, EnvironmentFault):
            continue


def test_dot_prefixed_names_accepted(tmp_path: Path) -> None:
    """Names that a producer writes below a dot are taken as they are."""
    root = unpacked(hostile(member("./config.json"), member("./1_Pooling/config.json")), tmp_path)
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*.json")) == [
        "1_Pooling/config.json",
        "config.json",
    ]
    assert io.BytesIO((root / "config.json").read_bytes()).read() == b"x"
