"""One process that has imported what commands import; each command that `tests.support.warm` starts is a fork of it.

`python -m tests.support.warm_server DESCRIPTOR`, in the root of the project, where the descriptor is a listening socket
(of packets, between processes of one machine). A request is one JSON document with four open files beside it: standard
input, output and error of the command, and where its number and its status are told.

A fork is a process like any other: with a folder, an environment, streams, signals, children and an end of its own.
What it lacks is the start of an interpreter: variables that an interpreter or a library reads as it starts do nothing.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import logging
import multiprocessing.util
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import plansmith
from plansmith.system import process

REQUEST_BYTES = 1 << 17
NUMBER = struct.Struct("i")
"""A process number, and then the status as `os.waitpid` gives it."""

_MOST_FILES = 1 << 16
_ALONE_SECONDS = 60
"""How long nobody may have come: who started this connects at once, unless it was killed."""

_OF_A_FORK = {"plansmith", "plansmith.steps.worker", "plansmith.fleet.zoo.child"}
_LATER = ("plansmith.flows", "plansmith")
"""What is of Prefect, of which a command is told whether it was imported, and what runs as it is imported."""

_AT_EXIT = (logging.shutdown, multiprocessing.util._exit_function)  # type: ignore[attr-defined]
"""Of what libraries register as they are imported, all whose doing outlives the process that ends."""

_forked_with: list[object] = []
"""Finalizers of the process that was forked."""

_LIBRARIES = (
    "onnxruntime",
    "onnxscript",
    "polygraphy.backend.onnxrt",
    "rich.live",
    "timm",
    "torch._dynamo",
    "torch.export",
    "torch.onnx._internal.exporter._core",
    *(f"torch.onnx._internal.torchscript_exporter.symbolic_opset{number}" for number in range(7, 21)),
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
)


class Workers:
    """In place of `subprocess` in `plansmith.system.process`, within a fork: a worker is a fork of it, too."""

    DEVNULL = subprocess.DEVNULL

    @staticmethod
    def Popen(  # noqa: N802 - as it is called there
        command: Sequence[str],
        *,
        stdin: int,
        stdout: Any,
        stderr: Any,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
        process_group: int | None,
    ) -> Any:
        """Start `python -m MODULE WORDS...`."""
        _, _, module, *words = command
        if module not in _OF_A_FORK:
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                env=env,
                process_group=process_group,
            )
        # What Python calls in the midst of a fork drops the exceptions of signal handlers.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        child = os.fork()
        if child == 0:
            if process_group is not None:
                os.setpgid(0, process_group)
            nothing = os.open(os.devnull, os.O_RDONLY)
            become(module, words, str(Path.cwd()), env, (nothing, stdout.fileno(), stderr.fileno()), pass_fds)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return SimpleNamespace(pid=child, returncode=None)


def become(
    module: str,
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[int],
    kept: Sequence[int] = (),
) -> NoReturn:
    """Be `python -m MODULE WORDS...` in a folder, to its end; called in a fork."""
    status = 1
    try:
        _leave_behind()
        _take_over(environment, streams, kept)
        sys.argv[:] = ["-", *words]
        os.chdir(folder)
        sys.path[0] = folder
        process.subprocess = Workers  # type: ignore[assignment,attr-defined]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        ctypes.CDLL(None).fflush(None)
        os._exit(status)


def _leave_behind() -> None:
    """What is of the process that was forked is never tidied up here, which would touch and copy most of its memory."""
    gc.freeze()
    _forked_with.append(weakref.finalize._registry)  # type: ignore[attr-defined]
    weakref.finalize._registry = {}  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit._clear()
    for function in _AT_EXIT:
        atexit.register(function)


def _take_over(environment: Mapping[str, str], streams: Sequence[int], kept: Sequence[int]) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
    first = 3
    for stays in sorted(kept):
        os.closerange(first, stays)
        first = stays + 1
    os.closerange(first, _MOST_FILES)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the process ends
    for name in ("stdout", "stderr"):
        was = getattr(sys, f"__{name}__")
        own = open(was.fileno(), "w", 1, was.encoding, was.errors, closefd=False)  # noqa: SIM115 - likewise
        setattr(sys, name, own)


def _status(code: str | int | None) -> int:
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        return 1
    return code or 0


def _start(message: bytes, streams: Sequence[int]) -> int:
    request = json.loads(message)
    child = os.fork()
    if child == 0:
        if request["session"]:
            os.setsid()
        become("plansmith", request["words"], request["folder"], request["environment"], streams)
    return child


class Server:
    """Starts what is asked for and tells how it ended.

    Args:
        listener: where those come who ask.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._asking = 0
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> None:
        """Until nobody can ask any more."""
        while ready := self._events.select(None if self._asking else _ALONE_SECONDS):
            for key, _ in ready:
                key.data()
            if not self._asking:
                return

    def _accept(self) -> None:
        control, _ = self._listener.accept()
        self._asking += 1
        self._events.register(control, selectors.EVENT_READ, partial(self._hear, control))

    def _hear(self, control: socket.socket) -> None:
        message, files, _, _ = socket.recv_fds(control, REQUEST_BYTES, 4)
        if not message:
            self._events.unregister(control)
            control.close()
            self._asking -= 1
            return
        *streams, told = files
        child = _start(message, streams)
        for stream in streams:
            os.close(stream)
        _tell(told, child)
        ended = os.pidfd_open(child)
        self._events.register(ended, selectors.EVENT_READ, partial(self._bury, child, ended, told))

    def _bury(self, child: int, ended: int, told: int) -> None:
        self._events.unregister(ended)
        os.close(ended)
        _tell(told, os.waitpid(child, 0)[1])
        os.close(told)


def _tell(told: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(told, NUMBER.pack(number))


def main() -> None:
    """Import, and serve."""
    with socket.socket(fileno=int(sys.argv[1])) as listener, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = [module.name for module in pkgutil.walk_packages(plansmith.__path__, "plansmith.")]
        for name in (*_LIBRARIES, *(name for name in own if not name.startswith(_LATER))):
            importlib.import_module(name)
        assert threading.active_count() == 1
        gc.collect()
        gc.freeze()
        Server(listener).serve()


if __name__ == "__main__":
    main()
