"""The running servers that have to load what is published, told all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from plansmith.errors import PlansmithError, in_one_line
from plansmith.triton.repository.ensembles import askers_of
from plansmith.triton.server.control.live import LOAD_SECONDS, RunningTriton


class ServerGroup:
    """Servers by their addresses, which read one repository.

    Args:
        addresses: such as grpc://127.0.0.1:8001.
        progress: told what is being done.
        load_seconds: how long each load may take.
        serves: whether Triton serves a version at all; none is told to load one that it does not.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        progress: Callable[[str], None] = lambda _: None,
        *,
        load_seconds: float = LOAD_SECONDS,
        serves: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._servers = [RunningTriton(address, load_seconds=load_seconds) for address in addresses]
        self._serves = serves
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
        for server in self._servers if self._serves(version) else ():
            self._progress(f"loading into {server.url}")
            try:
                server.load(folder, version=version)
            finally:
                if server.may_have_changed:
                    self._taken.append(server)

    def take_back(self, folder: Path) -> None:
        """Have each server that may have taken the version go back to what is shown now, and what asks it.

        Raises:
            PlansmithError: one or more did not, and may serve the version; all were asked.
        """
        failed: list[PlansmithError] = []
        for server in self._taken:
            self._progress(f"going back in {server.url}")
            try:
                go_back(server, folder)
            except PlansmithError as error:
                failed.append(error)
        if failed:
            first = failed[0]
            first.message = "; ".join(
                f"{in_one_line(error.message)}; it may serve what was withdrawn" for error in failed
            )
            raise first


def go_back(server: RunningTriton, folder: Path, *, version: int | None = None) -> None:
    """Have a server serve what a model's folder shows again, and what asks it; nothing where there is none.

    Args:
        server: may serve something else.
        folder: the model's.
        version: what has to answer requests then.

    Raises:
        ServedCheckError: it refuses.
        EnvironmentFault: it cannot be asked.
    """
    if not folder.is_dir():
        server.unload(folder)
        return
    server.load(folder, version=version)
    for asker in askers_of(folder):
        server.load(folder.parent / asker)
