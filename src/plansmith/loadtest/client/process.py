"""Client process of a load test: Locust's runner, with commands and events as lines of JSON.

`lead FD PARENT` serves the parent on a descriptor: it generates the load itself, or hands the commands to workers by
Locust's own messages. `worker PARENT HOST PORT` is such a worker, and `remote PARENT HOST PORT FOLDER` one on another
machine, which gets its payloads from the lead process. Run as `python -m plansmith.loadtest.client.process`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith import __version__
from plansmith.loadtest.payloads.encoding import PAYLOAD_FILES
from plansmith.loadtest.target import LoadTarget
from plansmith.system.process import dying_with

if TYPE_CHECKING:
    from io import BufferedRWPair

    from gevent.queue import Queue
    from locust.runners import Runner

    from plansmith.loadtest.client.generator import LoadGenerator

    Stream = BufferedRWPair[Any, Any]


_PIECE_BYTES = 2**20

MODULE = "plansmith.loadtest.client.process"
_ALL_AT_ONCE = 1e6
_POLL_SECONDS = 0.5
_MISSED_HEARTBEATS = 10
_FROM_ALL = {"prepare", "settle", "spent", "drain"}
"""Events that are passed on when all clients have sent them."""


def payload_sizes(target: LoadTarget) -> list[dict[str, int]]:
    """Return the file sizes of each model's payloads in bytes, by name."""
    return [{name: (Path(model.payloads) / name).stat().st_size for name in PAYLOAD_FILES} for model in target.models]


def read_piece(target: LoadTarget, request: Mapping[str, Any]) -> dict[str, Any]:
    """Read the payload chunk that a client requests, as a command to that client.

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
    """Payload receiver: the client's side of the transfer.

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
        """Receive a chunk."""
        self._pieces.put(data)

    def fetch(self, target: LoadTarget, sizes: list[dict[str, int]]) -> LoadTarget:
        """Return the target with its payloads on this machine, once all have arrived."""
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


REFUSED, LOST = 3, 4
"""Exit codes of a worker: the lead process has another version, or is not heard any more."""

_COMMAND, _EVENT = "plansmith-command", "plansmith-event"
"""Locust's messages to the clients, and from them."""


class LeadProcess:
    """Lead process: forwards the parent's commands to the clients, and their events to the parent.

    Args:
        stream: to the parent.
        runner: Locust's.
        workers: how many there are, at least; 0 where this process generates the load.
        is_remote: they are on other machines.
    """

    def __init__(self, stream: Stream, runner: Runner, workers: int, *, is_remote: bool = False) -> None:
        self._stream = stream
        self._write_lock = threading.Lock()
        self._runner = runner
        self._workers = workers
        self._is_remote = is_remote
        self._target: LoadTarget | None = None
        self._names: list[str] = ["local"] if not workers else []
        self._ready: set[str] = set()
        self._finished: dict[str, set[str]] = {}
        self._stage = 0
        self._users = 0
        self._spawning: Any = None
        runner.register_message(_EVENT, self._on_event)
        events: Any = runner.environment.events
        events.spawning_complete.add_listener(self._on_spawned)

    def emit(self, **message: Any) -> None:
        """Send an event to the parent."""
        with self._write_lock:
            self._stream.write(json.dumps(message).encode() + b"\n")
            self._stream.flush()

    def await_workers(self) -> None:
        """Wait for all workers, then monitor them."""
        import gevent

        if self._workers:
            while len(self._ready) < self._workers:
                time.sleep(_POLL_SECONDS)
            self._names = sorted(self._ready)
            gevent.spawn(self._watch_workers)

    @property
    def machines(self) -> list[str]:
        """The machine of each worker."""
        return [_machine_of(name) for name in self._names]

    def serve(self) -> None:
        """Execute the parent's commands until it quits."""
        for line in self._stream:
            message = json.loads(line)
            command = message["command"]
            self._finished.pop(command, None)
            if command == "quit":
                break
            if command == "prepare":
                self._prepare(message)
            elif command == "load":
                self._finished.pop("spent", None)
                self._load(message)
            else:
                self._runner.send_message(_COMMAND, message)
        if self._workers:
            self._runner.send_message(_COMMAND, {"command": "end"})
            self._runner.quit()

    def _prepare(self, message: dict[str, Any]) -> None:
        """Number the clients, and have those on other machines download their payloads."""
        if self._is_remote:
            self._target = LoadTarget.model_validate(message["target"])
            message["payload_sizes"] = payload_sizes(self._target)
        for number, name in enumerate(self._names):
            self._send(name, {**message, "client": number, "clients": len(self._names)})

    def _load(self, message: dict[str, Any]) -> None:
        """Begin a stage: pass on its arrivals, and have Locust start or stop users."""
        import gevent

        self._runner.send_message(_COMMAND, message)
        self._stage = message["stage"]
        if self._spawning is not None:
            self._spawning.kill()
        if self._users == message["users"] == 0:
            self._on_spawned(0)
            return
        self._users = message["users"]
        self._spawning = gevent.spawn(self._runner.start, self._users, message["spawn_rate"] or _ALL_AT_ONCE)

    def _send(self, name: str, message: dict[str, Any]) -> None:
        if self._workers:
            self._runner.send_message(_COMMAND, message, name)
        else:
            self._runner.send_message(_COMMAND, message)

    def _on_spawned(self, user_count: int, **_: Any) -> None:
        self.emit(event="loaded", stage=self._stage, users=user_count)

    def _on_event(self, environment: Any, msg: Any, **_: Any) -> None:
        del environment
        message, client = msg.data, str(msg.node_id)
        event = message["event"]
        if event == "report":
            self.emit(event="report", client=client, report=message["report"], users=self._runner.user_count)
        elif event == "ready":
            self._add_worker(client, message["version"])
        elif event == "fetch" and self._target is not None:
            self._send(client, read_piece(self._target, message))
        elif event in _FROM_ALL:
            finished = self._finished.setdefault(event, set())
            finished.add(client)
            if finished.issuperset(self._names):
                self.emit(event=event)

    def _add_worker(self, client: str, version: str) -> None:
        """Register a worker; one of another version, or that comes too late, is rejected."""
        if self._names:
            self._send(client, {"command": "refuse", "reason": "the test has begun"})
        elif version != _version():
            reason = f"it has {version}, and the driver {_version()}"
            self._send(client, {"command": "refuse", "reason": reason})
            time.sleep(_POLL_SECONDS)  # the parent ends this process, and what is sent goes out before
            self.emit(event="refused", reason=f"the worker on {_machine_of(client)} is refused: {reason}")
        else:
            self._ready.add(client)
            self.emit(event="joined", workers=len(self._ready))

    def _watch_workers(self) -> None:
        from locust.runners import STATE_MISSING

        clients = self._runner.clients
        while not (lost := set(self._names) - {client.id for client in clients.all if client.state != STATE_MISSING}):
            time.sleep(_POLL_SECONDS)
        self.emit(event="lost", clients=len(lost), machines=sorted({_machine_of(name) for name in lost}))


def main(arguments: list[str]) -> None:
    """Run as the lead process or as a worker until the parent or the lead process quits."""
    role, *rest = arguments
    parent = int(rest[1] if role == "lead" else rest[0])
    if not _prepare_process(parent):
        return
    status = 0
    if role == "lead":
        _lead(int(rest[0]))
    else:
        status = _work(rest[1], int(rest[2]), Path(rest[3]) if role == "remote" else None)
    sys.stdout.flush()
    os._exit(status)  # Locust's greenlets would go on


def _prepare_process(parent: int) -> bool:
    """Tie this process to its parent and patch it; return whether the parent is still alive.

    A Ctrl-C reaches the whole process group: it is the parent's to handle, which then ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.getLogger("locust.runners").setLevel(logging.ERROR)
    if not dying_with(parent)():
        return False
    import locust  # noqa: F401 - which patches

    try:
        from grpc.experimental.gevent import init_gevent
    except ImportError:
        return True
    init_gevent()
    return True


def _lead(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        setup = json.loads(stream.readline())
        lead = _lead_process(stream, setup)
        lead.await_workers()
        lead.emit(event="started", machines=lead.machines)
        lead.serve()


def _lead_process(stream: Stream, setup: dict[str, Any]) -> LeadProcess:
    from locust.env import Environment

    from plansmith.loadtest.client.generator import LoadGenerator, user_class

    generator = LoadGenerator(lambda message: runner.send_message(_EVENT, message))
    environment = Environment(user_classes=[user_class(generator)], stop_timeout=setup["stop_seconds"])
    if setup["workers"]:
        from locust import runners

        # Heartbeats, one per second, that a worker may miss: on a busy machine it may get no CPU for a while.
        runners.HEARTBEAT_LIVENESS = _MISSED_HEARTBEATS
        runner: Any = environment.create_master_runner(setup["host"], setup["port"])
        lead = LeadProcess(stream, runner, setup["workers"], is_remote=setup["is_remote"])
        lead.emit(event="listening", port=runner.server.port)
        return lead
    runner = environment.create_local_runner()
    runner.register_message(_COMMAND, lambda environment, msg: generator.execute(msg.data))  # noqa: ARG005 - Locust's
    return LeadProcess(stream, runner, 0)


class WorkerProcess:
    """Worker process: generates load as the lead process commands.

    Args:
        generator: generates it.
        emit: sends an event to the lead process.
        folder: takes the payloads where this is another machine; None where they are here.

    Attributes:
        status: the exit code.
    """

    def __init__(self, generator: LoadGenerator, emit: Callable[[dict[str, Any]], None], folder: Path | None) -> None:
        self.status = LOST
        self._generator = generator
        self._receiver = PayloadReceiver(emit, folder) if folder is not None else None

    def execute(self, message: dict[str, Any]) -> None:
        """Execute a command of the lead process."""
        import gevent

        command = message["command"]
        if command == "end":
            self.status = 0
        elif command == "refuse":
            sys.stderr.write(f"refused: {message['reason']}\n")
            sys.stderr.flush()
            os._exit(REFUSED)
        elif command == "piece" and self._receiver is not None:
            self._receiver.receive(message["data"])
        elif command == "prepare" and self._receiver is not None:
            gevent.spawn(self._prepare, self._receiver, message)
        else:
            self._generator.execute(message)

    def _prepare(self, receiver: PayloadReceiver, message: dict[str, Any]) -> None:
        target = receiver.fetch(LoadTarget.model_validate(message["target"]), message["payload_sizes"])
        self._generator.execute({**message, "target": target.model_dump(mode="json")})


def _work(host: str, port: int, folder: Path | None) -> int:
    """Generate load until the lead process ends or is silent; return the exit code."""
    from locust.env import Environment

    from plansmith.loadtest.client.generator import LoadGenerator, user_class

    runner: Any = None
    generator = LoadGenerator(lambda message: runner.send_message(_EVENT, message))
    worker = WorkerProcess(generator, lambda message: runner.send_message(_EVENT, message), folder)
    environment = Environment(user_classes=[user_class(generator)])
    try:
        runner = environment.create_worker_runner(host, port)
    except ConnectionError:
        return LOST
    runner.register_message(_COMMAND, lambda environment, msg: worker.execute(msg.data))  # noqa: ARG005 - Locust's
    runner.send_message(_EVENT, {"event": "ready", "version": _version()})
    runner.greenlet.join()
    return worker.status


def _version() -> str:
    """Return the version that a worker and its driver must share."""
    import locust

    return f"plansmith {__version__} with Locust {locust.__version__}"


def _machine_of(client: str) -> str:
    """Return the machine of a worker: Locust names workers by machine and a number."""
    return client.rpartition("_")[0]


if __name__ == "__main__":
    main(sys.argv[1:])
