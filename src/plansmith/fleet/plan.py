"""Fleet plan: which models are built and why, by comparing current inputs with those of the published version.

Nothing is compiled, imported or fetched for it, and nothing of a spec is kept but its plan: a thousand models with
nothing to do take seconds.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from plansmith.config.source_reference import parse_reference
from plansmith.config.targets import name_of
from plansmith.errors import PlansmithError, RepositoryError, UsageError
from plansmith.fleet.members import Member, Unread, members_of
from plansmith.fleet.records import PlannedModel, failure_of
from plansmith.formatting import count, suggest_names
from plansmith.records.destination import Destination
from plansmith.records.release import Fingerprint, Reason
from plansmith.steps.provenance.fingerprint import (
    CODE_OF,
    STANDING_IN,
    Hub,
    describe_destination,
    fingerprint_of,
    target_digest,
    with_overridden_source,
)
from plansmith.stores.reader import read_fingerprint
from plansmith.stores.store import Store, open_store
from plansmith.system.digest import Digester
from plansmith.triton.repository.release import lacking_file
from plansmith.triton.repository.repository import ModelRepository

_MOST_NAMED_CHANGES = 6
_COMMIT_LETTERS = 7
_LABEL = re.compile(r"\+[A-Za-z0-9.]+")

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 60, 60

R = TypeVar("R")
_MUST = {"forced", "release"}
"""Reasons that no version elsewhere does away with."""


def differences(then: Fingerprint, now: Fingerprint) -> Iterator[Reason]:
    """Return the differences; values unknown here (empty) count as unchanged.

    Another spec, source or target may go through steps, and need libraries, that the newest version was made without:
    no such tool changed.

    Args:
        then: what the newest version was made from.
        now: what it would be made from.
    """
    changed = list(_changed_wishes(then, now))
    yield from changed
    yield from _changed_tools(_tools_beside(then, now) if changed else then.tools, now.tools)
    yield from _changed_beside(then, now)
    absent = [place for place in now.destinations if place not in then.destinations]
    if absent:
        yield Reason(cause="destination", words=f"not yet in {_listed(absent)}")


def _changed_wishes(then: Fingerprint, now: Fingerprint) -> Iterator[Reason]:
    """Yield changes that a user, or the hub, made."""
    if then.spec != now.spec:
        yield Reason(cause="spec", words=f"spec: {_listed(list(_changed_values(then.spec, now.spec)))}")
    if now.source and then.source != now.source:
        yield Reason(cause="source", words="the files of the model changed")
    if now.revision and then.revision != now.revision:
        yield Reason(cause="source", words=f"{now.hub_id} {_moved(then.revision, now.revision)}")
    if now.data and then.data != now.data:
        yield Reason(cause="data", words=_changed_data(then, now))
    if then.target != now.target:
        yield Reason(cause="target", words="the description of the target changed")


def _changed_beside(then: Fingerprint, now: Fingerprint) -> Iterator[Reason]:
    """Yield changes of companion models, except in the spec, which is compared as a whole."""
    common = set(_changed_tools(then.tools, now.tools))
    for name, current in now.beside.items():
        for reason in differences(then.beside.get(name, current), current):
            if reason.cause in {"source", "data"} or (reason.cause == "tools" and reason not in common):
                yield reason.model_copy(update={"words": f"{name}: {reason.words}"})


def _changed_values(then: Any, now: Any, keys: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every value that differs, by key path."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*then, *now)):
            if then.get(key, _Absent) != now.get(key, _Absent):
                yield from _changed_values(then.get(key, _Absent), now.get(key, _Absent), (*keys, key))
    else:
        yield f"{'.'.join(keys)} {_describe(then)} -> {_describe(now)}"


class _Absent:
    """Sentinel for an absent value."""


def _describe(value: Any) -> str:
    if value is _Absent or value is None or value == "":
        return "nothing"
    return value if isinstance(value, str) and len(value) <= _SHORT.maxstring else _SHORT.repr(value)


def _moved(then: str, now: str) -> str:
    """Format two commits of a hub, each with its branch if not the default one; or two versions."""
    kind = "version " if now.isdigit() else ""
    before, after = (f"{kind}{commit.rpartition('@')[2][:_COMMIT_LETTERS]}" for commit in (then, now))
    return f"is now at {after}{f' instead of {before}' if then else ''}"


def _changed_data(then: Fingerprint, now: Fingerprint) -> str:
    """Describe changed data: for a hub data set by its commits, as digests are not readable."""
    settings = now.spec.get("data") or {}
    if settings.get("dataset"):
        return f"the data set {settings['dataset']} {_moved(then.data, now.data)}"
    return "the code of the data's entry point changed" if settings.get("entry_point") else "the data changed"


def _changed_tools(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Reason]:
    """Yield changed tools: distributions by version, and plansmith's own code by step."""
    changed = [name for name, version in now.items() if _is_another(then.get(name), version)]
    versions = [f"{name} {then.get(name) or 'none'} -> {now[name]}" for name in changed if not name.startswith(CODE_OF)]
    steps = [name.removeprefix(CODE_OF) for name in changed if name.startswith(CODE_OF)]
    if versions:
        yield Reason(cause="tools", words=_listed(versions))
    if steps:
        yield Reason(cause="tools", words=f"plansmith's own code changed ({', '.join(steps)})")


def _tools_beside(then: Fingerprint, now: Fingerprint) -> dict[str, str]:
    """Return the former tools if more than tools changed: those not used then are no change (empty).

    Of another engine, or another kind of source, steps with the same names are other code.
    """
    is_other_way = _way(then.spec) != _way(now.spec)
    return {
        name: "" if is_other_way and name.startswith(CODE_OF) else then.tools.get(name, "")
        for name in (*then.tools, *now.tools)
    }


def _way(spec: Mapping[str, Any]) -> tuple[str, str]:
    return str(spec.get("engine")), str(spec.get("source")).partition(":")[0]


def _is_another(then: str | None, now: str) -> bool:
    """Whether a tool changed in a way that may affect the result.

    Whoever plans may be another machine than the one that compiled. What is not here tells nothing. What the compile
    did without (empty) had no part in its result. One release of a library is there in several builds, told apart by a
    local label (PEP 440: 2.9.1+cpu, 2.9.1+cu130). And a stand-in takes nothing back that a real server has checked.

    Args:
        then: its version at the compile; None where the compile had no use for it.
        now: its version here.
    """
    if not now or then == "" or (now.endswith(STANDING_IN) and then and not then.endswith(STANDING_IN)):
        return False
    return then is None or _LABEL.sub("", then) != _LABEL.sub("", now)


def _listed(phrases: Sequence[str]) -> str:
    more = len(phrases) - _MOST_NAMED_CHANGES
    return ", ".join(phrases[:_MOST_NAMED_CHANGES]) + (f" and {more} more" if more > 0 else "")


class Stores:
    """Stores of a fleet: reports an unreachable store and does not query it again.

    Args:
        notice: told of those, in a line.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._open: dict[tuple[Destination, Path], Store] = {}
        self._silent: set[str] = set()

    def basis(self, member: Member) -> Fingerprint | None:
        """Return the basis of a model's release in any of its stores; None if no store has it.

        Whether it is in all of them, its destinations tell.
        """
        for destination in member.spec.publish:
            fingerprint = self._query(member, destination, lambda store: read_fingerprint(store, member.name))
            if fingerprint is not None:
                return fingerprint
        return None

    def lost(self, member: Member, noted: Fingerprint) -> Iterator[str]:
        """Return the formatted destinations that a release was published to and that no longer have it.

        A version that was pruned is known: somebody gave it up.

        Args:
            member: the model.
            noted: what its newest version was made from, and where it went.
        """
        for destination in member.spec.publish:
            description = describe_destination(destination, member.file.parent)
            digests = self._query(member, destination, lambda store: _digests(store, member.name))
            digest = noted.stored.get(description)
            if (
                digests is not None
                and description in noted.destinations
                and (digest not in digests if digest else not digests)
            ):
                yield description

    def _query(self, member: Member, destination: Destination, ask: Callable[[Store], R]) -> R | None:
        """Return the response of a store; None if it is unreachable."""
        base = member.file.parent
        place = describe_destination(destination, base)
        if place in self._silent:
            return None
        try:
            if (destination, base) not in self._open:
                self._open[destination, base] = open_store(destination, base)
            return ask(self._open[destination, base])
        except (PlansmithError, OSError) as error:
            self._silent.add(place)
            reason = error.message if isinstance(error, PlansmithError) else str(error)
            self._notice(f"{place} was not asked what it has: {reason}; what is noted here stands")
            return None


def _digests(store: Store, model: str) -> set[str]:
    """Return the digests of all versions that a store has or had."""
    catalogue = store.find_catalogue(model)
    versions = catalogue.versions if catalogue is not None else ()
    return {digest for version in versions for digest in version.digests}


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
    """Plan the models of a fleet in file order; a model that cannot be planned is refused individually.

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
    names: set[str] = set()
    for member in members_of(places, overrides):
        if isinstance(member, Unread):
            refused = PlannedModel(
                model="", target="", file=str(member.file), state="refused", failure=failure_of(member.error)
            )
            unread.append(refused)
            if not models:
                planned.append(refused)
            continue
        names.add(member.name)
        if models and member.name not in models:
            continue
        places_of.setdefault((member.name, os.path.realpath(member.repository)), []).append(len(planned))
        planned.append(planner.plan(member))
    for (_, repository), numbers in places_of.items():
        if len(numbers) > 1:
            _refuse(planned, numbers, repository)
    if unknown := [model for model in models if model not in names]:
        if not refuse_unknown:
            raise _unknown(unknown, names, unread)
        planned += [_refused_name(model, places, _unknown([model], names, unread)) for model in unknown]
    if models:
        for entry in unread:
            tell(f"{entry.why}; whether it has one of the models that are named, nobody knows")
    return iter(planned)


class Planner:
    """Fleet planner; shared facts are computed once.

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
        """Plan one model; problems are recorded in the plan."""
        fields: dict[str, Any] = {
            "model": member.name,
            "target": member.target,
            "file": str(member.file),
            "repository": str(member.repository),
            "artifacts": str(Path(member.spec.artifacts).absolute()),
        }
        try:
            repository = ModelRepository(member.repository)
            self._require_target(repository, name_of(member.spec.target))
            fields["version"] = repository.leading(member.name)
            noted = _noted(member.name, repository, fields["version"])
            overridden = _overridden(member, noted)
            reasons = tuple(self._reasons(overridden, repository, noted))
            if self._elsewhere is not None and not _MUST.intersection(reason.cause for reason in reasons):
                overridden, reasons = self._reasons_elsewhere(member, overridden, reasons, self._elsewhere)
            if overridden.spec.source_override is not None:
                fields |= {"source": overridden.spec.source, "source_override": overridden.spec.source_override}
        except (PlansmithError, OSError) as error:
            return PlannedModel(**fields, state="refused", failure=failure_of(error))
        return PlannedModel(**fields, state="stale" if reasons else "fresh", reasons=reasons)

    def _require_target(self, repository: ModelRepository, target: str) -> None:
        """Check first that the target exists: a repository only knows that it belongs to another one."""
        if (repository.root, target) not in self._taking:
            target_digest(target)
            repository.require_target(target)
            self._taking.add((repository.root, target))

    def _reasons(self, member: Member, repository: ModelRepository, then: Fingerprint | Reason) -> Iterator[Reason]:
        """Yield the reasons to build a model; none if it is up to date.

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
        now = fingerprint_of(member.spec, relative_to=base, digester=_digester(member), hub=self._hub, previous=then)
        yield from differences(then, now)
        lost = list(self._destinations.lost(member, then)) if self._destinations is not None else []
        if lost:
            yield Reason(cause="destination", words=f"no longer in {', '.join(lost)}")

    def _reasons_elsewhere(
        self, member: Member, overridden: Member, reasons: tuple[Reason, ...], stores: Stores
    ) -> tuple[Member, tuple[Reason, ...]]:
        """Return the model and remaining reasons if another machine may have built it, according to its stores."""
        then = stores.basis(member) if reasons else None
        if then is None:
            return overridden, reasons
        overridden = _overridden(member, then)
        base = member.file.parent
        now = fingerprint_of(
            overridden.spec, relative_to=base, digester=_digester(member), hub=self._hub, previous=then
        )
        return overridden, tuple(differences(then, now))


def _overridden(member: Member, then: Fingerprint | Reason) -> Member:
    """Return the model with the source that an event set for its newest version, if still valid."""
    return member if isinstance(then, Reason) else replace(member, spec=with_overridden_source(member.spec, then))


def _noted(model: str, repository: ModelRepository, version: int | None) -> Fingerprint | Reason:
    """Return the fingerprint of the newest version, or the reason to build the model if it is unknown."""
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
    """Yield problems of the built version: missing, damaged or not visible to Triton.

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
    """Return a digester with the memo of the model's compiles; planning does not create a missing memo."""
    cache = Path(member.spec.artifacts).absolute() / "cache"
    return Digester(cache / "digests.sqlite", read_only=not cache.is_dir())


def _unknown(models: Sequence[str], names: set[str], unread: Sequence[PlannedModel]) -> UsageError:
    available = suggest_names(models, names, otherwise="there is none")
    failed = f"; {count(len(unread), 'file')} cannot be read, such as {unread[0].file}" if unread else ""
    return UsageError(f"no spec has a model {', '.join(map(repr, models))}", remedy=f"{available}{failed}")


def _refused_name(model: str, places: Sequence[Path], error: UsageError) -> PlannedModel:
    """Return a refused plan for a name that no spec has, with the searched paths as its file."""
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
