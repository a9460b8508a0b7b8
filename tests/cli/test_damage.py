"""A published version that was damaged afterwards is found by the next compile and replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .command import CommandLine
from .conftest import Compiled


def overwrite(path: Path, content: bytes) -> None:
    """Give a file other content without touching the files that it shares its content with."""
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["model/model.onnx", "config.pbtxt", "reference/max.npz"])
def test_a_damaged_release_is_replaced_by_a_new_version_and_leaves_the_view(
    file: str, finished: Compiled, run: CommandLine
) -> None:
    overwrite(finished.release / file, b"damaged")
    found = run(*finished.command, "--json").document
    assert (found["version"], found["unchanged"]) == (2, False)
    view = Path(found["repository"]) / "tiny"
    assert sorted(path.name for path in view.iterdir()) == ["2", "config.pbtxt"]
    assert run(*finished.command, "--json").document["unchanged"]


@pytest.mark.parametrize("file", ["1/model.onnx", "config.pbtxt"])
def test_a_damaged_view_is_made_again_from_the_release(file: str, finished: Compiled, run: CommandLine) -> None:
    view = finished.folder / "artifacts" / "repository" / "tiny"
    shutil.copyfile(view / file, finished.folder / "good")
    overwrite(view / file, b"damaged")
    found = run(*finished.command, "--json").document
    assert (found["version"], found["unchanged"]) == (1, True)
    assert (view / file).read_bytes() == (finished.folder / "good").read_bytes()
