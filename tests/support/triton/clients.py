"""Clients that ask a model of `versions` without pause, over HTTP and gRPC, and note what they are answered."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

import numpy as np

from .versions import MODEL

_DEADLINE_SECONDS = 90


class Clients:
    """Threads that ask, half of them over HTTP and half over gRPC, for as long as the block lasts.

    Args:
        http_url: host and port.
        grpc_url: host and port.
        count: how many.
        model: whom they ask.

    Attributes:
        answered: how many requests each version answered.
        lost: what was said to requests that were not answered.
        torn: answers that hold more than one version.
        mixed: answers that hold more than one version, or another one than the response says.
    """

    def __init__(self, http_url: str, grpc_url: str, *, count: int = 8, model: str = MODEL) -> None:
        self.answered: Counter[int] = Counter()
        self.lost: list[str] = []
        self.torn: list[str] = []
        self.mixed: list[str] = []
        self._urls = {"http": http_url, "grpc": grpc_url}
        self._model = model
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        protocols = itertools.islice(itertools.cycle(self._urls), count)
        self._threads = [threading.Thread(target=self._ask, args=(protocol,)) for protocol in protocols]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, version: int) -> None:
        """Wait until a version has answered one of them."""
        with self._lock:
            assert self._news.wait_for(lambda: self.answered[version] > 0 or self.lost, _DEADLINE_SECONDS), version

    def _ask(self, protocol: str) -> None:
        from tritonclient import grpc, http

        library: Any = {"http": http, "grpc": grpc}[protocol]
        with library.InferenceServerClient(self._urls[protocol]) as client:
            for number in itertools.count():
                if self._over.is_set():
                    return
                rows = 1 + number % 4
                tensor = library.InferInput("x", [rows, 1], "FP32")
                tensor.set_data_from_numpy(np.full((rows, 1), number, np.float32))
                try:
                    answer = client.infer(self._model, [tensor])
                except Exception as error:  # noqa: BLE001 - whatever it is, the request was lost
                    with self._lock:
                        self.lost.append(f"{protocol}: {error}")
                        self._news.notify_all()
                    continue
                self._note(protocol, rows, answer)

    def _note(self, protocol: str, rows: int, answer: Any) -> None:
        response = answer.get_response()
        version = int(response["model_version"] if protocol == "http" else response.model_version)
        whole, three = answer.as_numpy("whole"), answer.as_numpy("three")
        numbers = {*map(int, whole.ravel()), *map(int, three.ravel())}
        versions = {version, *numbers}
        with self._lock:
            self.answered[version] += 1
            self._news.notify_all()
            if len(numbers) > 1 or whole.shape != (rows, 1) or three.shape != (rows, 3):
                self.torn.append(f"{protocol}: {numbers}, {whole.shape}, {three.shape}")
            if len(versions) > 1 or whole.shape != (rows, 1) or three.shape != (rows, 3):
                self.mixed.append(f"{protocol}: {versions}, {whole.shape}, {three.shape}")
