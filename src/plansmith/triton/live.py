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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plansmith.addresses import HEADER_VARIABLE, read_address, read_header
from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.triton.control_calls import Forbidden, Refused, Rehearsal, StillLoading, Unreachable, calls_to
from plansmith.triton.model_config import CONFIG_FILE, parse_config

LOAD_SECONDS = 900

_UNCONTROLLED = "explicit model load / unload is not allowed"
_REHEARSAL = "plansmith-rehearsal-of-"


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

    Raises:
        UsageError: no such address, or no such header.
        EnvironmentFault: the package tritonclient is missing, which knows Triton's configurations.
    """

    def __init__(self, url: str, *, load_seconds: float = LOAD_SECONDS) -> None:
        address = read_address(url)
        if find_spec("tritonclient") is None:
            raise EnvironmentFault("tritonclient is not installed", remedy="pip install 'plansmith[client]'")
        self.url = url
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
        rows = [row for row in self._index() if row["name"] == model and row.get("version")]
        found = [Held(int(row["version"]), row.get("state", ""), row.get("reason", "")) for row in rows]
        return sorted(found, key=lambda one: one.version)

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
        before = self._serving()
        config = _read_config(folder)
        if config is not None and config.HasField("ensemble_scheduling"):
            self._rehearse(model, config)
        self._change("load", model)
        lost = sorted((before - self._serving()).intersection(ensembles_of(folder)))
        if lost:
            raise ServedCheckError(
                f"the Triton at {self.url} loaded {model} and then let go of {', '.join(lost)}, which does not fit it",
                remedy=f"publish {model} with its old inputs and outputs again, or {', '.join(lost)} for the new ones",
            )
        ready = self.ready(model)
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

    def _rehearse(self, model: str, config: Any) -> None:
        """Load an ensemble under another name first: one that fails under its own would take the old one with it."""
        from google.protobuf import json_format

        name = f"{_REHEARSAL}{model}"
        config.name = name
        self._change("load", name, Rehearsal(json_format.MessageToJson(config, preserving_proto_field_name=True)))
        self._change("unload", name)

    def _change(self, what: str, model: str, rehearsal: Rehearsal | None = None) -> None:
        own = model.removeprefix(_REHEARSAL)
        try:
            if what == "unload":
                self._calls.unload(model, self._load_seconds)
            else:
                self._calls.load(model, self._load_seconds, rehearsal)
        except Refused as said:
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
                f"the Triton at {self.url} was still {what}ing {own} after {self._load_seconds:g} s",
                remedy="look into its log; if it never ends, start it again; until then it serves what it did before",
            ) from None
        except (Unreachable, Forbidden) as error:
            raise self._unasked(error) from None

    def _serving(self) -> set[str]:
        """The models of which a version answers requests."""
        return {row["name"] for row in self._index() if row.get("state") == "READY"}

    def _index(self) -> list[dict[str, str]]:
        try:
            return self._calls.index()
        except StillLoading:
            raise self._fault("does not answer", "see that it runs, and that the port is right") from None
        except (Unreachable, Forbidden, Refused) as error:
            raise self._unasked(error) from None

    def _unasked(self, error: Exception) -> PlansmithError:
        if isinstance(error, Forbidden):
            return self._fault(
                f"does not let its models be controlled: {error}",
                f"set {HEADER_VARIABLE} to the header that it asks for, as in 'admin-key: secret'",
            )
        return self._fault(f"cannot be asked: {error}", "see that it runs, and that host, port and scheme are right")

    def _fault(self, what: str, remedy: str) -> EnvironmentFault:
        return EnvironmentFault(f"the Triton at {self.url} {what}", remedy=remedy)


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
