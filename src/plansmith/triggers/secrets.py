"""Registry secrets, available also while the Prefect server that stores some of them is down.

A receiver that did not start then would hear nothing, of no registry. So it starts with what the environment holds;
what cannot be judged yet is answered with 503, which senders repeat, until the others are known.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping

from plansmith.config.service_triggers import Registry
from plansmith.errors import EnvironmentFault
from plansmith.triggers.configuration import BLOCK, find_secrets
from plansmith.triggers.worker_loop import Draw, error_text, log_event, pause_seconds

_LONGEST_PAUSE_SECONDS = 60.0


class Secrets:
    """Webhook secrets, as far as they are loaded.

    Args:
        registries: by name.
        read_block: the value of a Secret block of Prefect.
        draw: for pauses.

    Attributes:
        by_registry: by registry; grows when what is awaited comes.
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
        self.by_registry: dict[str, tuple[str, ...]] = {}
        self.awaited: set[str] = set()
        self.fault = ""
        try:
            self.by_registry.update(find_secrets(registries, read_block))
        except EnvironmentFault as fault:
            if not fault.transient:
                raise
            self.fault = error_text(fault)
            heard = {name: _without_blocks(registry) for name, registry in registries.items()}
            self.by_registry.update(find_secrets(heard, read_block))
            self.awaited.update(name for name, registry in registries.items() if _blocks(registry))

    def work(self, stop: threading.Event) -> None:
        """Poll for missing secrets until all are available, or until stopped."""
        attempts = 0
        while self.awaited:
            attempts += 1
            if stop.wait(min(pause_seconds(attempts, self._draw()), _LONGEST_PAUSE_SECONDS)):
                return
            self._ask()

    def _ask(self) -> None:
        try:
            self.by_registry.update(find_secrets(self._registries, self._read_block))
        except Exception as error:  # noqa: BLE001 - whatever it is, other registries are heard, and it may be mended
            if (text := error_text(error)) != self.fault:
                self.fault = text
                log_event(logging.ERROR, "secrets", awaited=sorted(self.awaited), reason=text)
            return
        names = sorted(self.awaited)
        self.awaited.clear()
        log_event(logging.INFO, "secrets", known=names)


def _blocks(registry: Registry) -> tuple[str, ...]:
    return tuple(secret for secret in _secrets(registry) if secret.startswith(BLOCK))


def _without_blocks(registry: Registry) -> Registry:
    blocks = _blocks(registry)
    left = tuple(secret for secret in _secrets(registry) if secret not in blocks)
    return registry.model_copy(update={"secrets": left}) if blocks else registry


def _secrets(registry: Registry) -> tuple[str, ...]:
    secrets: tuple[str, ...] = getattr(registry, "secrets", ())
    return secrets
