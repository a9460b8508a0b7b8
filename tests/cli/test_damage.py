"""What was damaged afterwards, a published version or a cache entry, is found by the next compile and replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ..support.cli.command import CommandLine
from .conftest import Compiled

pytestmark = pytest.mark.slow


def overwrite(path: Path, content: bytes) -> None:
    """Give a file other content without touching the files that it shares its content with."""
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["model/model.onnx", "config.pbtxt", "reference/max.npz"])
def test_damaged_release_is_replaced(file: str, finished: Compiled, run: CommandLine) -> None:
    """A damaged release is replaced by a new version and leaves the view."""
    overwrite(finished.release / file, b"damaged")
    result = run(*finished.command, "--json").document
    assert (result["version"], result["unchanged"]) == (2, False)
    view = Path(result["repository"]) / "tiny"
    assert sorted(path.name for path in view.iterdir()) == ["2", "config.pbtxt"]
    assert run(*finished.command, "--json").document["unchanged"]


@pytest.mark.parametrize("file", ["1/model.onnx", "config.pbtxt"])
def test_damaged_view_is_remade(file: str, finished: Compiled, run: CommandLine) -> None:
    """A damaged view is made again from the release."""
    view = finished.folder / "artifacts" / "repository" / "tiny"
    shutil.copyfile(view / file, finished.folder / "good")
    overwrite(view / file, b"damaged")
    result = run(*finished.command, "--json").document
    assert (result["version"], result["unchanged"]) == (1, True)
    assert (view / file).read_bytes() == (finished.folder / "good").read_bytes()


def truncate(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size // 2)


def flip_a_bit_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(before.st_size // 2)
        (byte,) = stream.read(1)
        stream.seek(before.st_size // 2)
        stream.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("damage", [truncate, flip_a_bit_and_set_the_time_back])
def test_damaged_shared_entry_is_remade(damage: Callable[[Path], None], finished: Compiled, run: CommandLine) -> None:
    """A damaged cache entry that a release shares is told and both are made again."""
    (engine,) = finished.folder.glob("artifacts/cache/compile/*/model.onnx")
    released = finished.release / "model" / "model.onnx"
    whole = engine.read_bytes()
    for path in (released, finished.folder / "artifacts" / "repository" / "tiny" / "1" / "model.onnx"):
        path.unlink()
        path.hardlink_to(engine)  # as a compile leaves them; the copy for this test has lost it
    assert run(*finished.command, "--json").document["unchanged"]
    engine.chmod(0o644)
    damage(engine)
    answer = run(*finished.command, "--json")
    message = f"plansmith: cache entry compile/{engine.parent.name[:12]} is damaged (model.onnx): building it again"
    assert message in answer.stderr.splitlines()
    assert (answer.document["version"], answer.document["unchanged"]) == (2, False)
    assert engine.read_bytes() == (finished.release.with_name("2") / "model" / "model.onnx").read_bytes() == whole
    view = finished.folder / "artifacts" / "repository" / "tiny"
    assert sorted(path.name for path in view.iterdir()) == ["2", "config.pbtxt"]
    assert run("validate", "tiny@2").status == 0
