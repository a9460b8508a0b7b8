"""No file is hashed twice, and a file that changed is."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import pytest

from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import make_spec
from plansmith.errors import SourceError
from plansmith.records.model import FileEntry
from plansmith.steps.fetch import fetch, require_unchanged
from plansmith.steps.runner import Listener, StageRunner
from plansmith.system.digest import Digester, digest_of, digest_of_files

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def memo(tmp_path: Path) -> Path:
    return tmp_path / "memo" / "digests.sqlite"


def test_later_process_knows_digest(weights: Path, memo: Path) -> None:
    """A later process knows the digest without reading the file."""
    first, second = Digester(memo), Digester(memo)
    assert first.file(weights) == first.file(weights) == second.file(weights) == SHA256
    assert (first.hashed, second.hashed) == (1, 0)


def test_changed_file_hashed_again(weights: Path, memo: Path) -> None:
    """A changed file is hashed again."""
    digester = Digester(memo)
    digester.file(weights)
    weights.write_bytes(CONTENT + b"!")
    for again in (digester, Digester(memo)):
        assert again.file(weights) == hashlib.sha256(CONTENT + b"!").hexdigest()
    assert digester.hashed == 2


def test_hard_link_shares_digest(weights: Path, memo: Path) -> None:
    """A hard link costs one more reading, and then shares the answer."""
    Digester(memo).file(weights)
    link = weights.with_name("link.bin")
    link.hardlink_to(weights)
    digester = Digester(memo)
    assert digester.file(link) == Digester(memo).file(weights) == SHA256
    assert digester.hashed == 1
    again = Digester(memo)
    assert again.file(weights) == again.file(link) == SHA256
    assert again.hashed == 0


def test_own_link_needs_no_reading(weights: Path, memo: Path) -> None:
    """A link that the digester makes itself costs no reading; a file that was not read before is read."""
    digester = Digester(memo)
    digester.file(weights)
    digester.link(weights, weights.with_name("link.bin"))
    for again in (digester, Digester(memo)):
        assert again.file(weights) == again.file(weights.with_name("link.bin")) == SHA256
    assert digester.hashed == 1
    other = weights.with_name("other.bin")
    other.write_bytes(b"another")
    digester.link(other, weights.with_name("its link.bin"))
    assert digester.file(weights.with_name("its link.bin")) == hashlib.sha256(b"another").hexdigest()


def test_fresh_reading_on_request(weights: Path, memo: Path) -> None:
    """What another process has read is read afresh where that is asked for, and its link with it."""
    Digester(memo).file(weights)
    digester, link = Digester(memo), weights.with_name("link.bin")
    assert digester.file(weights) == digester.file(weights, afresh=True) == SHA256
    assert digester.hashed == 1
    digester.link(weights, link)
    assert digester.file(link, afresh=True) == SHA256
    assert digester.hashed == 1
    later, other = Digester(memo), weights.with_name("other.bin")
    later.link(link, other)
    assert later.file(other) == later.file(other, afresh=True) == SHA256
    assert later.hashed == 1


def test_copy_hashed_for_itself(weights: Path, memo: Path) -> None:
    """A copy is hashed for itself."""
    digester = Digester(memo)
    digester.file(weights)
    copy = weights.with_name("copy.bin")
    copy.write_bytes(CONTENT)
    assert digester.file(copy) == SHA256
    assert digester.hashed == 2


def test_read_only_digester_adds_nothing(weights: Path, memo: Path) -> None:
    """A read only digester uses the memo and adds nothing."""
    for hashed in (1, 1):
        looking = Digester(memo, read_only=True)
        assert looking.file(weights) == SHA256
        assert looking.hashed == hashed
        assert not memo.exists()
    Digester(memo).file(weights)
    looking = Digester(memo, read_only=True)
    looking.file(weights)
    assert looking.hashed == 0


def test_damaged_memo_remade_by_writers(weights: Path, memo: Path) -> None:
    """A damaged memo is made anew, but not by anyone who only looks."""
    Digester(memo).file(weights)
    memo.write_bytes(b"no database " * 1000)
    assert Digester(memo, read_only=True).file(weights) == SHA256
    assert memo.read_bytes().startswith(b"no database")
    first, second = Digester(memo), Digester(memo)
    assert first.file(weights) == second.file(weights) == SHA256
    assert (first.hashed, second.hashed) == (1, 0)


@pytest.mark.parametrize("unusable", ["a folder", "below a file", "/proc/nope/digests.sqlite"])
def test_unusable_memo_costs_time(unusable: str, weights: Path, tmp_path: Path) -> None:
    """An unusable memo only costs time."""
    memo = tmp_path / "memo"
    if unusable == "a folder":
        memo.mkdir()
    elif unusable == "below a file":
        memo = weights / "digests.sqlite"
    else:
        memo = Path(unusable)
    first, second = Digester(memo), Digester(memo)
    assert first.file(weights) == first.file(weights) == second.file(weights) == SHA256
    assert (first.hashed, second.hashed) == (1, 1)


def test_missing_file_is_error(tmp_path: Path, memo: Path) -> None:
    """A missing file is an error and not a digest."""
    with pytest.raises(FileNotFoundError):
        Digester(memo).file(tmp_path / "nope")


def test_folder_digest_ignores_other_facts() -> None:
    """The digest of a folder depends on names and contents only."""
    files = [FileEntry(path=name, bytes=1, sha256=name * 2) for name in ("a", "b")]
    swapped = [FileEntry(path=a.path, bytes=1, sha256=b.sha256) for a, b in zip(files, files[::-1], strict=True)]
    assert digest_of_files(files) == digest_of_files(files[::-1])
    assert digest_of_files(files) != digest_of_files(swapped)
    assert digest_of({"b": 1, "a": [2]}) == digest_of({"a": [2], "b": 1})


def test_folder_entries_are_sorted(tmp_path: Path, memo: Path) -> None:
    """The entries of a folder are all its files sorted."""
    for name in ("b", "inner/a", "inner/c"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(name)
    entries = Digester(memo).entries(tmp_path / "tree")
    assert [(e.path, e.bytes) for e in entries] == [("b", 1), ("inner/a", 7), ("inner/c", 7)]


@pytest.mark.parametrize("foreign", [False, True])
def test_disguised_copy_is_other_file(foreign: bool, tmp_path: Path) -> None:
    """A copy that keeps size and modification time is still another file."""
    weights, memo = tmp_path / "weights", tmp_path / "memo.sqlite"
    weights.write_bytes(b"one")
    before = weights.stat()
    first = Digester(memo).file(weights, foreign=foreign)
    while weights.stat().st_ctime_ns == before.st_ctime_ns:  # the file system's clock may be coarse
        weights.write_bytes(b"two")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_mtime_ns == before.st_mtime_ns
    assert Digester(memo).file(weights, foreign=foreign) != first


def test_changing_model_refused(tmp_path: Path) -> None:
    """A model that changed while it was read is refused."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "bert"}')
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    spec = make_spec({"source": f"hf:{model}"})
    stages = StageRunner("model", tmp_path / "artifacts", listener=Listener(), force=False, dry=False)
    source = fetch(stages, spec, parse_reference(spec.source, relative_to=tmp_path))
    assert source is not None
    require_unchanged(stages, spec, source)
    (model / "config.json").write_text('{"model_type": "bart"}')
    with pytest.raises(SourceError, match="changed while it was read"):
        require_unchanged(stages, spec, source)
