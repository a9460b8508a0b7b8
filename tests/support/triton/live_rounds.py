"""Publications, sound and broken, told and followed, while eight clients ask without pause; what came of each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from plansmith.errors import ServedCheckError
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.live import ServerGroup

from .clients import Clients
from .followed import Followed
from .versions import BROKEN, MODEL, release


@dataclass
class Rounds:
    """Publishes one version after the other into a repository that a server follows.

    Args:
        root: the repository.
        folder: takes the files that versions are made of.
        server: reads the repository.
    """

    root: Path
    folder: Path
    server: Followed

    def __post_init__(self) -> None:
        self._repository = ModelRepository(self.root)
        self._kinds = itertools.cycle(BROKEN)
        self._ways = itertools.cycle(["http", "grpc"])
        self.serving = release(self._repository, self.folder).version if not self._repository.versions(MODEL) else 1

    def run(self, publications: int) -> Clients:
        """Publish so often; a half of them broken, in turn by each way."""
        steps = itertools.cycle([self.sound_told, self.broken_told, self.broken_followed, self.sound_followed])
        with Clients(self.server.http_url, self.server.grpc_url) as clients:
            clients.wait_for(self.serving)
            for step in itertools.islice(steps, publications):
                step()
                assert self.server.triton.ready(MODEL) == [self.serving]
                clients.wait_for(self.serving)
                assert clients.lost == clients.mixed == []
        return clients

    def sound_told(self) -> None:
        """A version that a server is told to load; the one that follows sees it, too."""
        self.serving = release(self._repository, self.folder, servers=self._servers()).version

    def broken_told(self) -> None:
        """A version that a server is told to load and refuses: reported, withdrawn, the one before shown again."""
        kind = next(self._kinds)
        with pytest.raises(ServedCheckError) as refused:
            release(self._repository, self.folder, broken=kind, servers=self._servers())
        number = self._repository.versions(MODEL)[-1]
        assert f"version {number} of {MODEL} was withdrawn" in refused.value.message
        if kind != "no configuration":  # of which the reason stands in Triton's log alone
            assert BROKEN[kind][2] in refused.value.message
        assert self._repository.views(MODEL).shown()[-1] == self.serving

    def broken_followed(self) -> None:
        """A version that was published without asking: the line has the reason, and the version before goes on."""
        kind = next(self._kinds)
        number = release(self._repository, self.folder, broken=kind).version
        line = self.server.line(rf"{MODEL}: .*{BROKEN[kind][2]}.*; version {self.serving} goes on")
        self._repository.withdraw(MODEL, number, line)

    def sound_followed(self) -> None:
        """A version that nobody is told of."""
        number = release(self._repository, self.folder).version
        self.server.line(f"{MODEL}: version {number} serves")
        self.serving = number

    def _servers(self) -> ServerGroup:
        way = next(self._ways)
        return ServerGroup([f"{way}://{getattr(self.server, f'{way}_url')}"])
