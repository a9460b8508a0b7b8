"""Copies on a Triton server that already runs: sent over the network; its metrics report its memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

from plansmith.capacity.results import HOST, CapacityPlan, MemoryPool
from plansmith.capacity.server import ExplicitTriton
from plansmith.config.targets import load_target
from plansmith.copies.release import CopiedRelease, loaded_models, require_sendable, send
from plansmith.errors import EnvironmentFault
from plansmith.loadtest.connect import default_metrics
from plansmith.loadtest.monitor import Gauges, read_gauges
from plansmith.sagemaker.signatures import ServedModel
from plansmith.system.urls import Address, read_address
from plansmith.triton.client.connection import Connection

_INTERVAL_SECONDS = 2.2
"""The gauges are read every 2 s (Triton's --metrics-interval-ms): what a load changed is in those that come later."""

_ANSWER_SECONDS = 10.0
_NOTE = "memory is that of the whole machine by the server's metrics: what else runs there counts"


class GaugeMeter:
    """Memory meter of a server's machine, from its Prometheus metrics.

    Args:
        place: `host:port` of the metrics.

    Attributes:
        changed: when what the server holds changed last, by `time.monotonic`.
    """

    def __init__(self, place: str) -> None:
        self.changed = time.monotonic()
        self._place = place

    def read(self) -> tuple[MemoryPool, ...]:
        """See `Meter`."""
        time.sleep(max(0.0, self.changed + _INTERVAL_SECONDS - time.monotonic()))
        gauges = read_gauges(self._place)
        pools = tuple(memory_pools(gauges)) if gauges is not None else ()
        if not pools:
            reason = "has no metrics of its memory" if gauges is not None else "does not answer"
            raise EnvironmentFault(
                f"{self._place} {reason}", remedy="name its --metrics-port (--metrics HOST:PORT), and see that it runs"
            )
        return pools


def memory_pools(gauges: Gauges) -> list[MemoryPool]:
    """Return host and GPU memory from a server's gauges (Triton server, docs/user_guide/metrics.md)."""
    cpu = ((HOST, "", "nv_cpu"),)
    uuids = sorted({gpu for name, gpu in gauges if name == "nv_gpu_memory_total_bytes"})
    gpus = [(f"gpu {number}", uuid, "nv_gpu") for number, uuid in enumerate(uuids)]
    return [
        MemoryPool(name=name, total_bytes=int(gauges[total, uuid]), used_bytes=int(gauges[used, uuid]))
        for name, uuid, prefix in (*cpu, *gpus)
        if (total := f"{prefix}_memory_total_bytes", uuid) in gauges
        and (used := f"{prefix}_memory_used_bytes", uuid) in gauges
    ]


class RemoteTriton(ExplicitTriton):
    """A running Triton server in explicit mode; arguments as for `ExplicitTriton`."""

    def __init__(self, releases: Sequence[CopiedRelease], meter: GaugeMeter, url: str, timeout_seconds: float) -> None:
        super().__init__(releases, meter, None, url=url, timeout_seconds=timeout_seconds)
        self._gauges = meter

    def name(self, number: int) -> str:
        """See `CopyServer`; a name that no foreign model uses."""
        return f"plansmith-{super().name(number)}"

    def remove(self, number: int) -> None:
        """See `CopyServer`; does nothing, as no files are on disk."""

    def load(self, number: int) -> None:
        """See `CopyServer`."""
        try:
            for model in self.models[number]:
                send(self.control, model)
        finally:
            self._gauges.changed = time.monotonic()

    def unload(self, number: int) -> None:
        """See `CopyServer`."""
        try:
            super().unload(number)
        finally:
            self._gauges.changed = time.monotonic()


def connect(models: Sequence[ServedModel], plan: CapacityPlan, url: str, metrics: str) -> RemoteTriton:
    """Connect to a running Triton server for copies, and check that it accepts them.

    Args:
        models: of releases.
        plan: how long loads may take.
        url: where it answers.
        metrics: `host:port` of its metrics; that of the default ports when empty.

    Raises:
        EnvironmentFault: it cannot be asked, loads no models, or has copies of another measurement.
        UsageError: a release cannot be sent.
    """
    releases = []
    for model in models:
        assert model.manifest is not None
        releases.append(CopiedRelease(model, load_target(model.manifest.target).device))
    address = read_address(url)
    server = RemoteTriton(
        releases, GaugeMeter(metrics or _metrics(address)), str(address), timeout_seconds=plan.timeout_seconds
    )
    server.control.require_control()
    for number, release in enumerate(releases, 1):
        name = server.name(number)
        for folder in release.copy(name):
            require_sendable(folder)
        if loaded_models(server.control, [name]):
            raise EnvironmentFault(
                f"the Triton at {url} has {name}: another measurement is running, or one was killed",
                remedy="wait for its end; or unload what is left (POST v2/repository/models/NAME/unload)",
            )
    with Connection(address, timeout_seconds=_ANSWER_SECONDS, headers={}) as connection:
        server.description = f"Triton {connection.server_version()} at {address}"
    server.notes.append(_NOTE)
    return server


def _metrics(address: Address) -> str:
    place = default_metrics(address)
    if not place:
        raise EnvironmentFault(
            f"nothing tells where the Triton at {address} has its metrics, and with them its memory",
            remedy="name its --metrics-port: --metrics HOST:PORT",
        )
    return place
