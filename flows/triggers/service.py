"""Trigger service of `plansmith triggers serve`: checks before the start, and its running parts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from plansmith.config.service import ServiceConfig, ServiceFile
from plansmith.config.service_triggers import Rule, TriggersConfig
from plansmith.config.spec import Problem
from plansmith.errors import EnvironmentFault, PlansmithError, UsageError
from plansmith.flows.prefect_api.api import rooted
from plansmith.flows.runs.submitting import SubmittedRun
from plansmith.flows.triggers.builder import Blocked, Builder, Order, spec_problems, targets_of
from plansmith.flows.triggers.workers import Worker
from plansmith.records.model import Record
from plansmith.records.release import PublishedVersion, StepRecord
from plansmith.steps.compilation import Compilation
from plansmith.steps.runner import Listener
from plansmith.triggers.configuration import secret_problems, shared_specs
from plansmith.triggers.pollers.factory import pollers_of
from plansmith.triggers.registries.parse import delivering
from plansmith.triggers.registries.rules import rule_of, rule_problems
from plansmith.triggers.serving import Service, worker_name
from plansmith.triggers.watch import Confirmation
from plansmith.triggers.worker_loop import Count, WorkerContext, log_event
from plansmith.triggers.write_back import writers_of

if TYPE_CHECKING:
    from plansmith.triggers.inbox.inbox import Inbox
    from plansmith.triggers.secrets import Secrets


class LocalRuns:
    """Local runs: compiles in this process, one model at a time, with each step in the log.

    A compile that ends with a killed process goes on after its last finished step when its entry is taken up again;
    what is published already is found and not published twice.
    """

    are_inline = True

    def __init__(self) -> None:
        self._one_at_a_time = Lock()

    def start(
        self,
        order: Order,
        before: Collection[str],  # noqa: ARG002 - what was published before is found by its content
        is_so: Callable[[], bool] | None,
    ) -> SubmittedRun | Blocked | None:
        """Compile an order, and return when it is published; otherwise as `TriggeredRuns.start`.

        Raises:
            PlansmithError: as `Compilation.run`.
        """
        if is_so is not None and not is_so():
            return None
        request, base = order.request, order.request.folder.absolute()
        with self._one_at_a_time:
            listener = _LogListener(request.model, request.target)
            spec = rooted(request.spec, Path(request.directory).absolute())
            try:
                with Compilation(spec, relative_to=base, listener=listener) as compilation:
                    published, _ = compilation.run()
            except Exception:
                listener.end("failed")  # why stands in the line of the entry
                raise
            listener.end("unchanged" if published.unchanged else "published", published)
        place = f"{published.repository} version {published.version}"
        return SubmittedRun(uuid5(NAMESPACE_URL, order.key), request.model, place)


class _LogListener(Listener):
    """A listener that writes each step of a compile to the log.

    Args:
        model: its name.
        target: that it is compiled for.
    """

    def __init__(self, model: str, target: str) -> None:
        self._fields = {"model": model, "target": target}
        self._started = time.monotonic()
        log_event(logging.INFO, "compile", outcome="started", **self._fields)

    def waiting(self, step: str, text: str) -> None:
        log_event(logging.INFO, "step", step=step, outcome="waiting", reason=text, **self._fields)

    def result(self, record: Record) -> None:
        """Log nothing for a step's result: `finished` follows."""

    def finished(self, record: StepRecord) -> None:
        fields = {"step": record.name, "seconds": record.seconds, "cached": record.cached}
        log_event(logging.INFO, "step", outcome="finished", **fields, **self._fields)

    def notice(self, text: str) -> None:
        log_event(logging.WARNING, "notice", reason=text, **self._fields)

    def end(self, outcome: str, published: PublishedVersion | None = None) -> None:
        """Log the end of the compile, with the version where it succeeded."""
        fields: dict[str, object] = {"seconds": round(time.monotonic() - self._started, 3), **self._fields}
        if published is not None:
            fields |= {"version": published.version, "repository": str(published.repository)}
        log_event(logging.INFO if published else logging.ERROR, "compile", outcome=outcome, **fields)


def configuration_problems(file: ServiceFile, *, with_specs: bool) -> Iterator[Problem]:
    """Yield what keeps rules from building anything, with its location in the file.

    Args:
        file: of the service, with the section `triggers`.
        with_specs: also what is wrong with the spec files of the rules, and their targets; the process works in the
            directory of the service.
    """
    assert file.config.triggers is not None
    idle = {problem.rule: problem.message for problem in rule_problems(file.config.triggers) if problem.is_idle}
    for number, message in idle.items():
        yield Problem(_keys(number), "wrong", f"triggers.{message}")
    for number, message in spec_problems(file.config) if with_specs else ():
        if number not in idle:
            yield Problem((*_keys(number), "spec"), "wrong", f"triggers.rules.{number}: {message}")


def configuration_cautions(config: TriggersConfig, secrets: Secrets) -> Iterator[str]:
    """Yield warnings about settings that are allowed but may be unintended."""
    yield from (f"triggers.{item.message}" for item in rule_problems(config) if not item.is_idle)
    yield from (f"triggers.{message}" for message in shared_specs(config))
    for name, item in delivering(config.registries).items():
        if not item.secrets:
            yield f"triggers.registries.{name} has no secrets: all that it sends is refused"
    yield from (f"triggers.registries.{message}" for message in secret_problems(config.registries, secrets.by_registry))
    if secrets.awaited:
        names = ", ".join(sorted(secrets.awaited))
        yield f"not all secrets of {names} are known yet: {secrets.fault}"


@dataclass(frozen=True)
class PendingBuild:
    """What a rule would build from the current state of a registry.

    Args:
        registry: its name in the service's file.
        event: what happened there, in words.
        spec: the spec file.
        targets: that are built for.
    """

    registry: str
    event: str
    spec: str
    targets: tuple[str, ...]


def poll_once(config: ServiceConfig, now: float) -> tuple[list[PendingBuild], list[str]]:
    """Dry run: return what rules would build from each registry's current state, and the registries' errors.

    Nothing is stored, no message is taken out of a queue, and a registry that does not answer is one of the faults.

    Args:
        config: of the service, with the section `triggers`.
        now: the Unix time.
    """
    assert config.triggers is not None
    builds: list[PendingBuild] = []
    faults: list[str] = []

    def tell(registry: str, text: str) -> None:
        faults.append(f"triggers.registries.{registry}: {text}")

    for name, poller in pollers_of(config.triggers, Path(config.directory), tell, listing_only=True).items():
        for caution in poller.cautions:
            tell(name, caution)
        try:
            events = [
                event for _ in range(poller.most_polls) for delivery in poller.poll(now) for event in delivery.events
            ]
        except PlansmithError as error:
            tell(name, f"it cannot be asked: {error.message}")
            continue
        finally:
            poller.close()
        decided = [(event, rule_of(config.triggers.rules, event)) for event in dict.fromkeys(events)]
        builds += [PendingBuild(name, event.label, rule.spec, targets_of(rule)) for event, rule in decided if rule]
    return builds, faults


def workers_of(config: ServiceConfig, inbox: Inbox, api: str, number: int, tally: Count) -> list[Service]:
    """Return the workers of an inbox, with a write-back worker if registries get build results.

    Args:
        config: of the service, with the section `triggers`; the process works in its directory.
        inbox: that is worked off.
        api: the URL of the Prefect API that has the runs; empty to compile in this process.
        number: of workers.
        tally: counts what came of entries.

    Raises:
        UsageError: registries are to be told what came of builds, which only Prefect remembers.
    """
    triggers = config.triggers
    assert triggers is not None
    contexts = [WorkerContext(worker_name(item), inbox, triggers.retries, count=tally) for item in range(number + 1)]
    confirmation, writers = Confirmation(triggers, os.environ), writers_of(triggers.registries)
    if not api:
        from plansmith.flows.deploy.deployments import environment_of

        if writers:
            raise UsageError(
                f"write_back of {', '.join(writers)} needs Prefect, which remembers how builds ended",
                remedy="configure its API (prefect config set PREFECT_API_URL=…), or leave write_back out",
            )
        os.environ.update(environment_of(config))
        builder = Builder(config, LocalRuns(), confirmation)
        return [Worker(item, builder) for item in contexts[:number]]
    from plansmith.flows.triggers.builder import TriggeredRuns
    from plansmith.flows.triggers.workers import WriteBackWorker

    runs = TriggeredRuns(api)
    builder = Builder(config, runs, confirmation)
    workers: list[Service] = [Worker(item, builder, registries=writers) for item in contexts[1:]]
    if writers:
        workers.append(WriteBackWorker(contexts[0], runs, writers, triggers.registries))
    return workers


def enter_directory(directory: str) -> None:
    """Change to the directory that the rules' spec files are relative to.

    Raises:
        EnvironmentFault: that cannot be done.
    """
    try:
        os.chdir(directory)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot work in {directory}: {error.strerror}",
            remedy="make the folder, or write another `directory` into the file of the service",
        ) from error


def describe_rule(rule: Rule) -> str:
    """Describe the trigger of a rule."""
    value = f" {rule.value}" if rule.value != "*" else ""
    return f"{rule.model}: {rule.when}{value}"


def _keys(number: int) -> tuple[str, ...]:
    return ("triggers", "rules", str(number))
