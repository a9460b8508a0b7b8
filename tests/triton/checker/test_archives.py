"""Archives are unpacked as they are, and nothing in them reaches out of the folder or fills the machine."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from plansmith.errors import RepositoryError
from plansmith.triton.checker import archive as archives
from plansmith.triton.checker.archive import unpacked
from plansmith.triton.checker.checker import check_repository

Entry = tuple[str, bytes | None, dict[str, Any]]


def archive(folder: Path, *entries: Entry, name: str = "model.tar.gz") -> Path:
    """An archive of entries: name, content, and what else its header says; no content for what is no file."""
    path = folder / name
    mode: Literal["w:gz", "w"] = "w:gz" if name.endswith("gz") else "w"
    with tarfile.open(path, mode) as tar:
        for place, content, facts in entries:
            info = tarfile.TarInfo(place)
            info.size = len(content or b"")
            for key, value in facts.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content) if content is not None else None)
    return path


def file(name: str, content: bytes = b"x") -> Entry:
    return name, content, {}


def link(name: str, target: str) -> Entry:
    return name, None, {"type": tarfile.SYMTYPE, "linkname": target}


def again(name: str, target: str) -> Entry:
    return name, None, {"type": tarfile.LNKTYPE, "linkname": target}


@pytest.mark.parametrize("name", ["model.tar.gz", "model.tgz", "model.tar"])
def test_unpacked_repository_gone_afterwards(name: str, tmp_path: Path) -> None:
    """A repository is unpacked and gone afterwards."""
    path = archive(tmp_path, file("./m/config.pbtxt", b"text"), file("m/1/model.onnx"), name=name)
    with unpacked(path) as folder:
        assert (folder / "m" / "config.pbtxt").read_bytes() == b"text"
        assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
            "m/1/model.onnx",
            "m/config.pbtxt",
        ]
    assert not folder.exists()


def test_tool_archive_round_trips(tmp_path: Path) -> None:
    """Files that share their bytes are links in the archive; empty folders stay."""
    (tmp_path / "r" / "m" / "1").mkdir(parents=True)
    (tmp_path / "r" / "m" / "2").mkdir()
    (tmp_path / "r" / "m" / "3").mkdir()
    (tmp_path / "r" / "m" / "1" / "model.onnx").write_bytes(b"weights" * 1000)
    os.link(tmp_path / "r" / "m" / "1" / "model.onnx", tmp_path / "r" / "m" / "2" / "model.onnx")
    (tmp_path / "r" / "m" / "link").symlink_to("1/model.onnx")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "r", ".")
    with unpacked(tmp_path / "model.tar.gz") as folder:
        for name in ("1/model.onnx", "2/model.onnx", "link"):
            assert (folder / "m" / name).read_bytes() == b"weights" * 1000
        assert (folder / "m" / "3").is_dir()


ESCAPES: dict[str, tuple[Entry, ...]] = {
    "an absolute path": (file("/tmp/plansmith-escaped"),),
    "a path that leads out": (file("m/../../plansmith-escaped"),),
    "a link to elsewhere": (link("m", "/etc"),),
    "a link that leads out": (link("m/1", "../../.."),),
    "a file through a link": (link("m", "/tmp"), file("m/plansmith-escaped")),
    "a link through a link": (link("m/p", "."), link("m/q", "p/../../.."), file("n/config.pbtxt")),
    "a link that leads out once another is made": (link("a", "p/../q"), link("p", "."), file("x")),
    "a folder through links": (link("a", "p/../q"), link("p", "."), link("a/x/y", "z")),
    "one more name of a file elsewhere": (again("m/passwd", "/etc/passwd"),),
    "one more name of a file outside": (again("m/passwd", "../../../etc/passwd"),),
    "one more name of what is not there": (again("m/model.onnx", "n/model.onnx"),),
    "a device": (("m/null", None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),),
    "a pipe": (("m/pipe", None, {"type": tarfile.FIFOTYPE}),),
    "a file that is a folder, too": (file("m"), file("m/config.pbtxt")),
    "a folder that is a file, too": (file("m/config.pbtxt"), file("m")),
    "a link that is a file, too": (file("m/config.pbtxt"), link("m/config.pbtxt", "other")),
}


@pytest.mark.parametrize("entries", ESCAPES.values(), ids=ESCAPES.keys())
def test_foreign_entries_refused_without_trace(entries: tuple[Entry, ...], tmp_path: Path) -> None:
    """What no repository has is refused, and nothing is left."""
    place = tmp_path / "in" / "here"
    place.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    path = archive(tmp_path, file("ok/config.pbtxt"), *entries)
    with pytest.raises(RepositoryError, match="is not unpacked") as refused, unpacked(path, place):
        pytest.fail("it was unpacked")
    assert refused.value.remedy
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path])
    assert not Path("/tmp/plansmith-escaped").exists()


def test_exploding_archive_refused_early(tmp_path: Path) -> None:
    """An archive that unpacks to much more is refused before it fills the disk."""
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb") as out:
        info = tarfile.TarInfo("m/1/model.onnx")
        info.size = 8 * 2**30
        out.write(info.tobuf())
        out.write(bytes(2**20))
    with pytest.raises(RepositoryError, match=r"unpacks to more than 64\.0 MiB"), unpacked(path):
        pytest.fail("it was unpacked")


def test_circular_links_lead_to_nothing(tmp_path: Path) -> None:
    """Links that lead in a circle are what leads to nothing."""
    entries = (file("m/config.pbtxt"), link("m/a", "a"), link("m/b", "c"), link("m/c", "b"))
    with unpacked(archive(tmp_path, *entries)) as folder:
        places = {finding.place for finding in check_repository(folder) if finding.rule == "layout.dangling-link"}
    assert places == {"m/a", "m/b", "m/c"}


@pytest.mark.parametrize(("total", "kept"), [(2**40, 2**30), (10 * 2**20, 2**20)], ids=["large", "small"])
def test_disk_filling_file_refused_early(
    total: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that would fill the disk is refused before it is written."""
    path = archive(tmp_path, file("m/1/model.onnx", bytes(2**20)))
    usage = shutil.disk_usage(tmp_path)
    for left, fits in ((2**20, True), (2**20 - 1, False)):
        disk = usage._replace(total=total, free=kept + left)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, disk=disk: disk)
        if fits:
            with unpacked(path) as folder:
                assert (folder / "m/1/model.onnx").stat().st_size == 2**20
        else:
            with pytest.raises(RepositoryError, match="does not fit"), unpacked(path):
                pytest.fail("it was unpacked")


def test_too_many_entries_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More entries than any repository has are refused."""
    monkeypatch.setattr(archives, "MOST_ENTRIES", 50)
    path = archive(tmp_path, *(file(f"m/{number}") for number in range(51)))
    with pytest.raises(RepositoryError, match="more than 50 entries"), unpacked(path):
        pytest.fail("it was unpacked")
    with unpacked(archive(tmp_path, *(file(f"m/{number}") for number in range(50)))) as folder:
        assert len([*folder.glob("m/*")]) == 50


def test_memory_filling_name_refused(tmp_path: Path) -> None:
    """A name that fills the memory is refused."""
    path = tmp_path / "long.tar.gz"
    with gzip.open(path, "wb") as out:
        info = tarfile.TarInfo("long")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**32
        out.write(info.tobuf() + bytes(4096))
    with pytest.raises(RepositoryError, match=r"no whole archive: a header of 4,294,967,296 bytes"), unpacked(path):
        pytest.fail("it was unpacked")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _text(path: Path) -> None:
    path.write_text("no archive at all")


def _nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [_cut, _text, _nothing])
@pytest.mark.parametrize("name", ["model.tar.gz", "model.tar"])
def test_incomplete_archive_told(spoil: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    """What is no whole archive is told as such."""
    path = archive(tmp_path, file("m/config.pbtxt", os.urandom(5000)), name=name)
    spoil(path)
    with pytest.raises(RepositoryError, match="no whole archive") as refused, unpacked(path):
        pytest.fail("it was unpacked")
    assert "tar -C" in refused.value.remedy


def test_missing_archive_named(tmp_path: Path) -> None:
    """An archive that is not there is named."""
    with pytest.raises(RepositoryError, match=r"cannot unpack .*gone") as refused, unpacked(tmp_path / "gone.tar.gz"):
        pytest.fail("it was unpacked")
    assert refused.value.remedy
