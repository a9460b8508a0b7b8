"""`plansmith flows serve`: all flows of a service in one process, with their schedules, until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
from prefect.runner import Runner

from plansmith.config.service import FlowDeployment, ServiceConfig
from plansmith.errors import EnvironmentFault, UsageError, first_line
from plansmith.flows.deploy.automations import apply_automations, crash_silent_runs, require_blocks
from plansmith.flows.deploy.deploying import SLUG, own_deployment, remove_schedules, run_after_publication
from plansmith.flows.deploy.deployments import environment_of, service_tag
from plansmith.flows.prefect_api.api import CHANGING_RETRIES, asking, be_serving_process, load_flow, require_api
from plansmith.flows.prefect_api.patience import is_away
from plansmith.system.files import locked

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.deployments.runner import RunnerDeployment

_EXIT_SIGNALLED = 128
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.1
# For Prefect's runner to tell the server of a run that could not do so itself.
_REPORT_SECONDS = 1.0


class PatientRunner(Runner):
    """A Prefect runner that survives outages of the server.

    Prefect's own gives up after three questions without an answer (prefect/utilities/services.py,
    `critical_service_loop`), half a minute in which a server may well be started again; it leaves the runs that it has
    started to themselves then.

    Args:
        name: of the runner.
        tell: told once that the server is away, and once that it is there again.
    """

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        super().__init__(name=name)
        self._tell = tell

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # The runner has no public way to be told how patiently to ask for due runs, and, where it has lost the server's
        # events, for cancelled ones: without the second, what is cancelled would go on after an outage.
        for asks, name, tell in (
            (self._scheduled_run_poller, "_get_and_submit_flow_runs", self._tell),
            (self._cancelling_observer, "_check_for_cancelled_flow_runs", lambda _: None),
        ):
            setattr(asks, name, forgiving(getattr(asks, name), tell))
        return self

    def take_no_more(self) -> None:
        """Stop picking up runs; those in progress continue. Does nothing before the start.

        The attribute `stopping` of the runner itself is looked at by nobody while it polls.
        """
        poller = getattr(self, "_scheduled_run_poller", None)
        if poller is not None:
            poller.stopping = True


def forgiving(ask: Callable[..., Any], tell: Callable[[str], None]) -> Callable[..., Any]:
    """Wrap a server call so that it returns nothing, without an error, while the server is unavailable.

    Args:
        ask: the question.
        tell: told once that the server is away, and once that it is there again.
    """
    away = False

    @wraps(ask)
    async def attempt(*args: Any, **kwargs: Any) -> None:
        nonlocal away
        try:
            await ask(*args, **kwargs)
        except (httpx.HTTPError, RuntimeError) as error:
            if not is_away(error):
                raise
            if not away:
                away = True
                tell(f"the Prefect server is away ({first_line(error)}): nothing new is begun until it is there again")
            return
        if away:
            away = False
            tell("the Prefect server is there again")

    return attempt


def serve(
    config: ServiceConfig,
    deployments: Sequence[FlowDeployment],
    *,
    ready: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Register deployments and run what is due, each run in its own process; must be called in the main thread.

    It ends after Ctrl-C, and with SystemExit after SIGTERM: runs are ended and say so, and the schedules are paused
    until the next time. A server that goes away meanwhile is waited for.

    Args:
        config: the service; runs work in its directory.
        deployments: as `deployments_of` has them for one process.
        ready: called with the URL of the API when all are registered, and signals end it as they should.
        tell: told in words what is unusual.

    Raises:
        EnvironmentFault: there is no Prefect API, or the directory is not there.
        UsageError: a block that people are told through is not there, a deployment is somebody else's, or another
            process of this machine serves it; nothing was changed.
    """
    url = require_api()
    from prefect.settings import PREFECT_HOME

    # Each of two would take up half of the runs, and the first to end would pause the schedules of both.
    with locked(PREFECT_HOME.value() / "plansmith" / f"{config.name}.lock", partial(_refuse, config.name)):
        _serve(url, config, deployments, ready, tell)


def _refuse(service: str, process: int | None) -> None:
    raise UsageError(
        f"the service {service} is served by another process of this machine{f' ({process})' if process else ''}",
        remedy="end that one first, or let it go on",
    )


def _serve(
    url: str,
    config: ServiceConfig,
    deployments: Sequence[FlowDeployment],
    ready: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    try:
        os.chdir(config.directory)
    except OSError as error:
        raise EnvironmentFault(
            f"runs cannot work in {config.directory}: {error.strerror}",
            remedy="make the folder, or write another `directory` into the file of the service",
        ) from error
    with asking(url, retries=CHANGING_RETRIES) as client:
        _prepare(client, config, deployments, tell)
    be_serving_process()
    # Runs have the settings and the variables of this process.
    for name, value in environment_of(config).items():
        os.environ.setdefault(name, value)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: config.heartbeat_seconds}):
        runner = PatientRunner(f"{config.name}-{Path(config.directory).name}", tell)
        for deployment in deployments:
            runner.add_deployment(_served(deployment))
        with asking(url, retries=CHANGING_RETRIES) as client:
            remove_schedules(client, deployments)
            after_publication = run_after_publication(client, config, deployments)
            for _ in apply_automations(client, config, after_publication, dry_run=False):
                pass
        signal_number = asyncio.run(_until_told(runner, partial(ready, url), tell))
    if signal_number != signal.SIGINT:
        sys.exit(_EXIT_SIGNALLED + signal_number)


def _prepare(
    client: SyncPrefectClient, config: ServiceConfig, deployments: Sequence[FlowDeployment], tell: Callable[[str], None]
) -> None:
    """Check that the deployments are the service's and that its blocks exist; report deployments served elsewhere."""
    from prefect.client.schemas.objects import DeploymentStatus

    present = [own_deployment(client, config.name, deployment.label) for deployment in deployments]
    if any(existing is not None and existing.status == DeploymentStatus.READY for existing in present):
        tell(
            f"the service {config.name} was served a minute ago or less: where another machine still does so, each run"
            " is taken up by one of the two, in its own directory"
        )
    require_blocks(client, config)
    for name in crash_silent_runs(client, [service_tag(config.name)]):
        tell(f"{name} had not been heard of for too long, and counts as crashed now")


async def _until_told(runner: PatientRunner, ready: Callable[[], None], tell: Callable[[str], None]) -> int:
    """Run scheduled runs until a signal, and return it; a second signal ends it at once.

    Prefect's own handler kills the runs before they can say how they ended, and leaves the schedules on. The one that
    the command line has before raises SystemExit wherever it is called: in the callback of a weak reference, of which
    there are many here, Python prints and forgets it.
    """
    loop, signals = asyncio.get_running_loop(), asyncio.Queue[int]()
    serving = asyncio.create_task(runner.start())
    await asyncio.sleep(0)  # it sets Prefect's handler now
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    ready()
    first = asyncio.create_task(signals.get())
    await asyncio.wait({serving, first}, return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        first.cancel()
        await serving  # raises what ended it
        raise EnvironmentFault("Prefect's runner has ended by itself", remedy="see what it wrote, and start it again")
    runner.take_no_more()
    again = asyncio.create_task(signals.get())
    await asyncio.wait({asyncio.create_task(_end_runs()), again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        pass
    except (httpx.HTTPError, RuntimeError) as error:
        if not is_away(error):
            raise
        tell(f"the schedules could not be paused, as the Prefect server is away ({first_line(error)})")
    return first.result()


def _runs() -> set[int]:
    """The process ids of the flow runs that this process started and that are still running."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]  # the name may hold anything
            if int(parent) == os.getpid() and state != "Z":
                pids.add(int(stat.parent.name))
    return pids


async def _end_runs() -> None:
    """Request every run to end, which it reports to the server, and wait up to the limit."""
    previous: set[int] = set()
    for _ in range(int(_END_SECONDS / _LOOK_SECONDS)):
        running = _runs()
        if not running:
            break
        for process in running - previous:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        previous |= running
        await asyncio.sleep(_LOOK_SECONDS)
    if previous:
        await asyncio.sleep(_REPORT_SECONDS)


def _served(deployment: FlowDeployment) -> RunnerDeployment:
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    result: RunnerDeployment = load_flow(deployment.flow).to_deployment(
        name=deployment.name,
        description=deployment.description,
        tags=list(deployment.tags),
        parameters=deployment.parameters,
        paused=False,
        schedules=[
            Cron(each.cron, timezone=each.timezone, parameters=each.parameters, slug=SLUG + each.name)
            for each in deployment.schedules
        ],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return result
