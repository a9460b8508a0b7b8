"""The running servers that have to load what is published, told all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from plansmith.errors import PlansmithError, in_one_line
from plansmith.triton.live import RunningTriton, ensembles_of


class LoadedInto:
    """Servers by their addresses, which read one repository.

    Args:
        addresses: such as grpc://127.0.0.1:8001.
        progress: told what is being done.
    """

    def __init__(self, addresses: Sequence[str], progress: Callable[[str], None] = lambda _: None) -> None:
        self._servers = [RunningTriton(address) for address in addresses]
        self._progress = progress
        self._taken: list[RunningTriton] = []

    def require_reachable(self) -> None:
        """See that all of them answer.

        Raises:
            EnvironmentFault: names the first that does not.
        """
        for server in self._servers:
            server.require_reachable()

    def take(self, folder: Path, version: int) -> None:
        """Have each server load a model's view, one after the other, and answer by a version.

        Raises:
            PlansmithError: of the first that does not; those after it were not asked.
        """
        for server in self._servers:
            self._progress(f"loading into {server.url}")
            try:
                server.load(folder, version=version)
            except PlansmithError:
                if _serves(server, folder.name, version):
                    self._taken.append(server)
                raise
            self._taken.append(server)

    def take_back(self, folder: Path) -> None:
        """Have each server that took the version go back to what is shown now, with the ensembles that it let go of.

        Raises:
            PlansmithError: one or more did not; all were asked.
        """
        failed: list[PlansmithError] = []
        for server in self._taken:
            try:
                if folder.is_dir():
                    server.load(folder)
                    for ensemble in ensembles_of(folder):
                        server.load(folder.parent / ensemble)
                else:
                    server.unload(folder.name)
            except PlansmithError as error:
                failed.append(error)
        if failed:
            first = failed[0]
            first.message = "; ".join(in_one_line(error.message) for error in failed)
            raise first


def _serves(server: RunningTriton, model: str, version: int) -> bool:
    try:
        return version in server.ready(model)
    except PlansmithError:
        return False  # it cannot be told to go back either
