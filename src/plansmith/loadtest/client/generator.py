"""Load generator of one client process: users in a closed loop, or requests in an open loop.

It runs in a process that gevent has patched, and follows the commands of the process that leads the test.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from plansmith.loadtest.client.recorder import InFlight, Recorder
from plansmith.loadtest.client.senders import CONNECTION, RequestFailed, Sender, sender_factory
from plansmith.loadtest.payloads.encoding import PayloadMix
from plansmith.loadtest.stages import arrival_times, share_of_client
from plansmith.loadtest.target import LoadTarget

if TYPE_CHECKING:
    from gevent import Greenlet
    from locust import User


_GRACE_SECONDS = 0.5
"""After the stage, in which due requests are still sent: a process that was held up for a moment catches up."""

Emit = Callable[[dict[str, Any]], None]
_SPARE_FILES = 100
_REPORT_SECONDS = 0.5
_TIMER_SECONDS = 0.05
_DRAIN_SECONDS = 0.02
_PAUSE_SECONDS = 0.2
"""After a refused connection, which fails at once: a user that does not wait would do nothing but fail."""


class OpenLoop:
    """Request scheduler of an open-loop stage.

    A bounded number is in flight: further ones wait, and their latencies include that, as they count from the due time.
    What still waits at the end of the stage is not sent, nor what this process cannot send by then.

    Args:
        stage: its number.
        arrivals: due times, in seconds after the stage began.
        seconds: duration of the stage.
        max_in_flight: unanswered requests at a time.
    """

    def __init__(self, stage: int, arrivals: Iterator[float], seconds: float, max_in_flight: int) -> None:
        from gevent.lock import BoundedSemaphore

        self._stage = stage
        self._arrivals = arrivals
        self._seconds = seconds
        self._slots = BoundedSemaphore(max_in_flight)
        self._is_behind = False

    def run(self, send: Callable[[float, bool], None], recorder: Recorder) -> None:
        """Send requests until the stage ends.

        Args:
            send: sends a request and waits for its answer; takes the due time, and whether it waited for others.
            recorder: counts arrivals.
        """
        import gevent

        zero = time.perf_counter()
        for at in self._arrivals:
            due = zero + at
            recorder.arrivals(self._stage, due=1)
            if time.perf_counter() - zero > self._seconds + _GRACE_SECONDS:
                recorder.arrivals(self._stage, due=sum(1 for _ in self._arrivals))
                break
            if (wait := due - time.perf_counter()) > 0:
                self._is_behind = False
            gevent.sleep(max(0.0, wait))  # also without a wait, so that requests in flight proceed
            if not self._acquire_slot(zero, recorder):
                continue
            recorder.arrivals(self._stage, sent=1)
            gevent.spawn(self._send, send, due, self._is_behind)
        gevent.sleep(max(0.0, zero + self._seconds - time.perf_counter()))

    def _acquire_slot(self, zero: float, recorder: Recorder) -> bool:
        """Wait until another request may be in flight, but not beyond the end of the stage."""
        if self._slots.acquire(blocking=False):
            return True
        recorder.arrivals(self._stage, held=1)
        self._is_behind = True
        remaining = zero + self._seconds - time.perf_counter()
        return remaining > 0 and bool(self._slots.acquire(timeout=remaining))

    def _send(self, send: Callable[[float, bool], None], due: float, is_behind: bool) -> None:
        try:
            send(due, is_behind)
        finally:
            self._slots.release()


class LoadGenerator:
    """Load generator of one client process.

    Args:
        emit: sends an event to the process that leads the test.
    """

    def __init__(self, emit: Emit) -> None:
        self.recorder = Recorder()
        self.pacing_seconds: float | None = None
        self._emit = emit
        self._payloads: PayloadMix | None = None
        self._make_sender: Callable[[], Sender] | None = None
        self._idle_senders: list[Sender] = []
        self._open_loop: OpenLoop | None = None
        self._open_greenlet: Greenlet | None = None
        self._seed = ""
        self._client, self._clients = 0, 1
        self._max_in_flight = 1
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret

    def execute(self, message: dict[str, Any]) -> None:
        """Execute a command; an event reports its completion."""
        import gevent

        command = message["command"]
        if command == "prepare":
            gevent.spawn(self._prepare, message)
        elif command == "load":
            self._load(message)
        elif command == "measure":
            self.recorder.measure(on=True)
            if self._open_loop is not None:
                self._open_greenlet = gevent.spawn(self._run_open_loop, self._open_loop)
        elif command == "settle":
            self.recorder.measure(on=False)
            self._finish("settle")
        elif command == "drain":
            gevent.spawn(self._drain, message["seconds"])

    def make_sender(self) -> Sender:
        """Create a sender for one user."""
        assert self._make_sender is not None
        return self._make_sender()

    def initial_pause(self) -> float:
        """Return the initial delay of a new user, so that users of the same pace do not send simultaneously."""
        return 0.0 if self.pacing_seconds is None else self._random.uniform(0, self.pacing_seconds)

    def send(self, sender: Sender, stage: int | None, due: float | None = None, *, is_behind: bool = False) -> None:
        """Send the next request and wait for its answer.

        Args:
            sender: sends it.
            stage: the stage that counts it; None for the one in which it ends.
            due: when it was due; now if None.
            is_behind: it is late because it waited for others.
        """
        assert self._payloads is not None
        number, model, payload = self._payloads.draw()
        now = time.perf_counter()
        request = InFlight(stage, number, now if due is None else due, self.recorder.stage)
        if due is not None and not is_behind:
            self.recorder.sent(now - due)
        self.recorder.in_flight += 1
        try:
            sender.send(payload, model)
            self.recorder.answered(request, payload.samples)
        except RequestFailed as failure:
            self.recorder.failed(request, failure.kind, failure.text, is_answer=failure.is_answer)
            if failure.kind == CONNECTION and stage is None:
                time.sleep(_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - a load test goes on, and reports what became of each request
            self.recorder.failed(request, type(error).__name__, str(error), is_answer=False)
            time.sleep(_PAUSE_SECONDS)
        finally:
            self.recorder.in_flight -= 1

    def _prepare(self, message: dict[str, Any]) -> None:
        import gevent

        self._client, self._clients = message["client"], message["clients"]
        self._seed = str(message["seed"])
        self._random = random.Random(f"{self._seed} {self._client} pauses")  # noqa: S311 - spreads load
        self.pacing_seconds = message["pacing_seconds"]
        target = LoadTarget.model_validate(message["target"])
        self._max_in_flight = _max_connections(message["max_in_flight"])
        self._payloads = PayloadMix(target, f"{self._seed} {self._client}")
        self._make_sender = sender_factory(target, message["timeout_seconds"])
        gevent.spawn(self._report_periodically)
        gevent.spawn(self._measure_lag)
        self._finish("prepare")

    def _load(self, message: dict[str, Any]) -> None:
        """Begin a stage: Locust starts its users; open-loop requests begin with the measurement."""
        stage, self._open_loop = message["stage"], None
        if self._open_greenlet is not None:
            self._open_greenlet.kill()
        self.recorder.stage = stage
        self.recorder.is_open = bool(message["arrivals"])
        if message["is_first"]:
            self.recorder.begin()
        if message["arrivals"]:
            arrivals = arrival_times(message["arrivals"], message["rate"], message["trace"], f"{self._seed} {stage}")
            own = share_of_client(arrivals, self._client, self._clients, message["seconds"])
            self._open_loop = OpenLoop(stage, own, message["seconds"], self._max_in_flight)

    def _run_open_loop(self, loop: OpenLoop) -> None:
        stage = self.recorder.stage
        loop.run(lambda due, is_behind: self._send_open(stage, due, is_behind=is_behind), self.recorder)
        self._finish("spent")

    def _send_open(self, stage: int, due: float, *, is_behind: bool) -> None:
        """Send one open-loop request with a sender that no other request is using."""
        sender = self._idle_senders.pop() if self._idle_senders else self.make_sender()
        try:
            self.send(sender, stage, due, is_behind=is_behind)
        finally:
            self._idle_senders.append(sender)

    def _drain(self, seconds: float) -> None:
        """Wait for pending requests, for a bounded time."""
        deadline = time.monotonic() + seconds
        while self.recorder.in_flight and time.monotonic() < deadline:
            time.sleep(_DRAIN_SECONDS)
        self._finish("drain")

    def _finish(self, event: str) -> None:
        self._emit({"event": "report", "report": self.recorder.report()})
        self._emit({"event": event})

    def _report_periodically(self) -> None:
        while True:
            time.sleep(_REPORT_SECONDS)
            self._emit({"event": "report", "report": self.recorder.report()})

    def _measure_lag(self) -> None:
        """Measure timer lag: a timer that fires late shows how long responses wait for this process."""
        while True:
            before = time.perf_counter()
            time.sleep(_TIMER_SECONDS)
            self.recorder.lagged(max(0.0, time.perf_counter() - before - _TIMER_SECONDS))


def user_class(generator: LoadGenerator) -> type[User]:
    """Return Locust's user class, which sends requests one after another."""
    from locust import User, task

    class ModelUser(User):  # type: ignore[misc] # Locust has no types here
        def on_start(self) -> None:
            self.sender = generator.make_sender()
            self.due = time.perf_counter() + generator.initial_pause()
            self.is_behind = False
            time.sleep(max(0.0, self.due - time.perf_counter()))

        def on_stop(self) -> None:
            self.sender.close()

        def wait_time(self) -> float:
            if generator.pacing_seconds is None:
                return 0.0
            self.due += generator.pacing_seconds
            wait = self.due - time.perf_counter()
            self.is_behind = wait < 0
            return max(0.0, wait)

        @task  # type: ignore[untyped-decorator]
        def infer(self) -> None:
            due = None if generator.pacing_seconds is None else self.due
            generator.send(self.sender, None, due, is_behind=self.is_behind)

    return ModelUser


def _max_connections(requested: int) -> int:
    """Return the maximum number of connections of this process; raises its open file limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, min(requested, hard - _SPARE_FILES)) if hard > 0 else requested
