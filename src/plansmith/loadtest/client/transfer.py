"""Encoded requests on their way to a client process on another machine, which requests them piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.loadtest.payloads.encoding import PAYLOAD_FILES
from plansmith.loadtest.target import LoadTarget

if TYPE_CHECKING:
    from gevent.queue import Queue

_PIECE_BYTES = 2**20


def payload_sizes(target: LoadTarget) -> list[dict[str, int]]:
    """The bytes of the files of each model's payloads, by name."""
    return [{name: (Path(model.payloads) / name).stat().st_size for name in PAYLOAD_FILES} for model in target.models]


def read_piece(target: LoadTarget, request: Mapping[str, Any]) -> dict[str, Any]:
    """The piece that a client requests, as a command to it.

    Raises:
        ValueError: no such file; a client reads nothing else of this machine.
    """
    name, model = request["file"], request["model"]
    if name not in PAYLOAD_FILES or model not in range(len(target.models)):
        raise ValueError(f"model {model!r} has no file {name!r}")
    with (Path(target.models[model].payloads) / name).open("rb") as stream:
        stream.seek(request["at"])
        return {"command": "piece", "data": stream.read(_PIECE_BYTES)}


class PayloadReceiver:
    """The client's side of the transfer.

    Args:
        emit: sends a request for a piece.
        folder: takes the files.
    """

    def __init__(self, emit: Callable[[dict[str, Any]], None], folder: Path) -> None:
        from gevent.queue import Queue

        self._emit = emit
        self._folder = folder
        self._pieces: Queue[bytes] = Queue()

    def receive(self, data: bytes) -> None:
        """A piece came."""
        self._pieces.put(data)

    def fetch(self, target: LoadTarget, sizes: list[dict[str, int]]) -> LoadTarget:
        """The target with its payloads on this machine, once all of them are there."""
        models = []
        for number, (model, files) in enumerate(zip(target.models, sizes, strict=True)):
            folder = self._folder / str(number)
            folder.mkdir(parents=True)
            for name in PAYLOAD_FILES:
                self._fetch_file(folder / name, number, files[name])
            models.append(model.model_copy(update={"payloads": str(folder)}))
        return target.model_copy(update={"models": tuple(models)})

    def _fetch_file(self, path: Path, model: int, size: int) -> None:
        with path.open("wb") as stream:
            while stream.tell() < size:
                self._emit({"event": "fetch", "model": model, "file": path.name, "at": stream.tell()})
                stream.write(self._pieces.get())
