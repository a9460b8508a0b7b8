"""The service of `plansmith triggers serve`: what is wrong with it before it starts, and what works in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.service.service import ServiceConfig, ServiceFile
from plansmith.config.service.triggers import Rule, TriggersConfig
from plansmith.config.spec import Problem
from plansmith.errors import EnvironmentFault, PlansmithError, UsageError
from plansmith.flows.triggers.builder import Builder, spec_problems, targets_of
from plansmith.flows.triggers.worker import Worker
from plansmith.triggers.configuration import secret_problems
from plansmith.triggers.confirmation import Confirmation
from plansmith.triggers.pollers.factory import pollers_of
from plansmith.triggers.registries.parse import delivering
from plansmith.triggers.registries.rules import rule_of, rule_problems
from plansmith.triggers.rule_specs import shared_specs
from plansmith.triggers.serving import Service, worker_name
from plansmith.triggers.worker_loop import Count, WorkerContext
from plansmith.triggers.write_back.factory import writers_of

if TYPE_CHECKING:
    from plansmith.triggers.inbox.inbox import Inbox
    from plansmith.triggers.secrets import Secrets


def configuration_problems(file: ServiceFile, *, with_specs: bool) -> Iterator[Problem]:
    """What keeps rules from building anything, with its place in the file.

    Args:
        file: of the service, with the section `triggers`.
        with_specs: also what is wrong with the spec files of the rules, and their targets; the process works in the
            directory of the service.
    """
    assert file.config.triggers is not None
    idle = {one.rule: one.words for one in rule_problems(file.config.triggers) if one.is_idle}
    for number, words in idle.items():
        yield Problem(_keys(number), "wrong", f"triggers.{words}")
    for number, words in spec_problems(file.config) if with_specs else ():
        if number not in idle:
            yield Problem((*_keys(number), "spec"), "wrong", f"triggers.rules.{number}: {words}")


def configuration_cautions(config: TriggersConfig, secrets: Secrets) -> Iterator[str]:
    """What is allowed and may not be meant, in words."""
    yield from (f"triggers.{one.words}" for one in rule_problems(config) if not one.is_idle)
    yield from (f"triggers.{words}" for words in shared_specs(config))
    for name, one in delivering(config.registries).items():
        if not one.secrets:
            yield f"triggers.registries.{name} has no secrets: all that it sends is refused"
    yield from (f"triggers.registries.{words}" for words in secret_problems(config.registries, secrets.known))
    if secrets.awaited:
        names = ", ".join(sorted(secrets.awaited))
        yield f"not all secrets of {names} are known yet: {secrets.fault}"


@dataclass(frozen=True)
class PendingBuild:
    """What a rule would build of what a registry has now.

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
    """What rules would build of what each registry has now, and what is wrong with a registry, in words.

    Nothing is stored, no message is taken out of a queue, and a registry that does not answer is one of the faults.

    Args:
        config: of the service, with the section `triggers`.
        now: the Unix time.
    """
    assert config.triggers is not None
    builds: list[PendingBuild] = []
    faults: list[str] = []

    def tell(registry: str, words: str) -> None:
        faults.append(f"triggers.registries.{registry}: {words}")

    for name, poller in pollers_of(config.triggers, Path(config.directory), tell, listing_only=True).items():
        for caution in poller.cautions:
            tell(name, caution)
        try:
            events = [event for _ in range(poller.most_polls) for one in poller.poll(now) for event in one.events]
        except PlansmithError as error:
            tell(name, f"it cannot be asked: {error.message}")
            continue
        finally:
            poller.close()
        decided = [(event, rule_of(config.triggers.rules, event)) for event in dict.fromkeys(events)]
        builds += [PendingBuild(name, event.words, rule.spec, targets_of(rule)) for event, rule in decided if rule]
    return builds, faults


def workers_of(config: ServiceConfig, inbox: Inbox, api: str, number: int, tally: Count) -> list[Service]:
    """So many workers of an inbox, and where registries are told what came of builds, one that tells them.

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
    contexts = [WorkerContext(worker_name(one), inbox, triggers.retries, count=tally) for one in range(number + 1)]
    confirmation, writers = Confirmation(triggers, os.environ), writers_of(triggers.registries)
    if not api:
        from plansmith.flows.deploy.deployments import environment_of
        from plansmith.flows.triggers.local_runs import LocalRuns

        if writers:
            raise UsageError(
                f"write_back of {', '.join(writers)} needs Prefect, which remembers how builds ended",
                remedy="configure its API (prefect config set PREFECT_API_URL=…), or leave write_back out",
            )
        os.environ.update(environment_of(config))
        builder = Builder(config, LocalRuns(), confirmation)
        return [Worker(one, builder) for one in contexts[:number]]
    from plansmith.flows.triggers.triggered_runs import TriggeredRuns
    from plansmith.flows.triggers.write_back_worker import WriteBackWorker

    runs = TriggeredRuns(api)
    builder = Builder(config, runs, confirmation)
    workers: list[Service] = [Worker(one, builder, told=writers) for one in contexts[1:]]
    if writers:
        workers.append(WriteBackWorker(contexts[0], runs, writers, triggers.registries))
    return workers


def enter_directory(directory: str) -> None:
    """Work where the spec files of the rules start from.

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
    """What a rule waits for, in a few words."""
    value = f" {rule.value}" if rule.value != "*" else ""
    return f"{rule.model}: {rule.when}{value}"


def _keys(number: int) -> tuple[str, ...]:
    return ("triggers", "rules", str(number))
