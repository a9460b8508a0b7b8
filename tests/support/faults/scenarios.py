"""The operations that are killed at every boundary, and what must hold after each kill."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path

from plansmith.fleet.maintenance.garbage import Collector, Limits
from plansmith.steps.cache.local import StageCache
from plansmith.steps.provenance.history import History
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.publication import Terms, publish_release
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror, pull
from plansmith.stores.verify import verify_store
from plansmith.system.digest import Digester
from plansmith.triggers.inbox.inbox import Inbox, open_inbox
from plansmith.triton.repository.repository import ModelRepository
from plansmith.tuning.trials import history as trials

from ..triggers.inboxes import event
from .packages import MODEL, draft_of, publish, write_ensemble, write_package
from .runs import run_record
from .wholeness import (
    cache_problems,
    release_numbers,
    repository_problems,
    shown_parts,
    shown_versions,
    staging_problems,
    store_of,
)

STEP, KEY = "export", "0" * 64


class Scenario(ABC):
    """An operation below one folder; it may be done again after it was killed."""

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Make the folder as it is before the operation."""

    @abstractmethod
    def act(self, folder: Path) -> None:
        """The operation."""

    @abstractmethod
    def torn(self, folder: Path) -> list[str]:
        """What must not be so at any moment."""

    @abstractmethod
    def unfinished(self, folder: Path) -> list[str]:
        """What must not be so after the operation ran to its end."""

    def undone(self, folder: Path) -> list[str]:
        """What must not be so after it ran to its end, whatever befell the machine: leftovers may be."""
        return [problem for problem in self.unfinished(folder) if " left" not in f" {problem}"]


class CacheEntry(Scenario):
    """Making, replacing or removing an entry of the stage cache.

    Args:
        before: the content of the entry that stands there, if any.
        after: the content that is published; None to remove the entry.
    """

    def __init__(self, before: str | None, after: str | None) -> None:
        self._before, self._after = before, after

    def prepare(self, folder: Path) -> None:
        if self._before is not None:
            _store(folder, self._before)

    def act(self, folder: Path) -> None:
        if self._after is not None:
            _store(folder, self._after)
            return
        cache = _cache(folder)
        with cache.exclusive(STEP, KEY):
            cache.remove(folder / STEP / KEY)

    def torn(self, folder: Path) -> list[str]:
        content, problems = _content(folder)
        if content not in {None, self._before, self._after}:
            problems.append(f"the entry holds {content!r}")
        return problems

    def unfinished(self, folder: Path) -> list[str]:
        content, problems = _content(folder)
        if content != self._after:
            problems.append(f"the entry holds {content!r}, not {self._after!r}")
        return problems + staging_problems(folder / "staging")


class Release(Scenario):
    """Publishing one more version of a model.

    Args:
        before: how many versions there are already.
        output: the name of the new version's output; theirs is "logits".
        servers: whether servers have to load it: killed meanwhile, it may be withdrawn and published once more.
    """

    def __init__(self, before: int, output: str = "logits", *, servers: bool = False) -> None:
        self._before, self._output, self._servers = before, output, servers

    def prepare(self, folder: Path) -> None:
        for number in range(1, self._before + 1):
            package = write_package(folder / f"package-{number}", str(number))
            publish(folder / "repository", package, draft_of(package))
        write_package(folder / "package-new", "new")

    def act(self, folder: Path) -> None:
        package = folder / "package-new"
        draft = draft_of(package, output=self._output)
        publish(
            folder / "repository",
            package,
            draft,
            allow_interface_change=self._output != "logits",
            servers=Willing() if self._servers else None,
        )

    def torn(self, folder: Path) -> list[str]:
        problems = repository_problems(folder / "repository")
        numbers, old = release_numbers(folder / "repository", MODEL), list(range(1, self._before + 1))
        if numbers not in {tuple(old), (*old, self._before + 1)}:
            problems.append(f"the versions are {numbers}")
        if old and not (folder / "repository" / MODEL).exists():
            problems.append("the old versions are out of sight")
        return problems

    def reused(self, folder: Path, shown: set[int]) -> list[str]:
        """Publish another content after the operation was cut off; what is wrong with its number.

        Args:
            folder: the folder.
            shown: the versions that Triton had seen.
        """
        package = write_package(folder / "package-other", "other")
        number = publish(folder / "repository", package, draft_of(package), allow_interface_change=True).version
        return repository_problems(folder / "repository") + ([f"{number} is used again"] if number in shown else [])

    def unfinished(self, folder: Path) -> list[str]:
        problems = self.torn(folder) + staging_problems(store_of(folder / "repository") / "staging")
        fitting = range(1 if self._output == "logits" else self._before + 1, self._before + 2)
        shown = shown_versions(folder / "repository", MODEL)
        trials = ModelRepository(folder / "repository").withdrawals(MODEL).on_trial()
        problems += [f"still on trial: {trials}"] if trials else []
        return problems + ([f"shown are {shown}"] if shown != tuple(fitting) else [])


class Ensemble(Scenario):
    """Publishing one more version of an ensemble, or withdrawing the newest: each has one part of its own.

    Args:
        before: how many versions there are already.
        withdrawn: withdraw the newest of them instead.
    """

    def __init__(self, before: int, *, withdrawn: bool = False) -> None:
        self._before, self._withdrawn = before, withdrawn

    def prepare(self, folder: Path) -> None:
        for number in range(1, self._before + 1):
            self._publish(folder, str(number))

    def act(self, folder: Path) -> None:
        if self._withdrawn:
            ModelRepository(folder / "repository").withdraw(MODEL, self._before, "it answers too slowly")
        else:
            self._publish(folder, "new")

    def torn(self, folder: Path) -> list[str]:
        problems = repository_problems(folder / "repository")
        shown = tuple(ModelRepository(folder / "repository").views(MODEL).shown())
        if shown not in {self._shown_before(), self._shown_after()}:
            problems.append(f"shown are {shown}")
        return problems

    def unfinished(self, folder: Path) -> list[str]:
        root = folder / "repository"
        problems = self.torn(folder) + staging_problems(store_of(root) / "staging")
        shown = tuple(ModelRepository(root).views(MODEL).shown())
        problems += [f"shown are {shown}"] if shown != self._shown_after() else []
        views = [*store_of(root).glob(f"views/{MODEL}/*/config.pbtxt")]
        named = sorted(part for part in shown_parts(root) if any(part in view.read_text() for view in views))
        problems += [f"parts are left: {shown_parts(root)}"] if shown_parts(root) != named else []
        folders = sorted(path.name for path in store_of(root).glob(f"members/{MODEL}/*"))
        return problems + ([f"folders of parts are left: {folders}"] if folders != named else [])

    def _publish(self, folder: Path, content: str) -> None:
        package = folder / f"package-{content}"
        publish(folder / "repository", package, write_ensemble(package, content))

    def _shown_before(self) -> tuple[int, ...]:
        return (self._before,) if self._before else ()

    def _shown_after(self) -> tuple[int, ...]:
        return (self._before + (-1 if self._withdrawn else 1),)


class Withdrawal(Scenario):
    """Withdrawing a version: the newest, with one before it or none.

    Args:
        before: how many versions there are before it.
    """

    _REASON = "it answers too slowly"

    def __init__(self, before: int) -> None:
        self._before = before

    def prepare(self, folder: Path) -> None:
        for number in range(1, self._before + 2):
            package = write_package(folder / f"package-{number}", str(number))
            publish(folder / "repository", package, draft_of(package))

    def act(self, folder: Path) -> None:
        ModelRepository(folder / "repository").withdraw(MODEL, self._before + 1, self._REASON)

    def torn(self, folder: Path) -> list[str]:
        problems = repository_problems(folder / "repository")
        opened = ModelRepository(folder / "repository")
        old, new = tuple(range(1, self._before + 1)), tuple(range(1, self._before + 2))
        shown = tuple(opened.views(MODEL).shown())
        if shown not in {old, new}:
            problems.append(f"shown are {shown}")
        withdrawn = opened.withdrawals(MODEL).numbers()
        opened.settle_all()
        after = tuple(opened.views(MODEL).shown())
        if after != (old if withdrawn else new):
            problems.append(f"with {withdrawn} withdrawn, shown are {after} once what was left is settled")
        return problems

    def unfinished(self, folder: Path) -> list[str]:
        opened = ModelRepository(folder / "repository")
        shown = tuple(opened.views(MODEL).shown())  # before what was left is settled
        problems = [f"shown are {shown}"] if shown != tuple(range(1, self._before + 1)) else []
        reason = opened.withdrawals(MODEL).reason(self._before + 1)
        problems += [] if reason == self._REASON else [f"it was withdrawn for {reason}"]
        return problems + self.torn(folder) + staging_problems(store_of(folder / "repository") / "staging")


class Willing:
    """Servers that load whatever is shown."""

    def take(self, folder: Path, version: int) -> None:
        assert (folder / str(version)).is_dir(), "told before it is shown"

    def take_back(self, folder: Path) -> None:
        raise AssertionError(f"nothing was refused in {folder}")


class Run(Scenario):
    """Adding a run to the history.

    Args:
        killed: how many processes may have been killed that did.
    """

    def __init__(self, killed: int = 1) -> None:
        self._killed = killed

    def prepare(self, folder: Path) -> None:
        History(folder).add(run_record("old"))

    def act(self, folder: Path) -> None:
        History(folder).add(run_record("new"))

    def torn(self, folder: Path) -> list[str]:
        history = History(folder)
        problems = [f"run {number} is torn" for number in history.numbers() if history.read(number) is None]
        return problems + ([] if "old" in {run.model for run in history.newest_first()} else ["the old run is gone"])

    def unfinished(self, folder: Path) -> list[str]:
        models = [run.model for run in History(folder).newest_first()]
        allowed = [[*["new"] * number, "old"] for number in range(1, self._killed + 2)]
        problems = [] if models in allowed else [f"the history is {models}"]
        return problems + staging_problems(folder / "staging")


class Collection(Scenario):
    """Collecting a cache entry, an old view, and a hidden release that no rollback leads to."""

    def prepare(self, folder: Path) -> None:
        _store(folder / "cache", "old")
        for number, output in enumerate(("logits", "scores", "labels"), 1):
            package = write_package(folder / f"package-{number}", str(number))
            draft = draft_of(package, output=output)
            publish(folder / "repository", package, draft, allow_interface_change=True)

    def act(self, folder: Path) -> None:
        everything = Limits(older_than=-1e9, now=time.time(), scratch=(), staging=())
        Collector(folder, folder / "repository", everything).collect(lambda _: None)

    def torn(self, folder: Path) -> list[str]:
        problems = repository_problems(folder / "repository") + cache_problems(folder / "cache")
        if shown_versions(folder / "repository", MODEL) != (3,):
            problems.append("the newest version is out of sight")
        return problems

    def unfinished(self, folder: Path) -> list[str]:
        problems = self.torn(folder) + staging_problems(folder / "cache" / "staging")
        problems += staging_problems(store_of(folder / "repository") / "staging")
        numbers = release_numbers(folder / "repository", MODEL)
        problems += [] if numbers == (2, 3) else [f"the versions are {numbers}"]
        return problems + [f"{path} is still there" for path in (folder / "cache" / STEP).glob("*")]


class Pull(Scenario):
    """Bringing one more version of a store to a mirror.

    Args:
        before: how many versions it was brought before, which is one less than the store has.
    """

    def __init__(self, before: int) -> None:
        self._before = before

    def prepare(self, folder: Path) -> None:
        for number in range(1, self._before + 2):
            package = write_package(folder / f"package-{number}", str(number))
            publication = publish(folder / "repository", package, draft_of(package))
            manifest = ModelRepository(folder / "repository").manifest(MODEL, publication.version)
            publish_release(
                self._store(folder), Path(publication.release), manifest, Digester(folder / "no memo", read_only=True)
            )
            if number <= self._before:
                self.act(folder)

    def act(self, folder: Path) -> None:
        store, mirror = self._store(folder), Mirror(folder / "mirror")
        catalogue, version = store.find(MODEL)
        with mirror.lock(store, alone=False):
            pull(store, mirror, catalogue, version)

    def torn(self, folder: Path) -> list[str]:
        problems = repository_problems(folder / "mirror")
        shown = tuple(ModelRepository(folder / "mirror").views(MODEL).shown())
        old = (self._before,) if self._before else ()
        return problems + ([f"shown are {shown}"] if shown not in {old, (self._before + 1,)} else [])

    def unfinished(self, folder: Path) -> list[str]:
        beside = store_of(folder / "mirror")
        problems = self.torn(folder) + staging_problems(beside / "staging")
        problems += [f"{path} is left" for path in (beside / "incoming").glob("*/*")]
        last = tuple(range(max(1, self._before), self._before + 2))
        numbers = release_numbers(folder / "mirror", MODEL)
        problems += [] if numbers == last else [f"the versions are {numbers}"]
        shown = shown_versions(folder / "mirror", MODEL)
        return problems + ([f"shown are {shown}"] if shown != (self._before + 1,) else [])

    def _store(self, folder: Path) -> Store:
        return Store(FolderObjects(folder / "store"))


class Publication(Scenario):
    """Publishing one more version to a store.

    Args:
        before: how many versions it has.
    """

    def __init__(self, before: int) -> None:
        self._before = before

    def prepare(self, folder: Path) -> None:
        for number in range(1, self._before + 2):
            package = write_package(folder / f"package-{number}", str(number))
            publish(folder / "package-repository", package, draft_of(package))
            if number <= self._before:
                self._publish(folder, number)

    def act(self, folder: Path) -> None:
        self._publish(folder, self._before + 1)

    def torn(self, folder: Path) -> list[str]:
        store = Store(FolderObjects(folder / "store"))
        problems = [f"{damage.key}: {damage.problem}" for damage in verify_store(store).damages]
        catalogue = store.find_catalogue(MODEL)
        numbers = tuple(version.version for version in catalogue.versions) if catalogue is not None else ()
        old = tuple(range(1, self._before + 1))
        return problems + ([] if numbers in {old, (*old, self._before + 1)} else [f"the versions are {numbers}"])

    def unfinished(self, folder: Path) -> list[str]:
        pointers = Store(FolderObjects(folder / "store")).catalogue(MODEL).aliases
        stand = {alias: pointer.version for alias, pointer in pointers.items()}
        problems = [] if stand == dict.fromkeys(("current", "best"), self._before + 1) else [f"aliases are {stand}"]
        return self.torn(folder) + problems

    def _publish(self, folder: Path, number: int) -> None:
        repository = ModelRepository(folder / "package-repository")
        publish_release(
            Store(FolderObjects(folder / "store")),
            repository.release(MODEL, number),
            repository.manifest(MODEL, number),
            Digester(folder / "no memo", read_only=True),
            terms=Terms(aliases=("current", "best")),
        )


class FirstCompile(Scenario):
    """What a first compile leaves in its folder: digests, a cache entry, a run in the history."""

    def prepare(self, folder: Path) -> None:
        write_package(folder / "package-new", "new")

    def act(self, folder: Path) -> None:
        artifacts = folder / "artifacts"
        digester = Digester(artifacts / "cache" / "digests.sqlite")
        digester.entries(folder / "package-new")
        _store(artifacts / "cache", "new", digester)
        History(artifacts / "history").add(run_record("new"))

    def torn(self, folder: Path) -> list[str]:
        content, problems = _content(folder / "artifacts" / "cache")
        return problems + ([] if content in {None, "new"} else [f"the entry holds {content!r}"])

    def unfinished(self, folder: Path) -> list[str]:
        models = {run.model for run in History(folder / "artifacts" / "history").newest_first()}
        problems = [] if models == {"new"} else [f"the history is {models}"]
        return self.torn(folder) + problems + staging_problems(folder / "artifacts" / "history" / "staging")


class Trial(Scenario):
    """Adding a trial to those of a search, in a record of several blocks."""

    def prepare(self, folder: Path) -> None:
        self._add(folder, "old")

    def act(self, folder: Path) -> None:
        self._add(folder, "new")

    def torn(self, folder: Path) -> list[str]:
        keys = self._keys(folder)
        return [] if {"old"} <= keys <= {"old", "new"} else [f"the trials are {keys}"]

    def unfinished(self, folder: Path) -> list[str]:
        return [] if self._keys(folder) == {"old", "new"} else [f"the trials are {self._keys(folder)}"]

    def _add(self, folder: Path, key: str) -> None:
        trials.History(folder / "tuning", "trials", trials.KeyedRecord).add(trials.KeyedRecord(key=key * 500))

    def _keys(self, folder: Path) -> set[str]:
        records = trials.read_records(folder / "tuning" / "trials", trials.KeyedRecord)
        return {record.key[:3] if record.key == record.key[:3] * 500 else record.key for record in records}


class Delivery(Scenario):
    """Keeping one more delivery in the inbox of a service that goes on."""

    def __init__(self) -> None:
        self._inbox: Inbox | None = None

    def prepare(self, folder: Path) -> None:
        self._inbox = open_inbox(self._url(folder))
        self._inbox.take("registry", "old", [event("old")])

    def act(self, folder: Path) -> None:
        if self._inbox is not None:  # closing it would write all that is in its log into the database
            self._inbox.take("registry", "new", [event("new")])
            return
        with closing(open_inbox(self._url(folder))) as inbox:
            inbox.take("registry", "new", [event("new")])

    def torn(self, folder: Path) -> list[str]:
        return [] if "old" in self._models(folder) else ["the old delivery is gone"]

    def unfinished(self, folder: Path) -> list[str]:
        models = self._models(folder)
        return [] if models == ["new", "old"] else [f"kept are {models}"]

    def _url(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'inbox.sqlite'}"

    def _models(self, folder: Path) -> list[str]:
        with closing(open_inbox(self._url(folder), make=False)) as inbox:
            return sorted(entry.event.model for entry in inbox.entries())


SCENARIOS: dict[str, Scenario] = {
    "a new cache entry": CacheEntry(None, "new"),
    "a replaced cache entry": CacheEntry("old", "new"),
    "a removed cache entry": CacheEntry("old", None),
    "a first version": Release(0),
    "a second version": Release(1),
    "a third version, which pushes a view out": Release(2),
    "a second version with another interface": Release(1, output="scores"),
    "a second version that servers load": Release(1, servers=True),
    "a withdrawn version": Withdrawal(1),
    "a withdrawn version that is the only one": Withdrawal(0),
    "a first version of an ensemble": Ensemble(0),
    "a third version of an ensemble, whose first parts go": Ensemble(2),
    "a withdrawn version of an ensemble": Ensemble(2, withdrawn=True),
    "a run in the history": Run(),
    "a collection of garbage": Collection(),
    "a second pulled version": Pull(1),
}

CUT_SCENARIOS: dict[str, Scenario] = {
    **SCENARIOS,
    "a run in the history": Run(2),
    "a first compile": FirstCompile(),
    "a first pulled version": Pull(0),
    "a first version in a store": Publication(0),
    "a second version in a store": Publication(1),
    "a trial of a search": Trial(),
    "a delivery in the inbox": Delivery(),
}


def _cache(folder: Path, told: list[str] | None = None) -> StageCache:
    notices = told if told is not None else []
    return StageCache(folder, Digester(folder / "no memo", read_only=True), notices.append)


def _store(folder: Path, content: str, digester: Digester | None = None) -> None:
    cache = StageCache(folder, digester) if digester is not None else _cache(folder)
    with cache.exclusive(STEP, KEY), cache.staging() as staged:
        write_package(staged, content)
        cache.publish(STEP, KEY, staged, {"content": content})


def _content(folder: Path) -> tuple[str | None, list[str]]:
    """What a process that comes now finds in the cache, and what it would complain about."""
    problems: list[str] = []
    entry = _cache(folder, problems).lookup(STEP, KEY)
    if entry is None:
        return None, problems
    content = str(entry.record["content"])
    expected = f"config.pbtxt of {content}"
    if len(entry.files) != 3 or (entry.folder / "config.pbtxt").read_text() != expected:
        problems.append("the entry's files are not those of its record")
    return content, problems
