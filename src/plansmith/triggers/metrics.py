"""Prometheus metrics of the service."""

from __future__ import annotations

from collections.abc import Mapping

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

_OPEN_METRICS, _PLAIN = "application/openmetrics-text", "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Prometheus metrics of one service, in their own registry; services in one process share none.

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
        self._dropped = Counter(
            "plansmith_connections_dropped",
            "Connections that were ended before an answer: slow, or fragmented, or the oldest of too many.",
            ["reason"],
            registry=self.registry,
        )
        self._worked = {
            "build": Counter(
                "plansmith_builds",
                "Stored events that were worked on, by what came of it: built is that their runs were started.",
                ["outcome"],
                registry=self.registry,
            ),
            "write-back": Counter(
                "plansmith_write_backs",
                "Attempts to tell a registry what came of builds, by outcome.",
                ["outcome"],
                registry=self.registry,
            ),
        }
        self._oldest = Gauge(
            "plansmith_inbox_oldest_waiting_seconds",
            "For how long the oldest event has waited; 0 where none waits, NaN while the inbox cannot be read.",
            registry=self.registry,
        )
        self._entries = Gauge(
            "plansmith_inbox_entries",
            "Stored events by what has become of them; none while the inbox cannot be read.",
            ["state"],
            registry=self.registry,
        )

    def count(self, registry: str, outcome: str, seconds: float) -> None:
        """Count a request.

        Args:
            registry: its name in the service's file; empty for a name that is not there, so that nobody makes up more.
            outcome: one word.
            seconds: how long it took.
        """
        self._deliveries.labels(registry, outcome).inc()
        self._seconds.labels(registry).observe(seconds)

    def count_dropped(self, reason: str) -> None:
        """Count a connection that was closed early; `reason` is one of a fixed set."""
        self._dropped.labels(reason).inc()

    def count_worked(self, event: str, outcome: str) -> None:
        """Count a processed inbox entry by outcome.

        Args:
            event: build or write-back.
            outcome: one word of few.
        """
        self._worked[event].labels(outcome).inc()

    def text(self, entries: Mapping[str, int], oldest_seconds: float | None, accept: str) -> tuple[bytes, str]:
        """Return the metrics text and its content type, in the format that the scraper accepts.

        Args:
            entries: of the inbox by state; empty where it cannot be read.
            oldest_seconds: for how long the oldest of them has waited; None where it cannot be read.
            accept: the request's header.
        """
        from prometheus_client import generate_latest
        from prometheus_client.openmetrics import exposition

        self._oldest.set(float("nan") if oldest_seconds is None else oldest_seconds)
        self._entries.clear()
        for state, number in entries.items():
            self._entries.labels(state).set(number)
        # The library's own choice fails where a version in the header is no number.
        if _OPEN_METRICS in accept:
            text = exposition.generate_latest(self.registry)  # type: ignore[no-untyped-call]
            return text, exposition.CONTENT_TYPE_LATEST
        return generate_latest(self.registry), _PLAIN
