"""The secrets of registries, also while the Prefect server that keeps some of them is away.

A receiver that did not start then would hear nothing, of no registry. So it starts with what the environment holds;
what cannot be judged yet is answered with 503, which senders repeat, until the others are known.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping

from plansmith.config.service.triggers import Registry
from plansmith.errors import EnvironmentFault
from plansmith.triggers.configuration import BLOCK, find_secrets
from plansmith.triggers.worker_loop import Draw, error_text, log_event, pause_seconds

_LONGEST_PAUSE_SECONDS = 60.0


class Secrets:
    """What is known of them.

    Args:
        registries: by name.
        read_block: the value of a Secret block of Prefect.
        draw: for pauses.

    Attributes:
        known: by registry; grows when what is awaited comes.
        awaited: the registries of which some are not known yet.
        fault: why not, as it was said last; empty where none was ever awaited.

    Raises:
        UsageError: names all that are not there.
        EnvironmentFault: Prefect is not installed or configured, or refuses.
    """

    def __init__(
        self, registries: Mapping[str, Registry], read_block: Callable[[str], str], *, draw: Draw = random.random
    ) -> None:
        self._registries = registries
        self._draw = draw
        self._read_block = read_block
        self.known: dict[str, tuple[str, ...]] = {}
        self.awaited: set[str] = set()
        self.fault = ""
        try:
            self.known.update(find_secrets(registries, read_block))
        except EnvironmentFault as fault:
            if not fault.transient:
                raise
            self.fault = error_text(fault)
            heard = {name: _without_blocks(one) for name, one in registries.items()}
            self.known.update(find_secrets(heard, read_block))
            self.awaited.update(name for name, one in registries.items() if _blocks(one))

    def work(self, stop: threading.Event) -> None:
        """Ask for those that are awaited until they are there, or until told to stop."""
        attempts = 0
        while self.awaited:
            attempts += 1
            if stop.wait(min(pause_seconds(attempts, self._draw()), _LONGEST_PAUSE_SECONDS)):
                return
            self._ask()

    def _ask(self) -> None:
        try:
            self.known.update(find_secrets(self._registries, self._read_block))
        except Exception as error:  # noqa: BLE001 - whatever it is, other registries are heard, and it may be mended
            if (words := error_text(error)) != self.fault:
                self.fault = words
                log_event(logging.ERROR, "secrets", awaited=sorted(self.awaited), reason=words)
            return
        found = sorted(self.awaited)
        self.awaited.clear()
        log_event(logging.INFO, "secrets", known=found)


def _blocks(registry: Registry) -> tuple[str, ...]:
    return tuple(one for one in _secrets(registry) if one.startswith(BLOCK))


def _without_blocks(registry: Registry) -> Registry:
    blocks = _blocks(registry)
    left = tuple(one for one in _secrets(registry) if one not in blocks)
    return registry.model_copy(update={"secrets": left}) if blocks else registry


def _secrets(registry: Registry) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(registry, "secrets", ())
    return found
