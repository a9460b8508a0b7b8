"""One server that is told to load models and to let go of them: what goes wrong, in words that say what to do."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.system.urls import HEADER_VARIABLE, read_address, read_header
from plansmith.triton.server.control.api import (
    ControlRefusal,
    Forbidden,
    SentModel,
    StillLoading,
    Unreachable,
    calls_to,
)

REHEARSAL = "plansmith-rehearsal-of-"
_NO_MODEL = "plansmith-no-model"
PAUSE_SECONDS = 0.5

_UNCONTROLLED = "explicit model load / unload is not allowed"

# While it loads, a server may be slow to say what it has; one that nobody reaches for so long is taken for gone.
_GONE_SECONDS = 10


class ModelControlClient:
    """A server that takes calls to load models; arguments and errors are those of `live.RunningTriton`."""

    def __init__(self, url: str, *, load_seconds: float) -> None:
        address = read_address(url)
        if find_spec("tritonclient") is None:
            raise EnvironmentFault("tritonclient is not installed", remedy="pip install 'plansmith[client]'")
        self.url = url
        self.may_have_changed = False
        self._load_seconds = load_seconds
        self._calls = calls_to(address, _header())

    def change(self, what: str, model: str, sent: SentModel | None = None, *, seconds: float | None = None) -> None:
        """Have the server load a model or let go of it.

        Args:
            what: load or unload.
            model: its name, or that of a rehearsal.
            sent: what to load in place of a folder of the server's repository.
            seconds: how long it may take, where that is not the usual time.

        Raises:
            ServedCheckError: it refuses, with its reason, or takes too long.
            EnvironmentFault: it cannot be asked.
        """
        own = model.removeprefix(REHEARSAL)
        seconds = self._load_seconds if seconds is None else seconds
        try:
            if what == "unload":
                self._calls.unload(model, seconds)
            else:
                self._calls.load(model, seconds, sent)
        except ControlRefusal as said:
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

    def require_control(self) -> None:
        """See that the server takes calls to load models.

        Raises:
            EnvironmentFault: it does not, or cannot be asked.
        """
        # A server whose models nobody controls refuses this; one that is controlled has nothing to unload.
        with suppress(ServedCheckError):
            self.change("unload", _NO_MODEL)

    def index(self, deadline: float = 0) -> list[dict[str, str]]:
        """What the server says of its models; asked again until a moment of `time.monotonic` where it says nothing.

        Raises:
            EnvironmentFault: it cannot be asked.
        """
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
            except (Forbidden, ControlRefusal) as error:
                raise self._unasked(error) from None
            time.sleep(PAUSE_SECONDS)

    def config(self, model: str) -> Any:
        """The configuration by which the server serves a model; None where it serves none of it.

        Raises:
            EnvironmentFault: it cannot be asked.
        """
        try:
            return self._calls.config(model)
        except ControlRefusal:
            return None
        except StillLoading:
            raise self._fault("does not answer", "see that it runs, and that the port is right") from None
        except (Forbidden, Unreachable) as error:
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


def _in_words(said: str, model: str, own: str) -> str:
    """Triton's reason, without the words around it that say again which model it is."""
    text = said.strip().removeprefix(f"load failed for model '{model}':").strip()
    return text.replace(model, own)
