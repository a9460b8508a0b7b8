"""A Triton that is running: what it serves, and how it is told to take up what its repository shows.

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
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import PlansmithError, ServedCheckError
from plansmith.triton.repository.ensemble_members import names_of_parts
from plansmith.triton.repository.ensembles import askers_of, members_of_script, parts_not_needed, read_config, steps_of
from plansmith.triton.server.control.api import SentModel
from plansmith.triton.server.control.client import PAUSE_SECONDS, REHEARSAL, ModelControlClient
from plansmith.triton.server.control.remote_members import unseen_members

LOAD_SECONDS = 900

_REHEARSAL_FIELDS = ("version_policy", "model_warmup")  # they name versions and files, and a rehearsal has none
_UNLOAD_SECONDS = 30
_DRAIN_SECONDS = 60


@dataclass(frozen=True)
class Held:
    """What a server says of one version of a model: `state` is such as READY, UNAVAILABLE, LOADING."""

    version: int
    state: str
    reason: str


class RunningTriton(ModelControlClient):
    """A server that somebody started with --model-control-mode=explicit.

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
        """See that the server answers and lets its models be seen.

        Raises:
            EnvironmentFault: it does not.
        """
        self.index()

    def held(self, model: str) -> list[Held]:
        """The versions of a model that the server has or had, ascending.

        Raises:
            EnvironmentFault: the server cannot be asked.
        """
        return _held(self.index(), model)

    def ready(self, model: str) -> list[int]:
        """The versions of a model that answer requests, ascending."""
        return [one.version for one in self.held(model) if one.state == "READY"]

    def load(self, folder: Path, *, version: int | None = None) -> list[int]:
        """Have the server take up what a model's folder in its repository shows now.

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
        ready = [one.version for one in _held(rows, model) if one.state == "READY"]
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
        """Have the server let go of a model, and of the parts that it had.

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
        """Have the server let go of the parts that nothing in the repository asks any more.

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
        """Wait until no version of a model is on its way out; whether that is so.

        The server tells nothing of an ensemble that was exchanged under one number, as happens where the two share a
        part. So there is a pause for requests that came to it and have not reached its parts yet: those that have,
        hold their parts themselves (core, EnsembleContext in ensemble_scheduler.cc).
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            with suppress(PlansmithError):
                if all(one.state != "UNLOADING" for one in _held(self.index(), model)):
                    return True
        return False

    def _let_go_of_what_came(self, model: str, config: Any, before: set[str], deadline: float) -> None:
        """Of what did not load, and leaves the version before serving, let go of the parts that came with it.

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
        """Load an ensemble under another name first: one that fails under its own would take the old one with it.

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


def _held(rows: list[dict[str, str]], model: str) -> list[Held]:
    found = (row for row in rows if row["name"] == model and row.get("version"))
    held = [Held(int(row["version"]), row.get("state", ""), row.get("reason", "")) for row in found]
    return sorted(held, key=lambda one: one.version)


def _serving(rows: list[dict[str, str]]) -> set[str]:
    """The models of which a version answers requests."""
    return {row["name"] for row in rows if row.get("state") == "READY"}
