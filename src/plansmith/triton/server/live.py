"""Live Triton server: the models it serves, and how it reloads changes of its repository.

What was measured with Triton 2.51, under requests without pause, and what follows from it:

- A load loads the new version beside the old one and changes over in one step; requests under way are answered by the
  version that they came to. None is lost, and none is answered by two versions.
- A version that fails, whatever is wrong with it or with the configuration, leaves the old one serving.
- An ensemble is the exception: one that fails is unloaded, the old one too. So it is rehearsed under another name.
  (Each load or unload of a model that shares a member with it loads it again, too: from the versions of its folder, but
  with the configuration that was read last. So the old one may answer under the number of the new one.)
- The load of an ensemble loads its new members first, and changes over once they serve. Those that it does not name any
  more stay loaded until they are told to go.
- A Python model that asks others by a script is loaded without them, and is exchanged as any other model is, also
  against an ensemble. So what it asks is loaded first, and let go of once the version before is unloaded: that goes on
  for as long as requests are under way in it. (It cannot load them itself: where a call to load a model fails that a
  Python model made, or one that it made while the server starts, the server may end.)
- An ensemble whose member is loaded with other inputs or outputs is unloaded, though the load of the member succeeds.
- A folder that is not younger than the one loaded last counts as unchanged: the load succeeds and does nothing. So
  `views` makes each view younger than the one before, and the versions that serve are looked up afterwards.
- The Python backend writes its bytecode into the folder of the version that it loads, which counts as a change: the
  load after that loads the same version once more. (`members` keeps it out of the folders of an ensemble's parts.)
- A Python model without its model.py never finishes loading, nor does any later load of it; hence a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, in_one_line
from plansmith.triton.client.connection import SentModel
from plansmith.triton.repository.ensembles import (
    askers_of,
    members_of_script,
    names_of_parts,
    parts_not_needed,
    read_config,
    steps_of,
)
from plansmith.triton.server.control import PAUSE_SECONDS, REHEARSAL, ModelControlClient

_UNLOAD_SECONDS = 30

LOAD_SECONDS = 900
_REHEARSAL_FIELDS = ("version_policy", "model_warmup")  # they name versions and files, and a rehearsal has none
_DRAIN_SECONDS = 60


@contextmanager
def unseen_members(server: ModelControlClient, model: str) -> Iterator[None]:
    """Load the models that a model's script calls, if it has one, around the load of the model itself.

    Where a script is served, the parts that lie there and nobody has loaded are loaded before: the next one may ask
    them, and requests will need them at once. Which these are, the server tells only after it.

    Raises:
        ServedCheckError: what the script asks does not load, though the script did.
        EnvironmentFault: the server cannot be asked.
    """
    came = _load_beside(server, model) if _members(server, model) else []
    try:
        yield
    except ServedCheckError:
        if not server.may_have_changed:
            _let_go(server, came)
        raise
    members = _members(server, model)
    try:
        for name in members or ():
            if name not in _ready(server):
                server.change("load", name)
        _let_go(server, [name for name in came if name not in members])
    finally:
        server.may_have_changed = True


def _load_beside(server: ModelControlClient, model: str) -> list[str]:
    looks, ready = names_of_parts(model), _ready(server)
    names = sorted({row["name"] for row in server.index() if looks.fullmatch(row["name"])} - ready)
    came = []
    for name in names:
        with suppress(PlansmithError):  # the next script may not need it; if it does, that is told after it
            server.change("load", name)
            came.append(name)
    return came


def _let_go(server: ModelControlClient, parts: list[str]) -> None:
    changed = server.may_have_changed
    for name in parts:
        with suppress(PlansmithError):  # it serves nobody
            server.change("unload", name, seconds=_UNLOAD_SECONDS)
    server.may_have_changed = changed


def _members(server: ModelControlClient, model: str) -> list[str]:
    """The members that the currently served script calls; none where the server does not report them."""
    with suppress(EnvironmentFault):  # it may let its models be loaded, and its configurations not be seen
        return members_of_script(server.config(model))
    return []


def _ready(server: ModelControlClient) -> set[str]:
    return {row["name"] for row in server.index() if row.get("state") == "READY"}


@dataclass(frozen=True)
class VersionState:
    """The server's state of one version of a model: `state` is such as READY, UNAVAILABLE, LOADING."""

    version: int
    state: str
    reason: str


class RunningTriton(ModelControlClient):
    """A running server with --model-control-mode=explicit.

    Args:
        url: such as http://127.0.0.1:8000 or grpc://127.0.0.1:8001; https and grpcs are the same with TLS; HTTP where
            there is no scheme.
        load_seconds: how long a load may take.

    Attributes:
        may_have_changed: whether the last load came so far that the server may serve something else than before: it
            was asked, and has not said no itself.

    Raises:
        UsageError: no such address, or no such header.
        EnvironmentFault: the package tritonclient is missing, which knows Triton's configurations.
    """

    def __init__(self, url: str, *, load_seconds: float = LOAD_SECONDS) -> None:
        super().__init__(url, load_seconds=load_seconds)

    def require_reachable(self) -> None:
        """Require that the server responds and allows access to its model index.

        Raises:
            EnvironmentFault: it does not.
        """
        self.index()

    def version_states(self, model: str) -> list[VersionState]:
        """Return the versions of a model that the server has or had, ascending.

        Raises:
            EnvironmentFault: the server cannot be asked.
        """
        return _version_states(self.index(), model)

    def ready(self, model: str) -> list[int]:
        """Return the versions of a model that are ready, ascending."""
        return [entry.version for entry in self.version_states(model) if entry.state == "READY"]

    def load(self, folder: Path, *, version: int | None = None) -> list[int]:
        """Have the server load what a model's folder in its repository shows now.

        Args:
            folder: the model's, whose name is the model's; the server may know it by another path.
            version: what has to answer requests then.

        Returns:
            The versions that answer requests, ascending.

        Raises:
            ServedCheckError: it refuses, with its reason, and serves on what it served before; or it lets go of an
                ensemble.
            EnvironmentFault: it cannot be asked.
        """
        with nullcontext() if read_config(folder) is not None else unseen_members(self, folder.name):
            return self._load(folder, version)

    def _load(self, folder: Path, version: int | None) -> list[int]:
        model = folder.name
        self.may_have_changed = False
        deadline = time.monotonic() + self._load_seconds
        askers, config = askers_of(folder), read_config(folder)
        is_ensemble = config is not None and config.HasField("ensemble_scheduling")
        before = _serving(self.index(deadline)) if askers or steps_of(config) else set()
        rehearsed = False
        try:
            for member in members_of_script(config):
                self.change("load", member)
            if is_ensemble:
                self._rehearse(model, config, before)
                rehearsed = True
            self.may_have_changed = True
            self.change("load", model)
        except ServedCheckError:
            if is_ensemble and rehearsed:
                self.may_have_changed = True  # one that fails under its own name takes the one before with it
            elif steps_of(config) and not self.may_have_changed:
                self._let_go_of_what_came(model, config, before, deadline)
            raise
        rows = self.index(deadline)
        lost = sorted((before - _serving(rows)).intersection(askers))
        if lost:
            raise ServedCheckError(
                f"the Triton at {self.url} loaded {model} and then let go of {', '.join(lost)}, which does not fit it",
                remedy=f"publish {model} with its old inputs and outputs again, or {', '.join(lost)} for the new ones",
            )
        ready = [entry.version for entry in _version_states(rows, model) if entry.state == "READY"]
        if version is not None and version not in ready:
            serves = f"serves version {', '.join(map(str, ready))}" if ready else "serves no version"
            raise ServedCheckError(
                f"the Triton at {self.url} was told to load version {version} of {model}, and {serves} of it",
                remedy=f"start it with --model-repository={folder.parent}, or with a copy that is up to date",
            )
        if config is not None:  # what is not seen from here may need every part
            self._let_go_of_parts(folder, rows)
        return ready

    def unload(self, folder: Path) -> None:
        """Have the server unload a model and its loaded parts.

        Args:
            folder: the model's, which may be gone.

        Raises:
            ServedCheckError: it refuses.
            EnvironmentFault: it cannot be asked.
        """
        self.change("unload", folder.name)
        with suppress(PlansmithError):  # the model is gone, which was asked for
            self._let_go_of_parts(folder, self.index())

    def _let_go_of_parts(self, folder: Path, rows: list[dict[str, str]]) -> None:
        """Unload the members that nothing in the repository uses any more.

        First the requests end that came to the version before; where that takes too long, the next load does it.

        Args:
            folder: the model's.
            rows: what the server says of its models.
        """
        parts = parts_not_needed(folder, _serving(rows))
        if not parts or not self._has_drained(folder.name):
            return
        changed = self.may_have_changed
        for part in parts:
            with suppress(PlansmithError):  # what was asked for is done, and the next load lets go of it
                self.change("unload", part, seconds=_UNLOAD_SECONDS)
        self.may_have_changed = changed

    def _has_drained(self, model: str) -> bool:
        """Wait until no version of a model is unloading; return whether that is so.

        The server tells nothing of an ensemble that was exchanged under one number, as happens where the two share a
        part. So there is a pause for requests that came to it and have not reached its parts yet: those that have,
        hold their parts themselves (core, EnsembleContext in ensemble_scheduler.cc).
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            with suppress(PlansmithError):
                if all(entry.state != "UNLOADING" for entry in _version_states(self.index(), model)):
                    return True
        return False

    def _let_go_of_what_came(self, model: str, config: Any, before: set[str], deadline: float) -> None:
        """Unload the members that came with a failed load, which leaves the previous version serving.

        Args:
            model: its name.
            config: its configuration.
            before: the models that the server had.
            deadline: until when the server may take to say what it has.
        """
        looks = names_of_parts(model)
        with suppress(PlansmithError):  # the next load lets go of them
            came = steps_of(config) & _serving(self.index(deadline)) - before
            for part in sorted(name for name in came if looks.fullmatch(name)):
                self.change("unload", part, seconds=_UNLOAD_SECONDS)
        self.may_have_changed = False

    def _rehearse(self, model: str, config: Any, before: set[str]) -> None:
        """Rehearse: load an ensemble under another name first, as a failed load under its own would unload the old one.

        Args:
            model: its name.
            config: its configuration, which is changed.
            before: the models that the server has.
        """
        from google.protobuf import json_format

        name = f"{REHEARSAL}{model}"
        config.name = name
        for field in _REHEARSAL_FIELDS:
            config.ClearField(field)
        for output in config.output:
            output.ClearField("label_filename")
        if name in before:  # its publication was killed
            self.change("unload", name, seconds=_UNLOAD_SECONDS)
        text = json_format.MessageToJson(config, preserving_proto_field_name=True)
        rehearsal = SentModel(text, {"1/rehearsal": b" "})
        try:
            self.change("load", name, rehearsal)
        finally:
            with suppress(PlansmithError):  # it serves nobody, and the next rehearsal lets go of it first
                self.change("unload", name, seconds=_UNLOAD_SECONDS)


def _version_states(rows: list[dict[str, str]], model: str) -> list[VersionState]:
    matches = (row for row in rows if row["name"] == model and row.get("version"))
    entries = [VersionState(int(row["version"]), row.get("state", ""), row.get("reason", "")) for row in matches]
    return sorted(entries, key=lambda entry: entry.version)


def _serving(rows: list[dict[str, str]]) -> set[str]:
    """The models that have a version in the READY state."""
    return {row["name"] for row in rows if row.get("state") == "READY"}


class ServerGroup:
    """Server group: servers, by address, that read one repository.

    Args:
        addresses: such as grpc://127.0.0.1:8001.
        progress: told what is being done.
        load_seconds: how long each load may take.
        serves: whether Triton serves a version at all; none is told to load one that it does not.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        progress: Callable[[str], None] = lambda _: None,
        *,
        load_seconds: float = LOAD_SECONDS,
        serves: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._servers = [RunningTriton(address, load_seconds=load_seconds) for address in addresses]
        self._serves = serves
        self._progress = progress
        self._changed_servers: list[RunningTriton] = []

    def require_reachable(self) -> None:
        """Require that all servers respond.

        Raises:
            EnvironmentFault: names the first that does not.
        """
        for server in self._servers:
            server.require_reachable()

    def take(self, folder: Path, version: int) -> None:
        """Have each server in turn load a model's view and serve a version.

        Raises:
            PlansmithError: of the first that does not; those after it were not asked.
        """
        for server in self._servers if self._serves(version) else ():
            self._progress(f"loading into {server.url}")
            try:
                server.load(folder, version=version)
            finally:
                if server.may_have_changed:
                    self._changed_servers.append(server)

    def take_back(self, folder: Path) -> None:
        """Roll back each server that may have loaded the version, and the models that call it, to what is shown now.

        Raises:
            PlansmithError: one or more did not, and may serve the version; all were asked.
        """
        failed: list[PlansmithError] = []
        for server in self._changed_servers:
            self._progress(f"going back in {server.url}")
            try:
                go_back(server, folder)
            except PlansmithError as error:
                failed.append(error)
        if failed:
            first = failed[0]
            first.message = "; ".join(
                f"{in_one_line(error.message)}; it may serve what was withdrawn" for error in failed
            )
            raise first


def go_back(server: RunningTriton, folder: Path, *, version: int | None = None) -> None:
    """Have a server reload what a model's folder shows, and the models that call it; nothing if it does not exist.

    Args:
        server: may serve something else.
        folder: the model's.
        version: what has to answer requests then.

    Raises:
        ServedCheckError: it refuses.
        EnvironmentFault: it cannot be asked.
    """
    if not folder.is_dir():
        server.unload(folder)
        return
    server.load(folder, version=version)
    for asker in askers_of(folder):
        server.load(folder.parent / asker)
