"""The disk fills up as a step begins, for every step in turn: one message, nothing half-made, and it goes on later."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from plansmith.config.spec import make_spec
from plansmith.errors import RepositoryError
from plansmith.steps.compilation import Compilation, lower_model
from plansmith.steps.runner import Listener

from ..support.faults.cramped import Cramped, cramped_folder
from ..support.faults.wholeness import cache_problems, staging_problems
from ..support.precision import lint_graphs
from ..support.precision.given_files import lay_out

pytestmark = pytest.mark.slow

ROOM_BYTES = 64 * 1024 * 1024
# `lower` writes nothing in FP32.
WRITING_STEPS = ("fetch", "export", "compile", "validate", "package", "check_served", "publish")
# Those that no other process does.
OWN_STEPS = ("package", "publish")


class Disk:
    """A file system that can be filled; where none can be mounted, this process may write no more."""

    def __init__(self, cramped: Cramped) -> None:
        self.folder = cramped.folder
        self.is_mounted = cramped.largest_file is None
        self._filler = cramped.folder / "filler"

    def fill(self) -> None:
        if not self.is_mounted:
            self._limit(0)
            return
        with self._filler.open("ab", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(bytes(4096))

    def free(self) -> None:
        if self.is_mounted:
            self._filler.unlink(missing_ok=True)
        else:
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Filling(Listener):
    """Leaves no room on a disk from the moment at which a step begins."""

    def __init__(self, step: str, disk: Disk) -> None:
        self._step = step
        self._disk = disk

    def progress(self, step: str, text: str) -> None:
        """Fill the disk; a step that cleans up meanwhile gains nothing."""
        del text
        if step == self._step:
            self._disk.fill()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with cramped_folder(tmp_path / "disk", ROOM_BYTES) as folder:
        disk = Disk(folder)
        yield disk
        disk.free()


# Of a graph that is lowered; what else they write is seen below.
LOWERING_STEPS = ("sample", "lower")


def test_full_disk_stops_lowering(disk: Disk, tmp_path: Path) -> None:
    """A disk that is full while a graph is lowered stops it there, and room lets it go on."""
    if not disk.is_mounted:
        pytest.skip("the steps are another process's, and no file system can be mounted here")
    artifacts = disk.folder / "artifacts"
    settings = yaml.safe_load(lay_out(lint_graphs.attention(), tmp_path).read_text())
    spec = make_spec({**settings, "precision": "int8", "artifacts": str(artifacts)})
    for step in LOWERING_STEPS:
        with pytest.raises(RepositoryError, match="no space left on the file system of") as raised:
            lower_model(spec, tmp_path / "out", relative_to=tmp_path, listener=Filling(step, disk))
        disk.free()
        assert raised.value.step == step
        assert cache_problems(artifacts / "cache") == []
        assert staging_problems(artifacts / "cache" / "staging") == []
        assert not (tmp_path / "out").exists()
    assert lower_model(spec, tmp_path / "out", relative_to=tmp_path).lowered.precision == "int8"
    assert not list(tmp_path.glob(".plansmith-*"))


@pytest.mark.slow
def test_full_disk_stops_any_step(disk: Disk, tiny_bert: Path) -> None:
    """A disk that is full at any step stops it there, and room lets it go on."""
    artifacts = disk.folder / "artifacts"
    spec = make_spec({"source": f"hf:{tiny_bert}", "random_weights": True, "artifacts": str(artifacts)})
    for step in WRITING_STEPS if disk.is_mounted else OWN_STEPS:
        with (
            Compilation(spec, relative_to=tiny_bert, listener=Filling(step, disk)) as compilation,
            pytest.raises(RepositoryError, match="no space left on the file system of") as raised,
        ):
            compilation.run()
        disk.free()
        assert raised.value.step == step
        assert [record.name for record in compilation.steps][-1:] == _before(step)
        assert cache_problems(artifacts / "cache") == []
        assert staging_problems(artifacts / "cache" / "staging") == []
        assert staging_problems(artifacts / "repository.plansmith" / "staging") == []
        assert not list((artifacts / "repository").glob("*"))
    with Compilation(spec, relative_to=tiny_bert) as compilation:
        published, manifest = compilation.run()
    assert published.version == 1
    assert [record.name for record in manifest.steps if not record.cached] == []


def _before(step: str) -> list[str]:
    every = ["fetch", "export", "lower", "compile", "validate", "package", "check_served", "publish"]
    return every[: every.index(step)][-1:]
