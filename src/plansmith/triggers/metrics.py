"""What Prometheus is told of the service."""

from __future__ import annotations

from collections.abc import Mapping

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters of one service, in a registry of their own: two services in a process share none.

    `registry` is open to those who count something else.
    """

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self._deliveries = Counter(
            "plansmith_deliveries",
            "Requests of registries by what came of them.",
            ["registry", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "plansmith_delivery_seconds",
            "From a request's first byte to its answer.",
            ["registry"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._entries = Gauge(
            "plansmith_inbox_entries",
            "Stored events by what has become of them; none while the inbox cannot be read.",
            ["state"],
            registry=self.registry,
        )

    def count(self, registry: str, outcome: str, seconds: float) -> None:
        """Note a request.

        Args:
            registry: its name in the service's file; empty for a name that is not there, so that nobody makes up more.
            outcome: one word.
            seconds: how long it took.
        """
        self._deliveries.labels(registry, outcome).inc()
        self._seconds.labels(registry).observe(seconds)

    def text(self, entries: Mapping[str, int], accept: str) -> tuple[bytes, str]:
        """All of it and its content type, in the form that a scraper accepts.

        Args:
            entries: of the inbox by state; empty where it cannot be read.
            accept: the request's header.
        """
        from prometheus_client.exposition import choose_encoder

        self._entries.clear()
        for state, number in entries.items():
            self._entries.labels(state).set(number)
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type
