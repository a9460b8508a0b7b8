"""Client processes of a load test on other machines: the driver's options, and the worker's command."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.cli.loadtest.plan import RequestedTest
    from plansmith.cli.loadtest.target import RequestedTarget
    from plansmith.loadtest.runner.workers import RemoteWorkers


def read_workers(target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any]) -> RemoteWorkers | None:
    """The workers on other machines for which the test waits; None for none.

    Raises:
        UsageError: options that contradict each other, or a server that workers cannot reach.
    """
    from plansmith.loadtest.runner.workers import RemoteWorkers, read_place

    count = options["expect_workers"]
    if count is None:
        if options["listen"]:
            raise UsageError("--listen goes with --expect-workers", remedy="say how many: --expect-workers 3")
        return None
    if not target.label:
        raise UsageError(
            "a Triton that is started for the test answers on this machine alone, and workers are on others",
            remedy="serve the model where they reach it (plansmith serve), and name its --url",
        )
    if test.plan.processes > 1:
        raise UsageError(
            "the load comes from the workers, and --processes from this machine",
            remedy="leave it out here, and pass it to the workers: plansmith loadtest --worker HOST:PORT --processes 4",
        )
    if not options["listen"]:
        return RemoteWorkers(count=count)
    host, port = read_place(options["listen"], "--listen")
    return RemoteWorkers(count=count, host=host, port=port)


def show_workers(workers: RemoteWorkers | None, *, quiet: bool) -> None:
    """Say for whom the test waits, and what to type there."""
    if workers is not None and not quiet:
        click.echo(
            f"waiting for {workers.count} worker{'s' * (workers.count > 1)} at {workers.host}:{workers.port}; on the"
            f" other machines: plansmith loadtest --worker HOST:{workers.port}",
            err=True,
        )


def run_worker(models: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Be a worker of the test of another machine until that ends.

    Raises:
        UsageError: models, or no address.
        EnvironmentFault: the driver is not reached, or is lost.
    """
    from plansmith.loadtest.runner.run import require_locust
    from plansmith.loadtest.runner.workers import read_place, run_workers

    if models or options["expect_workers"] or options["plan"] is not None:
        raise UsageError(
            "a worker gets models and load from the machine that leads the test", remedy="pass --worker alone"
        )
    require_locust()
    host, port = read_place(options["worker"], "--worker")
    quiet = options["quiet"]
    with terminable():
        run_workers(
            host, port, options["processes"] or 1, progress=lambda line: None if quiet else click.echo(line, err=True)
        )


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM counts as Ctrl-C within the block: what was measured is reported."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
