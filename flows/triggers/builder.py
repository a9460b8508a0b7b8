"""Event builder: turns a registry event into compiles of the spec that the first matching rule names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from plansmith.config.loader import read_specs
from plansmith.config.service import SERVED, ServiceConfig
from plansmith.config.service_triggers import Rule
from plansmith.config.spec import NamedSpec, folder_of
from plansmith.config.targets import is_target_file, load_target
from plansmith.errors import EngineError, EnvironmentFault, UsageError
from plansmith.flows.deploy.deployments import find_deployment
from plansmith.flows.prefect_api.api import asking, fault_from
from plansmith.flows.runs.outcomes import Findings
from plansmith.flows.runs.submitting import (
    SubmittedRun,
    WantedCompile,
    check_parameters,
    newest_of,
    numbered,
    read_keyed,
    read_later,
    read_unfinished,
    run_group_of,
    submit,
    submitted_run,
)
from plansmith.records.release import SourceOverride
from plansmith.steps.cache.toolchain import whole_toolchain
from plansmith.system.digest import digest_of
from plansmith.triggers.configuration import spec_file
from plansmith.triggers.inbox.entry import InboxEntry, StartedRun
from plansmith.triggers.pollers.poller import is_wanted
from plansmith.triggers.registries.delivery import Event
from plansmith.triggers.registries.rules import require_allowed, rule_of

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

    from plansmith.flows.runs.submitting import RunEnded


TRIGGERED = "plansmith-trigger:"
"""Begins the keys of runs that events ask for."""

_HERE = "."
"""Where relative places start: the directory of the service, here and on each machine of a pool its own."""

_DROP = "plansmith triggers inbox drop ID --yes"


@dataclass(frozen=True)
class Order:
    """Build order: a compile to be run once.

    Args:
        request: what to compile.
        pool: the work pool that builds it.
        key: of what is built; two with the same key are one.
    """

    request: WantedCompile
    pool: str
    key: str


@dataclass(frozen=True)
class Blocked:
    """Order blocked by an active run of the same model, as versions are published in order of arrival."""

    run: SubmittedRun


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of an ended run.

    Args:
        run: how.
        findings: what it left beside that; nothing where it could not.
        is_last: no event has had another version of its model published since.
    """

    run: RunEnded
    findings: Findings
    is_last: bool = True


class TriggeredRuns:
    """Starts runs through a Prefect API, without retries of its own: the caller retries. Thread-safe.

    Args:
        shown: the URL of the API, from `configured_api`.
    """

    are_inline = False

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def start(
        self, order: Order, before: Collection[str], is_so: Callable[[], bool] | None
    ) -> SubmittedRun | Blocked | None:
        """Return the run of an order: the newest that was started for it, or else a new one.

        Args:
            order: what is to be built, and where.
            before: ids of runs that a person found wanting: where the newest run is one of these and ended without
                success, it is no answer, and the next one is started. Asked again with the same ids, that one is the
                answer.
            is_so: whether what the event told is still so, asked before something is started. A run after which another
                one of the model went well, or still may, is no answer then: what is served may be something else. None
                where what the event told stays so for good.

        Returns:
            the run; the one that it waits for; or None where the registry says otherwise.

        Raises:
            UsageError: its deployment takes no such parameters.
            EnvironmentFault: there is no deployment for it yet, or the API cannot be reached or does not answer as it
                should; or what `is_so` raises.
        """
        from plansmith.flows.runs.outcomes import tags_of

        compilation = order.request
        with self._asking() as client:
            number, newest = newest_of(partial(read_keyed, client), order.key)
            deployment = _deployment(client, order.pool)
            kin = run_group_of([*tags_of(compilation.model, compilation.target), *deployment.tags], deployment.id)
            others = [run for run in read_unfinished(client, kin) if newest is None or run.id != newest.id]
            is_answer = newest is not None and not _is_wanting(newest, before)
            # What has not ended may publish something else after it, too.
            if newest is not None and is_answer and (is_so is None or not (others or read_later(client, newest, kin))):
                return submitted_run(newest)
            if is_so is not None and not is_so():
                return None
            if others:
                return Blocked(submitted_run(others[0]))
            check_parameters(compilation, deployment)
            free = number if newest is None else number + 1
            return submit(client, compilation, deployment, numbered(order.key, free))

    def ended(self, run: str) -> RunOutcome | None:
        """Return how a run ended, with its findings; None while it is active or waiting.

        Args:
            run: its id.

        Raises:
            EnvironmentFault: the API cannot be reached, or does not answer as it should; or what the run left cannot be
                read.
        """
        from prefect.exceptions import ObjectNotFound

        from plansmith.flows.runs.outcomes import read_findings
        from plansmith.flows.runs.submitting import DELETED, RunEnded, ended_run

        number = UUID(run)
        with self._asking() as client:
            try:
                flow_run = client.read_flow_run(number)
            except ObjectNotFound:
                return RunOutcome(RunEnded(SubmittedRun(number, "", ""), DELETED, ""), Findings())
            if flow_run.state is None or not flow_run.state.is_final():
                return None
            ended, findings = ended_run(submitted_run(flow_run), flow_run.state), read_findings(number) or Findings()
            later = read_later(client, flow_run, run_group_of(flow_run.tags, flow_run.deployment_id))
            return RunOutcome(ended, findings, is_last=not any(_is_of_another_order(run, flow_run) for run in later))

    @contextmanager
    def _asking(self) -> Iterator[SyncPrefectClient]:
        try:
            with asking(self._shown, retries=0) as client:
                yield client
        except RuntimeError as error:
            from plansmith.flows.prefect_api.patience import is_away

            # Prefect's client says in one that there is no API.
            if not is_away(error):
                raise
            raise fault_from(error, self._shown) from error


def _is_of_another_order(run: FlowRun, than: FlowRun) -> bool:
    """Whether an event with other content triggered a run."""
    key = str(run.idempotency_key)
    return key.startswith(TRIGGERED) and key.rpartition(":")[0] != str(than.idempotency_key).rpartition(":")[0]


def _is_wanting(run: FlowRun, before: Collection[str]) -> bool:
    ended_badly = run.state is not None and run.state.is_final() and not run.state.is_completed()
    return ended_badly and str(run.id) in before


def _deployment(client: SyncPrefectClient, pool: str) -> DeploymentResponse:
    """The deployment of a pool, or the serving process's deployment where the pool has none.

    Raises:
        EnvironmentFault: there is none yet.
    """
    try:
        return find_deployment(client, pool)
    except UsageError as missing:
        try:
            return find_deployment(client, SERVED)
        except UsageError:
            raise EnvironmentFault(missing.message, remedy=missing.remedy) from None


class Runs(Protocol):
    """Run starter: starts each run once. Thread-safe.

    Attributes:
        are_inline: a run has ended when `start` returns.
    """

    are_inline: bool

    def start(
        self, order: Order, before: Collection[str], is_so: Callable[[], bool] | None
    ) -> SubmittedRun | Blocked | None:
        """As `TriggeredRuns.start`."""
        ...


@dataclass(frozen=True)
class BuildResult:
    """Result of building an entry, in addition to its runs.

    Args:
        behind: the address of a run that has to end first; the entry is to be tried again.
        is_denied: the registry says otherwise.
    """

    behind: str = ""
    is_denied: bool = False


class Builder:
    """Builder: turns inbox entries into runs. The working directory is the service's.

    Args:
        config: the service, with the section `triggers`.
        runs: starts them.
        is_so: whether what an event told is still so, as its registry says; None where it cannot say.
    """

    def __init__(self, config: ServiceConfig, runs: Runs, is_so: Callable[[Event], bool | None]) -> None:
        self._config = config
        self._runs = runs
        self._is_so = is_so
        self._toolchain = digest_of(whole_toolchain())

    @property
    def is_inline(self) -> bool:
        """Whether an entry is built completely, and not only started, when `build` returns."""
        return self._runs.are_inline

    def build(
        self, entry: InboxEntry, still_ours: Callable[[], bool], note: Callable[[StartedRun], None]
    ) -> BuildResult | None:
        """Start the runs of an entry, or find those already started for the same content.

        Args:
            entry: of the inbox. One that has runs already is asked for once more by a person.
            still_ours: asked before each run whether to go on.

            note: told of each run as soon as there is one, whatever becomes of the others.

        Returns:
            what became of it; None where it is somebody else's now.

        Raises:
            UsageError: the spec is wrong, or its deployment takes no such parameters.
            EnvironmentFault: there is no deployment for it yet, or Prefect or the registry cannot be asked.
        """
        behind, event = "", entry.event
        orders = orders_of(self._config, event, self._toolchain, event.at or entry.received_at.timestamp())
        if orders and event.is_revocable and not self._is_not_denied(event):
            return BuildResult(is_denied=True)
        is_so = partial(self._is_not_denied, event) if event.is_current else None
        for order in orders:
            if not still_ours():
                return None
            run = self._runs.start(order, {run.id for run in entry.runs}, is_so)
            if run is None:
                return BuildResult(is_denied=True)
            if isinstance(run, Blocked):
                behind = run.run.address or str(run.run.id)
            else:
                compilation = order.request
                note(
                    StartedRun(id=str(run.id), address=run.address, model=compilation.model, target=compilation.target)
                )
        return BuildResult(behind)

    def is_confirmed(self, event: Event) -> bool:
        """Whether a rule matches an event, and its registry confirms that it still holds.

        Raises:
            EnvironmentFault: the registry cannot be asked.
        """
        assert self._config.triggers is not None
        return is_wanted(self._config.triggers.rules, event) and self._is_so(event) is True

    def _is_not_denied(self, event: Event) -> bool:
        return self._is_so(event) is not False


def orders_of(config: ServiceConfig, event: Event, toolchain: str, at: float) -> tuple[Order, ...]:
    """Return the build orders of an event; none if no rule matches it.

    The key of each is made of content (the version in the registry, what the spec says, the target, and the tools), and
    of where it is built, as several services may have one Prefect server.

    Args:
        config: the service, with the section `triggers`.
        event: of a registry.
        toolchain: a digest of plansmith's code and tools.
        at: when it happened or else came, as a Unix time.

    Raises:
        UsageError: the spec cannot be read, or lists every problem in it; the event's source is not allowed, or nothing
            can be built of it; or the event is of another service's registry, where they share an inbox, or of one that
            the file had before.
    """
    assert config.triggers is not None
    if event.registry not in config.triggers.registries:
        raise UsageError(
            f"the file of the service has no registry {event.registry}, but {', '.join(config.triggers.registries)}",
            remedy="add it, or give each service an inbox of its own; then retry this entry, or drop it",
        )
    rule = rule_of(config.triggers.rules, event)
    if rule is None:
        return ()
    if event.wrong:
        raise UsageError(
            f"{event.model}, version {event.version}, cannot be built: {event.wrong}",
            remedy=f"register it anew as it should be; then drop this entry: {_DROP}",
        )
    require_allowed(config.triggers, event)
    pools = config.pool_of_target
    orders = []
    for entry in _specs(rule, event.source):
        compilation = _make_compile(Path(rule.spec), entry, event)
        pool = pools.get(compilation.target, pools[""])
        key = digest_of([config.name, pool, event.content_key, compilation.parameters, compilation.target, toolchain])
        orders.append(Order(_with_override(compilation, entry.spec.source, event, at), pool, f"{TRIGGERED}{key}"))
    return tuple(orders)


def spec_problems(config: ServiceConfig) -> Iterator[tuple[int, str]]:
    """Yield the numbers of rules with an invalid spec or a missing target, and the problem."""
    assert config.triggers is not None
    for number, rule in enumerate(config.triggers.rules):
        try:
            targets = {entry.spec.target for entry in _specs(rule, "")}
            for target in sorted(targets):
                if not is_target_file(target):  # which the machines that build may have alone
                    load_target(target)
        except UsageError as error:
            yield number, error.message
        except EngineError as error:
            yield number, f"{error.message} ({error.remedy})" if error.remedy else error.message


def targets_of(rule: Rule) -> tuple[str, ...]:
    """Return the targets of a rule's spec, by folder name; none if the spec is unreadable."""
    try:
        return tuple(entry.target or folder_of(entry.spec.target) for entry in _specs(rule, ""))
    except UsageError:
        return ()


def _specs(rule: Rule, source: str) -> list[NamedSpec]:
    """The models of a rule's spec, one per target; where an event names a source, all must share one."""
    models = read_specs(spec_file(rule), {"target": list(rule.targets)} if rule.targets else {}).models
    own = sorted({entry.spec.source for entry in models})
    if source and len(own) > 1:
        raise UsageError(
            f"{rule.spec} has models of several sources ({', '.join(own)}), and an event tells of one",
            remedy="give each source a spec file and a rule of its own",
        )
    return list(models)


def _make_compile(path: Path, entry: NamedSpec, event: Event) -> WantedCompile:
    """The compile for an event, under the name of the spec's own source: versions are releases of that."""
    update = {"source": event.source, "name": entry.name} if event.source else {}
    target = entry.target or folder_of(entry.spec.target)
    spec = entry.spec.model_copy(update=update)
    return WantedCompile(model=entry.name, target=target, spec=spec, folder=path.parent, directory=_HERE)


def _with_override(compilation: WantedCompile, own: str, event: Event, at: float) -> WantedCompile:
    """A compile that records that, and when, an event replaced the spec's source."""
    if compilation.spec.source == own:
        return compilation
    override = SourceOverride(replaces=own, is_tracked=own in event.tracking_sources, at=at)
    return replace(compilation, spec=compilation.spec.model_copy(update={"source_override": override}))
