"""A receiver with three registries, an inbox in memory and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from plansmith.config.service_triggers import TriggersConfig
from plansmith.triggers.inbox.entry import Delivery
from plansmith.triggers.metrics import Metrics
from plansmith.triggers.receiver.application import make_app
from plansmith.triggers.registries import webhook
from plansmith.triggers.registries.delivery import Event

from .asgi import Answer, ask
from .recorded import SECRET, Sent, signed

NOW = 1795165608.0
HOOK = "/hooks/ci"
ASKED = {"model": "ranker", "version": "7"}


@dataclass
class MemoryInbox:
    """Keeps deliveries as long as it lives; `fault` is raised by whatever is asked of it."""

    deliveries: dict[tuple[str, str], tuple[Event, ...]] = field(default_factory=dict)
    fault: Exception | None = None

    def take_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        return [self.take(item.registry, item.delivery, item.events) for item in deliveries]

    def take(self, registry: str, delivery: str, events: Sequence[Event]) -> bool:
        self.check()
        is_new = (registry, delivery) not in self.deliveries
        self.deliveries.setdefault((registry, delivery), tuple(events))
        return is_new

    def youngest(self, event: Event) -> tuple[int, str] | None:
        self.check()
        same = [
            (number, candidate.content_key)
            for number, (_, (candidate, *_)) in enumerate(self.deliveries.items())
            if (candidate.model, candidate.topic) == (event.model, event.topic)
        ]
        return same[-1] if same else None

    def newest(self) -> int:
        return len(self.deliveries) - 1

    def check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def oldest_waiting(self, now: datetime) -> float | None:
        self.check()
        return now.timestamp() - NOW + 60 if self.deliveries else None

    def counts(self) -> Mapping[str, int]:
        self.check()
        return {"waiting": len(self.deliveries), "done": 0}


class Receiver:
    """An application, what it keeps, and its clock."""

    def __init__(
        self, secrets: Mapping[str, Sequence[str]] | None = None, *, awaited: Collection[str] = (), **limits: Any
    ) -> None:
        self.now = NOW
        self.inbox = MemoryInbox()
        self.metrics = Metrics()
        self.config = TriggersConfig.model_validate(
            {
                "registries": {
                    "ours": {"type": "mlflow", "tracking_uri": "https://mlflow.example.com", "secrets": ["env:A"]},
                    "hub": {"type": "hub", "secrets": ["env:A"]},
                    "ci": {"type": "hook", "secrets": ["env:A"]},
                    "here": {"type": "folder", "path": "models"},
                },
                "rules": [{"registry": "ours", "model": "other", "when": "alias", "spec": "a.yaml"}],
                "limits": {"body_seconds": 3600} | limits,
            }
        )
        hook_secrets = dict.fromkeys(("ours", "hub", "ci"), (SECRET,)) if secrets is None else secrets
        self.app = make_app(
            self.config, self.inbox, hook_secrets, clock=lambda: self.now, metrics=self.metrics, awaited=awaited
        )

    def ask(self, method: str, path: str, body: Any = b"", **more: Any) -> Answer:
        return asyncio.run(ask(self.app, method, path, body, **more))

    def post(self, sent: Sent, path: str = HOOK, **more: Any) -> Answer:
        return self.ask("POST", path, sent.body, headers=sent.headers, **more)

    def together(self, *requests: Coroutine[Any, Any, Answer]) -> list[Answer]:
        async def all_of_them() -> list[Answer]:
            return list(await asyncio.gather(*requests))

        return asyncio.run(all_of_them())

    def figure(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def signed_request(value: Any = ASKED, **more: Any) -> Sent:
    """A signed request of the hook."""
    return signed(webhook.HEADERS, value, **{"timestamp": str(int(NOW)), **more})
