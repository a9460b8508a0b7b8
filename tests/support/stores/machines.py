"""Machines that share what they compile: each with artifacts of its own, and one step that it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plansmith.records.destination import Location
from plansmith.records.model import Record
from plansmith.records.release import StepRecord
from plansmith.steps.cache.local import CacheEntry
from plansmith.steps.cache.shared import SharedCache, SharedPlace
from plansmith.steps.runner import Listener, StageRunner

STEP = "package"
FILES = {"model/model.onnx": b"weights" * 1000, "config.pbtxt": b"name: 'tiny'", "model/labels.txt": b""}


class RecordingListener(Listener):
    """Keeps what it is told; `when_waiting` is called when a machine waits for another."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.waits: list[str] = []
        self.doing: list[str] = []
        self.when_waiting: Callable[[], object] = lambda: None

    def progress(self, step: str, text: str) -> None:
        assert step in {"", STEP}
        self.doing.append(text)

    def waiting(self, step: str, text: str) -> None:
        assert step == ""
        self.waits.append(text)
        self.when_waiting()

    def finished(self, record: StepRecord) -> None:
        raise AssertionError(record)

    def notice(self, text: str) -> None:
        self.notices.append(text)


class SampleRecord(Record):
    """What is stored beside the files: values of several kinds."""

    verdict: str = "passed"
    seconds: float = 0.1
    of: tuple[int | bool | None, ...] = (1, None, True)


class Machine:
    """A process that needs an entry, with a cache of its own and one that it shares.

    Args:
        artifacts: its own.
        place: what it shares; nothing when None.
        files: what a build makes, by name.
        dry: it looks only.
        ahead: it is dry, and a run follows.
        force: it builds in any case.
    """

    def __init__(
        self,
        artifacts: Path,
        place: Location | None,
        *,
        files: dict[str, bytes] = FILES,
        dry: bool = False,
        ahead: bool = False,
        force: bool = False,
    ) -> None:
        self.built = 0
        self.listener = RecordingListener()
        self.during: Callable[[], object] = lambda: None
        self._files = files
        shared = None
        if place is not None:
            shared = SharedCache(
                SharedPlace(place, Path.cwd(), self.listener.notice, only_looks=dry), self.listener.moving
            )
        self.shared = shared
        self.runner = StageRunner(
            "tiny", artifacts, listener=self.listener, force=force, dry=dry or ahead, digester=None, shared=shared
        )

    def entry(self, option: int = 1) -> CacheEntry:
        """Take the entry from a cache, or build it."""
        before = self.built
        result = self.look(option)
        assert result is not None
        entry, cached = result
        assert cached == (self.built == before)
        assert {file.path: (entry.folder / file.path).read_bytes() for file in entry.files} == self._files
        return entry

    def look(self, option: int = 1) -> tuple[CacheEntry, bool] | None:
        """Take the entry from a cache, or build it; None where it only looks and finds none."""
        return self.runner.entry(STEP, ["input"], {"option": option}, self._build)

    def close(self) -> list[str]:
        """End it; what it was told of."""
        self.runner.close()
        return self.listener.notices

    def _build(self, out: Path) -> SampleRecord:
        self.built += 1
        for name, content in self._files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content)
        self.during()
        return SampleRecord()
