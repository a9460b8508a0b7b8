"""How far a build has come, in words; and its end when it takes too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_SECONDS_BETWEEN_WORDS = 0.5


@dataclass
class _Phase:
    parent: str
    steps: int
    done: int = 0


@dataclass
class Watch:
    """Follows a build from several threads at once.

    `say`: told what is being done, at most twice a second, by one thread at a time; `seconds`: what the build may take
    from now on. `is_late` and `failure` (what `say` raised) tell why a build was ended.
    """

    say: Callable[[str], None]
    seconds: float
    is_late: bool = False
    failure: BaseException | None = None
    _phases: dict[str, _Phase] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: float = field(default_factory=time.monotonic)
    _said: float = float("-inf")

    def start(self, phase: str, parent: str, steps: int) -> None:
        """A phase of so many steps has begun, inside of another one or of none ("")."""
        with self._lock:
            self._phases[phase] = _Phase(parent, steps)
            self._tell(phase)

    def step(self, phase: str, step: int) -> bool:
        """A phase has finished a step, counted from 0; whether the build should go on."""
        with self._lock:
            if phase in self._phases:
                self._phases[phase].done = step + 1
                self._tell(phase)
            self.is_late = self.is_late or time.monotonic() - self._begun > self.seconds
            return not self.is_late and self.failure is None

    def finish(self, phase: str) -> None:
        """A phase is over."""
        with self._lock:
            self._phases.pop(phase, None)

    def _tell(self, phase: str) -> None:
        if self.failure is not None or time.monotonic() - self._said < _SECONDS_BETWEEN_WORDS:
            return
        self._said = time.monotonic()
        try:
            self.say(f"building: {self._words(phase)}")
        except BaseException as failure:  # noqa: BLE001 - TensorRT's threads take no exception; `build` raises it
            self.failure = failure

    def _words(self, phase: str) -> str:
        """The longest of a phase and those around it: the one whose count tells how far the build has come."""
        around = [phase]
        while (parent := self._phases[around[-1]].parent) in self._phases and parent not in around:
            around.append(parent)
        name = max(around, key=lambda one: self._phases[one].steps)
        done, steps = self._phases[name].done, self._phases[name].steps
        return f"{name}, {done} of {steps} ({100 * done // steps} %)" if steps > 1 else name


def monitor_of(watch: Watch) -> Any:
    """A `tensorrt.IProgressMonitor` that tells a watch and does what it says."""
    import tensorrt

    class Monitor(tensorrt.IProgressMonitor):  # type: ignore[misc] # no types
        """Called by threads of TensorRT."""

        def __init__(self) -> None:
            tensorrt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            """A phase begins."""
            watch.start(phase_name, parent_phase or "", num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """A step is done; False ends the build."""
            return watch.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            """A phase ends."""
            watch.finish(phase_name)

    return Monitor()
