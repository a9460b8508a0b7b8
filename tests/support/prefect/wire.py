"""A way to a port of this machine that can be cut and mended."""

from __future__ import annotations

import socket
import threading

from .programs import free_port


class Wire:
    """A way to a port; a context manager.

    Args:
        port: that it leads to.

    Attributes:
        port: at which it begins.
    """

    def __init__(self, port: int) -> None:
        self._target = port
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
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
