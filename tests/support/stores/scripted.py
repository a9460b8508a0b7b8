"""A Triton in name: it refuses what a test says, is away when a test says so, and keeps the calls that it was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, ServedCheckError
from plansmith.stores.sync import servers


class ScriptedTriton:
    """What `RunningTriton` does for those who keep servers on a mirror.

    Attributes:
        refused: versions that it does not load, alone or beside others.
        lets_go: whether a load that it refuses costs it the ensembles of the model.
        is_away: whether it cannot be asked.
        dies: whether it goes away over the next load.
        served: versions by model.
        loads: what it was told to load, with the versions that were in the folder then; -1 is an unload.
    """

    may_have_changed = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.refused: set[int] = set()
        self.lets_go = self.is_away = self.dies = False
        self.served: dict[str, list[int]] = {}
        self.loads: list[tuple[str, list[int]]] = []

    def ready(self, model: str) -> list[int]:
        if self.is_away:
            raise EnvironmentFault(f"the Triton at {self.url} cannot be asked", remedy="start it")
        return self.served.get(model, [])

    def load(self, folder: Path, *, version: int | None = None) -> list[int]:
        self.may_have_changed = self.dies
        self.is_away = self.is_away or self.dies
        self.ready(folder.name)
        versions = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        self.loads.append((folder.name, versions))
        if not self.refused.isdisjoint(versions):
            self.may_have_changed = self.lets_go
            raise ServedCheckError(f"{self.url} does not load {versions}", remedy="correct it")
        self.may_have_changed = True
        self.served[folder.name] = versions
        assert version is None or version in versions
        return versions

    def unload(self, folder: Path) -> None:
        self.loads.append((folder.name, []))
        self.served.pop(folder.name, None)


@pytest.fixture
def tritons(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedTriton]:
    """Two servers in the place of real ones, at their addresses."""
    fakes = [ScriptedTriton("grpc://one"), ScriptedTriton("grpc://two")]
    by_url = {server.url: server for server in fakes}
    monkeypatch.setattr(servers, "RunningTriton", lambda url, **_: by_url[url])
    return fakes
