"""A Triton that is running: what it serves, and how it is told to take up what its repository shows.

What was measured with Triton 2.51, under requests without pause, and what follows from it:

- A load loads the new version beside the old one and changes over in one step; requests under way are answered by the
  version that they came to. None is lost, and none is answered by two versions.
- A version that fails, whatever is wrong with it or with the configuration, leaves the old one serving.
- An ensemble is the exception: one that fails is unloaded, the old one too. So it is rehearsed under another name.
  (Each load or unload of a model that shares a member with it loads it again, too: from the versions of its folder, but
  with the configuration that was read last. So the old one may answer under the number of the new one.)
- An ensemble whose member is loaded with other inputs or outputs is unloaded, though the load of the member succeeds.
- A folder that is not younger than the one loaded last counts as unchanged: the load succeeds and does nothing. So
  `views` makes each view younger than the one before, and the versions that serve are looked up afterwards.
- The Python backend writes its bytecode into the folder of the version that it loads, which counts as a change: the
  load after that loads the same version once more.
- A Python model without its model.py never finishes loading, nor does any later load of it; hence a deadline.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plansmith.addresses import HEADER_VARIABLE, read_address, read_header
from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.manifest import CONFIG_FILE
from plansmith.triton.control_calls import Forbidden, Refused, Rehearsal, StillLoading, Unreachable, calls_to
from plansmith.triton.model_config import parse_config

LOAD_SECONDS = 900

_UNCONTROLLED = "explicit model load / unload is not allowed"
_REHEARSAL = "plansmith-rehearsal-of-"
_REHEARSAL_FIELDS = ("version_policy", "model_warmup")  # they name versions and files, and a rehearsal has none
_UNLOAD_REHEARSAL_SECONDS = 30

# While it loads, a server may be slow to say what it has; one that nobody reaches for so long is taken for gone.
_GONE_SECONDS = 10
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Held:
    """What a server says of one version of a model: `state` is such as READY, UNAVAILABLE, LOADING."""

    version: int
    state: str
    reason: str


class RunningTriton:
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
        address = read_address(url)
        if find_spec("tritonclient") is None:
            raise EnvironmentFault("tritonclient is not installed", remedy="pip install 'plansmith[client]'")
        self.url = url
        self.may_have_changed = False
        self._load_seconds = load_seconds
        self._calls = calls_to(address, _header())

    def require_reachable(self) -> None:
        """See that the server answers and lets its models be seen.

        Raises:
            EnvironmentFault: it does not.
        """
        self._index()

    def held(self, model: str) -> list[Held]:
        """The versions of a model that the server has or had, ascending.

        Raises:
            EnvironmentFault: the server cannot be asked.
        """
        return _held(self._index(), model)

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
        model = folder.name
        self.may_have_changed = False
        deadline = time.monotonic() + self._load_seconds
        ensembles = ensembles_of(folder)
        before = _serving(self._index(deadline)) if ensembles else set()
        config = _read_config(folder)
        if config is not None and config.HasField("ensemble_scheduling"):
            self._rehearse(model, config, deadline)
        self.may_have_changed = True
        self._change("load", model)
        rows = self._index(deadline)
        lost = sorted((before - _serving(rows)).intersection(ensembles))
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
        return ready

    def unload(self, model: str) -> None:
        """Have the server let go of a model.

        Raises:
            ServedCheckError: it refuses.
            EnvironmentFault: it cannot be asked.
        """
        self._change("unload", model)

    def _rehearse(self, model: str, config: Any, deadline: float) -> None:
        """Load an ensemble under another name first: one that fails under its own would take the old one with it."""
        from google.protobuf import json_format

        name = f"{_REHEARSAL}{model}"
        config.name = name
        for field in _REHEARSAL_FIELDS:
            config.ClearField(field)
        for output in config.output:
            output.ClearField("label_filename")
        if name in _serving(self._index(deadline)):  # its publication was killed
            self._change("unload", name, seconds=_UNLOAD_REHEARSAL_SECONDS)
        rehearsal = Rehearsal(json_format.MessageToJson(config, preserving_proto_field_name=True))
        try:
            self._change("load", name, rehearsal)
        finally:
            with suppress(PlansmithError):  # it serves nobody, and the next rehearsal lets go of it first
                self._change("unload", name, seconds=_UNLOAD_REHEARSAL_SECONDS)

    def _change(
        self, what: str, model: str, rehearsal: Rehearsal | None = None, *, seconds: float | None = None
    ) -> None:
        own = model.removeprefix(_REHEARSAL)
        seconds = self._load_seconds if seconds is None else seconds
        try:
            if what == "unload":
                self._calls.unload(model, seconds)
            else:
                self._calls.load(model, seconds, rehearsal)
        except Refused as said:
            self.may_have_changed = False
            if _UNCONTROLLED in str(said):
                raise self._fault(
                    "takes no calls to load models", "start it with --model-control-mode=explicit"
                ) from None
            raise ServedCheckError(
                f"the Triton at {self.url} does not {what} {own}: {_in_words(str(said), model, own)}",
                remedy="correct what it says, and publish again; what it served before, it serves on",
            ) from None
        except StillLoading:
            raise ServedCheckError(
                f"the Triton at {self.url} was still {what}ing {own} after {seconds:g} s",
                remedy="look into its log; if it only needs longer, raise --load-seconds; if it never ends, start it"
                " again; until then it serves what it did before",
            ) from None
        except Forbidden as error:
            self.may_have_changed = False
            raise self._unasked(error) from None
        except Unreachable as error:
            raise self._unasked(error) from None

    def _index(self, deadline: float = 0) -> list[dict[str, str]]:
        """What the server says of its models; asked again until a moment of `time.monotonic` where it says nothing."""
        gone = time.monotonic() + _GONE_SECONDS
        while True:
            try:
                return self._calls.index()
            except StillLoading:
                if time.monotonic() >= deadline:
                    raise self._fault("does not answer", "see that it runs, and that the port is right") from None
            except Unreachable as error:
                if time.monotonic() >= min(deadline, gone):
                    raise self._unasked(error) from None
            except (Forbidden, Refused) as error:
                raise self._unasked(error) from None
            time.sleep(_PAUSE_SECONDS)

    def _unasked(self, error: Exception) -> PlansmithError:
        if isinstance(error, Forbidden):
            return self._fault(
                f"does not let its models be controlled: {error}",
                f"set {HEADER_VARIABLE} to the header that it asks for, as in 'admin-key: secret'",
            )
        return self._fault(f"cannot be asked: {error}", "see that it runs, and that host, port and scheme are right")

    def _fault(self, what: str, remedy: str) -> EnvironmentFault:
        return EnvironmentFault(f"the Triton at {self.url} {what}", remedy=remedy)


def _held(rows: list[dict[str, str]], model: str) -> list[Held]:
    found = (row for row in rows if row["name"] == model and row.get("version"))
    held = [Held(int(row["version"]), row.get("state", ""), row.get("reason", "")) for row in found]
    return sorted(held, key=lambda one: one.version)


def _serving(rows: list[dict[str, str]]) -> set[str]:
    """The models of which a version answers requests."""
    return {row["name"] for row in rows if row.get("state") == "READY"}


def _header() -> tuple[str, str] | None:
    """The header that the environment has for requests that control models."""
    written = os.environ.get(HEADER_VARIABLE)
    return read_header(written, f"what {HEADER_VARIABLE} holds") if written else None


def _read_config(folder: Path) -> Any:
    """The configuration in a model's folder; None where there is none, or none that can be read: Triton will tell."""
    from google.protobuf.text_format import ParseError

    try:
        return parse_config((folder / CONFIG_FILE).read_text())
    except (OSError, ValueError, ParseError):
        return None


def ensembles_of(folder: Path) -> list[str]:
    """The ensembles beside a model that have it for a member."""
    found = []
    for other in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
        config = _read_config(other)
        if config is not None and any(step.model_name == folder.name for step in config.ensemble_scheduling.step):
            found.append(other.name)
    return found


def _in_words(said: str, model: str, own: str) -> str:
    """Triton's reason, without the words around it that say again which model it is."""
    text = said.strip().removeprefix(f"load failed for model '{model}':").strip()
    return text.replace(model, own)
