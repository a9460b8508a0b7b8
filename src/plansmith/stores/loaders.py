"""The running servers beside a mirror, each kept on what it shows: also one that went away and came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plansmith.errors import EnvironmentFault, ServedCheckError, in_one_line
from plansmith.triton.live import LOAD_SECONDS, RunningTriton

_MOST_LOSSES = 2


@dataclass
class _Loader:
    """One server: the views that it loaded, by model, and why it cannot be asked now, if so."""

    triton: RunningTriton
    loaded: dict[str, str] = field(default_factory=dict)
    away: str = ""


class Loaders:
    """Servers by their addresses, which read one mirror.

    One that cannot be asked is passed over, and loads what the mirror shows once it answers again. A version that a
    server went away over twice while it loaded it counts as refused: the third time might take as long.

    Args:
        addresses: such as grpc://127.0.0.1:8001.
        load_seconds: how long each load may take.

    Raises:
        UsageError: one is no address.
        EnvironmentFault: the package tritonclient is missing.
    """

    def __init__(self, addresses: Sequence[str], *, load_seconds: float = LOAD_SECONDS) -> None:
        self._loaders = [_Loader(RunningTriton(address, load_seconds=load_seconds)) for address in addresses]
        self._losses: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._loaders)

    def away(self) -> list[str]:
        """Why servers cannot be asked, one text for each of those that cannot."""
        return [loader.away for loader in self._loaders if loader.away]

    def ask_again(self) -> None:
        """Ask those again that were away."""
        for loader in self._loaders:
            loader.away = ""

    def keep(self, folder: Path, state: str, version: int | None) -> int:
        """Have each server serve what a model's folder shows, where it does not.

        Args:
            folder: the model's in the mirror.
            state: of the view (`ModelViews.state`).
            version: what has to answer requests then; None where its policy has Triton serve none.

        Returns:
            How many do; the others are away.

        Raises:
            ServedCheckError: of the first that refuses; it and those after it serve on what they served before.
        """
        for loader in self._loaders:
            if not loader.away:
                self._keep(loader, folder, state, version)
        return len(self) - len(self.away())

    def ready(self, model: str) -> list[int]:
        """The versions of a model that answer requests in any server, ascending."""
        found: set[int] = set()
        for loader in self._loaders:
            if not loader.away:
                try:
                    found |= set(loader.triton.ready(model))
                except EnvironmentFault as fault:
                    _lose(loader, fault)
        return sorted(found)

    def _keep(self, loader: _Loader, folder: Path, state: str, version: int | None) -> None:
        model, triton = folder.name, loader.triton
        is_asked = False
        try:
            if loader.loaded.get(model) == state and (version is None or version in triton.ready(model)):
                return
            is_asked = True
            triton.load(folder, version=version)
        except ServedCheckError:
            if triton.may_have_changed:
                loader.loaded.pop(model, None)
            raise
        except EnvironmentFault as fault:
            _lose(loader, fault)
            if is_asked and triton.may_have_changed:
                self._count_loss(model, state, fault)
        else:
            loader.loaded[model] = state

    def _count_loss(self, model: str, state: str, fault: EnvironmentFault) -> None:
        losses = self._losses[model, state] = self._losses.get((model, state), 0) + 1
        if losses >= _MOST_LOSSES:
            del self._losses[model, state]
            raise ServedCheckError(
                f"Triton went away {losses} times while it loaded {model}: {in_one_line(fault.message)}",
                remedy="see its log: it may have run out of memory",
            ) from fault


def _lose(loader: _Loader, fault: EnvironmentFault) -> None:
    """Take note that a server cannot be asked: when it answers again, it may have loaded nothing."""
    loader.away = in_one_line(fault.message)
    loader.loaded.clear()
