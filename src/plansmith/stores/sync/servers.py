"""Triton servers of a mirror, kept in sync with it, also after a server restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plansmith.errors import EnvironmentFault, ServedCheckError, in_one_line
from plansmith.triton.server.live import LOAD_SECONDS, RunningTriton, go_back

_MOST_LOSSES = 2
_UNKNOWN = ""


@dataclass
class _Loader:
    """Loader state of one server.

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
    """Triton servers, by address, that read one mirror.

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
        """Return the errors of the unreachable servers, one for each."""
        return [loader.away for loader in self._loaders if loader.away]

    def ask_again(self) -> None:
        """Retry the servers that were unreachable."""
        for loader in self._loaders:
            loader.away = None

    def keep(self, folder: Path, state: str, version: int | None) -> int:
        """Have each server load what a model's folder shows, unless it already does.

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
        """Have each server load again what a model's folder shows, and its ensembles.

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
        """Return the versions of a model that are ready in any server, ascending."""
        numbers: set[int] = set()
        for loader in self._loaders:
            if loader.away is None:
                try:
                    numbers |= set(loader.triton.ready(model))
                except EnvironmentFault as fault:
                    _lose(loader, fault)
        return sorted(numbers)


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
    """Record that a server is unreachable: when it responds again, it may have loaded nothing."""
    loader.away = fault
    loader.loaded.clear()
