"""Which models of a fleet are built, and why: what each would be made from now, beside what its version was made from.

Nothing is compiled, imported or fetched for it, and nothing of a spec is kept but its plan: a thousand models with
nothing to do take seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plansmith.config.source_reference import parse_reference
from plansmith.config.target.targets import name_of
from plansmith.errors import PlansmithError, RepositoryError, UsageError
from plansmith.fleet.members import Member, Unread, members_of
from plansmith.fleet.rebuild_reasons import differences
from plansmith.fleet.records import PlannedModel, failure_of
from plansmith.fleet.remote_versions import Stores
from plansmith.records.fingerprint import Fingerprint, Reason
from plansmith.steps.provenance.fingerprint import Hub, fingerprint_of, target_digest, with_overridden_source
from plansmith.system.digest import Digester
from plansmith.triton.repository.release import lacking_file
from plansmith.triton.repository.repository import ModelRepository

_MOST_NAMED = 12
_MUST = {"forced", "release"}
"""Reasons that no version elsewhere does away with."""


def plan_fleet(
    places: Sequence[Path],
    overrides: Mapping[str, Any],
    *,
    models: Sequence[str] = (),
    resolve: bool = False,
    force: bool = False,
    refuse_unknown: bool = False,
    elsewhere: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[PlannedModel]:
    """Plan the models of a fleet, in the order of their files; one that cannot be planned is refused by itself.

    A place that holds no spec, and a file that cannot be read, are refused under no model's name; where models are
    named they are told, as nobody knows whether they are meant.

    Args:
        places: spec files, and folders that hold some.
        overrides: values for every model, as a command line gives them.
        models: names of the models to plan; all where there are none.
        resolve: ask the hub for the commits of branches, and stores whether they still have what was published there.
        force: build every model.
        refuse_unknown: refuse a name in `models` that no spec has by itself, and plan the others.
        elsewhere: models are built on other machines, whose repositories may be others: a version that a store of the
            spec has counts as one that is here.
        tell: told what could not be asked or read, in a line.

    Raises:
        UsageError: there is no model of a name in `models`.
    """
    stores = Stores(tell)
    planner = Planner(
        Hub(ask=resolve, notice=tell),
        force=force,
        destinations=stores if resolve else None,
        elsewhere=stores if elsewhere else None,
    )
    planned: list[PlannedModel] = []
    places_of: dict[tuple[str, str], list[int]] = {}
    unread: list[PlannedModel] = []
    known: set[str] = set()
    for member in members_of(places, overrides):
        if isinstance(member, Unread):
            refused = PlannedModel(
                model="", target="", file=str(member.file), state="refused", failure=failure_of(member.error)
            )
            unread.append(refused)
            if not models:
                planned.append(refused)
            continue
        known.add(member.name)
        if models and member.name not in models:
            continue
        places_of.setdefault((member.name, os.path.realpath(member.repository)), []).append(len(planned))
        planned.append(planner.plan(member))
    for (_, repository), numbers in places_of.items():
        if len(numbers) > 1:
            _refuse(planned, numbers, repository)
    if unknown := [model for model in models if model not in known]:
        if not refuse_unknown:
            raise _unknown(unknown, known, unread)
        planned += [_refused_name(model, places, _unknown([model], known, unread)) for model in unknown]
    if models:
        for one in unread:
            tell(f"{one.why}; whether it has one of the models that are named, nobody knows")
    return iter(planned)


class Planner:
    """Plans the models of one fleet; what many of them have in common is looked at once.

    Args:
        hub: says at which commit branches are.
        force: build every model, whatever is the case.
        destinations: say whether they still have what was published there; when None, they do.
        elsewhere: the stores by which other machines tell what they built; when None, the repository alone counts.
    """

    def __init__(
        self, hub: Hub, *, force: bool, destinations: Stores | None = None, elsewhere: Stores | None = None
    ) -> None:
        self._hub = hub
        self._force = force
        self._destinations = destinations
        self._elsewhere = elsewhere
        self._taking: set[tuple[Path, str]] = set()
        """Repositories that take releases for a target: each is searched for others in it, a folder at a time."""

    def plan(self, member: Member) -> PlannedModel:
        """Plan one model; what is wrong with it stands in the plan."""
        found: dict[str, Any] = {
            "model": member.name,
            "target": member.target,
            "file": str(member.file),
            "repository": str(member.repository),
            "artifacts": str(Path(member.spec.artifacts).absolute()),
        }
        try:
            repository = ModelRepository(member.repository)
            self._require_target(repository, name_of(member.spec.target))
            found["version"] = repository.leading(member.name)
            noted = _noted(member.name, repository, found["version"])
            overridden = _overridden(member, noted)
            reasons = tuple(self._reasons(overridden, repository, noted))
            if self._elsewhere is not None and not _MUST.intersection(reason.cause for reason in reasons):
                overridden, reasons = self._reasons_elsewhere(member, overridden, reasons, self._elsewhere)
            if overridden.spec.source_override is not None:
                found |= {"source": overridden.spec.source, "source_override": overridden.spec.source_override}
        except (PlansmithError, OSError) as error:
            return PlannedModel(**found, state="refused", failure=failure_of(error))
        return PlannedModel(**found, state="stale" if reasons else "fresh", reasons=reasons)

    def _require_target(self, repository: ModelRepository, target: str) -> None:
        """Whether there is such a target comes first: a repository only knows that it belongs to another."""
        if (repository.root, target) not in self._taking:
            target_digest(target)
            repository.require_target(target)
            self._taking.add((repository.root, target))

    def _reasons(self, member: Member, repository: ModelRepository, then: Fingerprint | Reason) -> Iterator[Reason]:
        """Why a model is built; nothing where there is nothing to do.

        Raises:
            PlansmithError: it cannot be planned: its source, its data or its target are not there.
        """
        if self._force or member.spec.force:
            yield Reason(cause="forced", words="it was asked for (force)")
        base = member.file.parent
        if isinstance(then, Reason):
            # Whether it can be built at all is looked at all the same, as far as that costs nothing.
            parse_reference(member.spec.source, relative_to=base)
            target_digest(member.spec.target)
            yield then
            return
        yield from _faults(member.name, repository, then.version)
        now = fingerprint_of(member.spec, relative_to=base, digester=_digester(member), hub=self._hub, known=then)
        yield from differences(then, now)
        lost = list(self._destinations.lost(member, then)) if self._destinations is not None else []
        if lost:
            yield Reason(cause="destination", words=f"no longer in {', '.join(lost)}")

    def _reasons_elsewhere(
        self, member: Member, overridden: Member, reasons: tuple[Reason, ...], stores: Stores
    ) -> tuple[Member, tuple[Reason, ...]]:
        """The model and the reasons that are left where another machine may have built it, as its stores tell."""
        then = stores.basis(member) if reasons else None
        if then is None:
            return overridden, reasons
        overridden = _overridden(member, then)
        base = member.file.parent
        now = fingerprint_of(overridden.spec, relative_to=base, digester=_digester(member), hub=self._hub, known=then)
        return overridden, tuple(differences(then, now))


def _overridden(member: Member, then: Fingerprint | Reason) -> Member:
    """The model with the source that an event set for its newest version, where that still counts."""
    return member if isinstance(then, Reason) else replace(member, spec=with_overridden_source(member.spec, then))


def _noted(model: str, repository: ModelRepository, version: int | None) -> Fingerprint | Reason:
    """What the newest version was made from, or the reason to build it where nobody knows."""
    try:
        noted = repository.basis(model)
    except RepositoryError as error:
        return Reason(cause="new", words=f"nobody knows what its newest version was made from: {error.message}")
    if noted is None and version is None:
        return Reason(cause="new", words="there is no version of it yet")
    if noted is None or (version is not None and noted.version < version):
        return Reason(cause="new", words=f"what version {version} was made from was not noted")
    return noted


def _faults(model: str, repository: ModelRepository, version: int) -> Iterator[Reason]:
    """What is wrong with the version that was made: it is gone, not whole or not shown.

    One that was withdrawn is not made again for that: the same would come of the same, and somebody took it back.
    """
    if repository.withdrawals(model).reason(version) is not None:
        return
    release = repository.release(model, version)
    if not release.is_dir():
        yield Reason(cause="release", words=f"version {version} is gone")
    elif (lacking := lacking_file(release)) is not None:
        yield Reason(cause="release", words=f"version {version} is damaged ({lacking})")
    elif version not in repository.views(model).shown():
        yield Reason(cause="release", words=f"Triton is not shown version {version}")


def _digester(member: Member) -> Digester:
    """With the memo of the model's compiles; one that is not there is not made for a look."""
    cache = Path(member.spec.artifacts).absolute() / "cache"
    return Digester(cache / "digests.sqlite", read_only=not cache.is_dir())


def _unknown(models: Sequence[str], known: set[str], unread: Sequence[PlannedModel]) -> UsageError:
    named = sorted(known)
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    there = f"there are {', '.join(named[:_MOST_NAMED])}{more}" if named else "there is none"
    failed = f"; {len(unread)} file(s) cannot be read, such as {unread[0].file}" if unread else ""
    return UsageError(f"no spec has a model {', '.join(map(repr, models))}", remedy=f"{there}{failed}")


def _refused_name(model: str, places: Sequence[Path], error: UsageError) -> PlannedModel:
    """Of a name that no spec has, the places stand for its file."""
    files = ", ".join(str(place.absolute()) for place in places)
    return PlannedModel(model=model, target="", file=files, state="refused", failure=failure_of(error))


def _refuse(planned: list[PlannedModel], numbers: Sequence[int], repository: str) -> None:
    """Refuse models that would be versions of one another."""
    files = " and ".join(dict.fromkeys(planned[number].file for number in numbers))
    for number in numbers:
        error = UsageError(
            f"{files} each have a model {planned[number].model!r}, in the same repository, {repository}",
            remedy="give each a `name` or a `repository` of its own",
        )
        planned[number] = planned[number].model_copy(
            update={"state": "refused", "reasons": (), "failure": failure_of(error)}
        )
