"""A disk that is full or cannot be written: one message, exit code 7, nothing left behind."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from plansmith.errors import EngineError, ExportError, GateError, RepositoryError
from plansmith.steps.runner import Listener, StageRunner
from plansmith.system.files import storage_errors
from plansmith.system.tasks import Nothing
from plansmith.triton.repository.repository import ModelRepository

from ..support.faults.compiles import start_compile
from ..support.faults.cramped import Cramped
from ..support.faults.packages import MODEL, draft_of, publish, write_package
from ..support.faults.wholeness import release_numbers, repository_problems, shown_versions, staging_problems, store_of

TOO_MUCH = "x" * 200_000


def test_full_disk_keeps_old_version(cramped: Cramped, tmp_path: Path) -> None:
    """A version that finds no room leaves the old one serving and its number free."""
    root = cramped.folder / "repository"
    old, new = (write_package(tmp_path / name, name) for name in ("old", "new"))
    publish(root, old, draft_of(old))
    with cramped.limited(), pytest.raises(RepositoryError, match=r"no space left on the file system of .*/repository"):
        ModelRepository(root).publish(
            draft_of(new), {}, {"build.log": TOO_MUCH}, allow_interface_change=False, force=False
        )
    assert repository_problems(root) + staging_problems(store_of(root) / "staging") == []
    assert release_numbers(root, MODEL) == shown_versions(root, MODEL) == (1,)
    assert publish(root, new, draft_of(new)).version == 2


def test_full_disk_step_leaves_nothing(cramped: Cramped) -> None:
    """A step that finds no room leaves no entry."""

    def build(out: Path) -> Nothing:
        (out / "model.onnx").write_text(TOO_MUCH)
        return Nothing()

    artifacts = cramped.folder / "artifacts"
    runner = StageRunner("tiny", artifacts, listener=Listener(), force=False, dry=False)
    with cramped.limited(), pytest.raises(RepositoryError, match="no space left"):
        runner.entry("package", [], {}, build)
    assert staging_problems(artifacts / "cache" / "staging") == []
    assert not (artifacts / "cache" / "package").exists()


@pytest.mark.slow
def test_full_disk_compile_ends_with_7(cramped: Cramped, tiny_bert: Path) -> None:
    """A compile that finds no room ends with 7 and leaves nothing."""
    artifacts = cramped.folder / "artifacts"
    with cramped.limited():
        message = _refusal(start_compile(tiny_bert, artifacts))
    assert message.count("no space left on the file system of") == 1
    assert staging_problems(artifacts / "cache" / "staging") == []
    assert list((artifacts / "cache").rglob("entry.json")) == []


@pytest.mark.parametrize("place", ["below a file", "a file", "/proc/nope", "/sys/nope"])
def test_unwritable_repository_is_one_message(place: str, tmp_path: Path) -> None:
    """A repository that cannot be written to is one message."""
    root, package = _unwritable(place, tmp_path), write_package(tmp_path / "package", "new")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RepositoryError, match=f"cannot write to {root}: ") as raised:
        publish(root, package, draft_of(package))
    assert len(str(raised.value).splitlines()) == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["below a file", "a file", "/proc/nope", "/sys/nope"])
def test_unwritable_artifacts_end_with_7(place: str, tmp_path: Path, tiny_bert: Path) -> None:
    """Artifacts that cannot be written to end a compile with 7."""
    artifacts = _unwritable(place, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert f"cannot write to {artifacts}" in _refusal(start_compile(tiny_bert, artifacts))
    assert sorted(tmp_path.rglob("*")) == before


def test_repository_below_file_refused_early(tmp_path: Path, tiny_bert: Path) -> None:
    """A repository below a file ends a compile before any work."""
    root = tiny_bert / "config.json" / "repository"
    message = _refusal(start_compile(tiny_bert, tmp_path / "artifacts", "--repository", root))
    assert f"cannot write to {root}" in message
    assert not (tmp_path / "artifacts").exists()


def test_split_file_systems_refused(memory_folder: Path, tmp_path: Path) -> None:
    """A repository on another file system than its releases is refused."""
    root, package = tmp_path / "repository", write_package(tmp_path / "package", "new")
    store_of(root).symlink_to(memory_folder)
    with pytest.raises(RepositoryError, match="a file system of its own"):
        publish(root, package, draft_of(package))
    assert not (memory_folder / "releases").exists()


@pytest.mark.parametrize(
    "told",
    [
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        ExportError("neither exporter gave a graph:\n  torchscript: OSError: [Errno 28] No space left on device"),
    ],
)
def test_foreign_full_disk_words_recognised(told: Exception, tmp_path: Path) -> None:
    """A full disk is recognised in the words of other libraries."""
    with pytest.raises(RepositoryError, match="no space left on the file system"), storage_errors(tmp_path):
        raise told


def test_wordless_error_means_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error without a word of the full disk is told as the full disk."""
    full = os.statvfs_result((4096, 4096, 1000, 300, 3, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(RepositoryError) as raised, storage_errors(tmp_path / "not" / "yet"):
        raise EngineError("Protobuf serialization failed")
    assert raised.value.message == f"no space left on the file system of {tmp_path / 'not' / 'yet'}"


@pytest.mark.parametrize("told", [GateError("it differs"), ZeroDivisionError(), RepositoryError("other inputs")])
def test_unrelated_error_passes_through(told: Exception, tmp_path: Path) -> None:
    """An error that has nothing to do with the disk passes through."""
    with pytest.raises(type(told)) as raised, storage_errors(tmp_path):
        raise told
    assert raised.value is told


def _unwritable(place: str, tmp_path: Path) -> Path:
    if place.startswith("/"):
        return Path(place)
    file = tmp_path / "file"
    file.write_text("")
    return file / "artifacts" if place == "below a file" else file


def _refusal(process: subprocess.Popen[str]) -> str:
    """What a compile says that ends because of its repository or cache."""
    message = process.communicate()[1]
    assert process.returncode == RepositoryError.exit_code, message
    assert "Traceback" not in message
    return message
