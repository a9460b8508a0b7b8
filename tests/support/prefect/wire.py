"""A way to a port of this machine that can be cut and mended."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from .programs import free_port


class Wire:
    """A way to a port; a context manager.

    Args:
        port: that it leads to.
        loses: a request with these bytes reaches the port, and no answer comes back on its connection any more.

    Attributes:
        port: at which it begins.
        loses: as given; empty for none.
    """

    def __init__(self, port: int, *, loses: bytes = b"") -> None:
        self._target = port
        self.loses = loses
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self._changing = threading.Lock()
        self._ends: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Wire:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """End every connection and take no more."""
        with self._changing:
            for end in (self._listener, *self._ends):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
                finally:
                    end.close()
            self._ends = []

    def mend(self) -> None:
        """Take connections again, at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            with self._changing:
                if listener.fileno() < 0:  # cut meanwhile
                    near.close()
                    return
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
            lost = threading.Event()
            for carry, source, sink in ((self._ask, near, far), (_answer, far, near)):
                threading.Thread(target=carry, args=(source, sink, lost), daemon=True).start()

    def _ask(self, source: socket.socket, sink: socket.socket, lost: threading.Event) -> None:
        def look(data: bytes) -> bytes:
            if self.loses and self.loses in data:
                lost.set()
            return data

        _carry(source, sink, look)


def _answer(source: socket.socket, sink: socket.socket, lost: threading.Event) -> None:
    _carry(source, sink, lambda data: b"" if lost.is_set() else data)


def _carry(source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes]) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(change(data))
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
