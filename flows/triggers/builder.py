"""What an event of a registry becomes: compiles of the spec that the first matching rule names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from plansmith.config.loader import read_specs
from plansmith.config.multi_target import NamedSpec, folder_of
from plansmith.config.service.service import ServiceConfig
from plansmith.config.service.triggers import Rule
from plansmith.config.target.targets import is_target_file, load_target
from plansmith.errors import EngineError, UsageError
from plansmith.flows.runs.submitting import SubmittedRun, WantedCompile
from plansmith.flows.triggers.triggered_runs import TRIGGERED, Blocked, Order
from plansmith.records.fingerprint import SourceOverride
from plansmith.steps.cache.toolchain import whole_toolchain
from plansmith.system.digest import digest_of
from plansmith.triggers.inbox.entry import InboxEntry, StartedRun
from plansmith.triggers.pollers.poller import is_wanted
from plansmith.triggers.registries.allowed_sources import require_allowed
from plansmith.triggers.registries.event import Event
from plansmith.triggers.registries.rules import rule_of
from plansmith.triggers.rule_specs import spec_file

_HERE = "."
"""Where relative places start: the directory of the service, here and on each machine of a pool its own."""


_DROP = "plansmith triggers inbox drop ID --yes"


class Runs(Protocol):
    """Starts runs, each once; may be called from several threads.

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
    """What became of an entry, beside its runs.

    Args:
        behind: the address of a run that has to end first; the entry is to be tried again.
        is_denied: the registry says otherwise.
    """

    behind: str = ""
    is_denied: bool = False


class Builder:
    """Turns entries of the inbox into runs. The process works in the directory of the service.

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
        """Whether an entry is built, and not only begun, when `build` returns."""
        return self._runs.are_inline

    def build(
        self, entry: InboxEntry, still_ours: Callable[[], bool], note: Callable[[StartedRun], None]
    ) -> BuildResult | None:
        """Start the runs of an entry, or find those that were started for the same content before.

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
                what = order.wanted
                note(StartedRun(id=str(run.id), address=run.address, model=what.model, target=what.target))
        return BuildResult(behind)

    def is_confirmed(self, event: Event) -> bool:
        """Whether a rule wants an event, and its registry says that what it told is still so.

        Raises:
            EnvironmentFault: the registry cannot be asked.
        """
        assert self._config.triggers is not None
        return is_wanted(self._config.triggers.rules, event) and self._is_so(event) is True

    def _is_not_denied(self, event: Event) -> bool:
        return self._is_so(event) is not False


def orders_of(config: ServiceConfig, event: Event, toolchain: str, at: float) -> tuple[Order, ...]:
    """What is to be built of an event, none where no rule wants it.

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
    for one in _specs(rule, event.source):
        wanted = _wanted(Path(rule.spec), one, event)
        pool = pools.get(wanted.target, pools[""])
        key = digest_of([config.name, pool, event.content_key, wanted.parameters, wanted.target, toolchain])
        orders.append(Order(_with_override(wanted, one.spec.source, event, at), pool, f"{TRIGGERED}{key}"))
    return tuple(orders)


def spec_problems(config: ServiceConfig) -> Iterator[tuple[int, str]]:
    """The numbers of rules that name a spec that cannot be read as it is, or an absent target, and what is wrong."""
    assert config.triggers is not None
    for number, rule in enumerate(config.triggers.rules):
        try:
            targets = {one.spec.target for one in _specs(rule, "")}
            for target in sorted(targets):
                if not is_target_file(target):  # which the machines that build may have alone
                    load_target(target)
        except UsageError as error:
            yield number, error.message
        except EngineError as error:
            yield number, f"{error.message} ({error.remedy})" if error.remedy else error.message


def targets_of(rule: Rule) -> tuple[str, ...]:
    """The targets that a rule's spec is built for, as folders are called; none where the spec cannot be read."""
    try:
        return tuple(one.target or folder_of(one.spec.target) for one in _specs(rule, ""))
    except UsageError:
        return ()


def _specs(rule: Rule, source: str) -> list[NamedSpec]:
    """The models of a rule's spec, each for one target; where an event names a source, all have one in common."""
    models = read_specs(spec_file(rule), {"target": list(rule.targets)} if rule.targets else {}).models
    own = sorted({one.spec.source for one in models})
    if source and len(own) > 1:
        raise UsageError(
            f"{rule.spec} has models of several sources ({', '.join(own)}), and an event tells of one",
            remedy="give each source a spec file and a rule of its own",
        )
    return list(models)


def _wanted(path: Path, one: NamedSpec, event: Event) -> WantedCompile:
    """A compile of what an event tells, under the name that the spec's own source has: versions are its releases."""
    update = {"source": event.source, "name": one.name} if event.source else {}
    target = one.target or folder_of(one.spec.target)
    spec = one.spec.model_copy(update=update)
    return WantedCompile(model=one.name, target=target, spec=spec, folder=path.parent, directory=_HERE)


def _with_override(wanted: WantedCompile, own: str, event: Event, at: float) -> WantedCompile:
    """A compile that knows that an event set its source in place of the spec's own, and when."""
    if wanted.spec.source == own:
        return wanted
    override = SourceOverride(replaces=own, is_tracked=own in event.tracking_sources, at=at)
    return replace(wanted, spec=wanted.spec.model_copy(update={"source_override": override}))
