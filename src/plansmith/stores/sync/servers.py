"""The running servers beside a mirror, each kept on what it shows: also one that went away and came back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plansmith.errors import EnvironmentFault, ServedCheckError, in_one_line
from plansmith.triton.server.control.live import LOAD_SECONDS, RunningTriton
from plansmith.triton.server.control.load_targets import go_back

_MOST_LOSSES = 2
_UNKNOWN = ""


@dataclass
class _Loader:
    """One server.

    Attributes:
        loaded: states of views, by model; `_UNKNOWN` where a load failed and may have changed something.
        losses: how often it went away over a model and state since it loaded that.
        away: why it cannot be asked now.
    """

    triton: RunningTriton
    loaded: dict[str, str] = field(default_factory=dict)
    losses: Counter[tuple[str, str]] = field(default_factory=Counter)
    away: EnvironmentFault | None = None


class MirrorServers:
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

    def __len__(self) -> int:
        return len(self._loaders)

    def away(self) -> list[EnvironmentFault]:
        """Why servers cannot be asked, one for each of those that cannot."""
        return [loader.away for loader in self._loaders if loader.away]

    def ask_again(self) -> None:
        """Ask those again that were away."""
        for loader in self._loaders:
            loader.away = None

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
            if loader.away is None:
                _keep(loader, folder, state, version)
        return len(self) - len(self.away())

    def take_back(self, folder: Path, state: str, version: int | None) -> None:
        """Have each server serve what a model's folder shows again, and the ensembles with it.

        Args:
            folder: the model's in the mirror; where it is not there any more, nothing of the model is served.
            state: of the view.
            version: what has to answer requests then.

        Raises:
            ServedCheckError: one or more refuse; all were asked.
        """
        refusals: list[ServedCheckError] = []
        for loader in self._loaders:
            if loader.away is None:
                try:
                    _take_back(loader, folder, state, version)
                except ServedCheckError as refusal:
                    refusals.append(refusal)
                except EnvironmentFault as fault:
                    _lose(loader, fault)
        if refusals:
            raise ServedCheckError(
                "; ".join(in_one_line(refusal.message) for refusal in refusals), remedy=refusals[0].remedy
            )

    def ready(self, model: str) -> list[int]:
        """The versions of a model that answer requests in any server, ascending."""
        found: set[int] = set()
        for loader in self._loaders:
            if loader.away is None:
                try:
                    found |= set(loader.triton.ready(model))
                except EnvironmentFault as fault:
                    _lose(loader, fault)
        return sorted(found)


def _keep(loader: _Loader, folder: Path, state: str, version: int | None) -> None:
    model, triton = folder.name, loader.triton
    is_asked = False
    try:
        if loader.loaded.get(model) == state and (version is None or version in triton.ready(model)):
            return
        is_asked = True
        triton.load(folder, version=version)
    except ServedCheckError:
        if triton.may_have_changed:
            loader.loaded[model] = _UNKNOWN
        raise
    except EnvironmentFault as fault:
        _lose(loader, fault)
        if is_asked and triton.may_have_changed:
            _count_loss(loader, model, state, fault)
    else:
        loader.loaded[model] = state
        del loader.losses[model, state]


def _take_back(loader: _Loader, folder: Path, state: str, version: int | None) -> None:
    model = folder.name
    ready = loader.triton.ready(model)
    if folder.is_dir():
        if loader.loaded.get(model) == state and (version is None or version in ready):
            return
    elif not ready and model not in loader.loaded:
        return
    loader.loaded.pop(model, None)
    go_back(loader.triton, folder, version=version)
    if folder.is_dir():
        loader.loaded[model] = state


def _count_loss(loader: _Loader, model: str, state: str, fault: EnvironmentFault) -> None:
    loader.losses[model, state] += 1
    losses = loader.losses[model, state]
    if losses >= _MOST_LOSSES:
        del loader.losses[model, state]
        raise ServedCheckError(
            f"Triton went away {losses} times while it loaded {model}: {in_one_line(fault.message)}",
            remedy="see its log: it may have run out of memory",
        ) from fault


def _lose(loader: _Loader, fault: EnvironmentFault) -> None:
    """Take note that a server cannot be asked: when it answers again, it may have loaded nothing."""
    loader.away = fault
    loader.loaded.clear()
