"""Exceptions that plansmith raises on purpose, and the exit code of each.

PlansmithError
├── UsageError            2  the command line or a spec
├── SourceError           3  the model cannot be fetched or read
├── ExportError           4  export or lowering
├── GateError             5  the accuracy gate was not passed
├── EngineError           6  the engine or the target
├── RepositoryError       7  the model repository or a store
├── ServedCheckError      8  the running Triton does not answer as it should
├── EnvironmentFault      9  something is missing or unreachable on this machine
├── SignatureError       10  a release is not signed by whom it must be, or cannot be signed
└── InternalError         1  a bug of ours

An interrupt is Python's own KeyboardInterrupt; the command line ends with 130 then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXIT_INTERRUPTED = 130

_ADDRESS = re.compile(r"(?P<scheme>://)(?:[^\s/?#@]+(?P<at>@))?(?P<rest>[^\s?'\"]*)(?:(?P<mark>\?)[^\s'\"]+)?")
"""An address in a text: a user and password may stand before its host, and a token in its query (RFC 3986, 3)."""


def _without_secrets(match: re.Match[str]) -> str:
    scheme, at, rest, mark = match["scheme"], match["at"], match["rest"], match["mark"]
    return f"{scheme}{'…@' if at else ''}{rest}{'?…' if mark else ''}"


class PlansmithError(Exception):
    """Base error of plansmith: what is wrong, where, and the remedy.

    Args:
        message: what was wrong, in one or a few lines; user, password and query of an address are left out.
        remedy: what to type or change next.
        model: the model's name, filled in by the step that raises when it is known.
        step: the step that failed.
        log: the file that holds the whole story.
        transient: the same may well succeed in a minute, so that trying again by itself makes sense.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        model: str = "",
        step: str = "",
        log: Path | None = None,
        transient: bool = False,
    ) -> None:
        self.message = _ADDRESS.sub(_without_secrets, message)
        super().__init__(self.message)
        self.remedy = remedy
        self.model = model
        self.step = step
        self.log = log
        self.transient = transient

    def located(self, *, model: str = "", step: str = "", log: Path | None = None) -> PlansmithError:
        """Add the location, keeping parts already set."""
        self.model = self.model or model
        self.step = self.step or step
        self.log = self.log or log
        return self

    def __str__(self) -> str:
        place = " · ".join(part for part in (self.model, self.step) if part)
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.remedy:
            lines.append(f"Next: {self.remedy}")
        if self.log is not None:
            lines.append(f"{'Report' if self.log.suffix == '.html' else 'Log'}: {self.log}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON-ready fields; `error_from_dict` is the inverse."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "remedy": self.remedy,
            "model": self.model,
            "step": self.step,
            "log": str(self.log) if self.log else None,
            "transient": self.transient,
            "exit_code": self.exit_code,
        }


class UsageError(PlansmithError):
    """Usage error: the command line or a spec is wrong.

    Nothing was changed. The message names the option or the key; `plansmith explain KEY` tells what a key of a spec
    takes.
    """

    exit_code = 2


class SourceError(PlansmithError):
    """Source error: the model cannot be found, fetched, trusted or read.

    Nothing was published. What was fetched whole is kept, and is not fetched again.
    """

    exit_code = 3


class ExportError(PlansmithError):
    """Export error: no exporter or lowering gave a graph that agrees with the model.

    Nothing was published. The log holds what each exporter said. A model that cannot be exported is served as it is
    with `engine: python`.
    """

    exit_code = 4


class GateError(PlansmithError):
    """Accuracy gate error: the candidate differs from the reference by more than the tolerances.

    Nothing was published, and Triton goes on serving the version before. The report shows each output with its worst
    samples. With `data` of your own, lowering finds out which nodes have to keep their precision; `tolerances` say what
    is allowed.
    """

    exit_code = 5


class EngineError(PlansmithError):
    """Engine error: the engine cannot be built, at all or for this target.

    Nothing was published. `plansmith targets NAME` shows what a target has, and `plansmith doctor` what this machine
    has.
    """

    exit_code = 6


class RepositoryError(PlansmithError):
    """Repository error: the model repository or a store cannot perform a request.

    What was published before is still there and whole; `plansmith verify` reads all of it, and says what is damaged.
    """

    exit_code = 7


class ServedCheckError(PlansmithError):
    """Served check error: a running Triton refused the model or answered wrongly.

    The version was not published, or was withdrawn. The log is Triton's own. `plansmith check` finds what Triton
    refuses in a configuration, without a server.
    """

    exit_code = 8


class EnvironmentFault(PlansmithError):
    """Environment fault: something that the step needs is missing or unreachable.

    `plansmith doctor` tells what this machine lacks. Once it is there, the same command goes on after the last step
    that was finished.
    """

    exit_code = 9


class SignatureError(PlansmithError):
    """Signature error: a release is not signed by whom a policy names, or cannot be signed.

    The release was not taken, and what was served before still is. `plansmith inspect` shows who says to have signed a
    release, and the policy who may.
    """

    exit_code = 10


class InternalError(PlansmithError):
    """Internal error: a bug in plansmith; the log holds the traceback.

    Nothing was published. Please report it, with the log.
    """

    exit_code = 1


def require_all(*checks: Callable[[], object]) -> None:
    """Run independent checks and raise all their errors together.

    Raises:
        PlansmithError: what a check raised; of several, of the first one's kind, with the messages and remedies of all.
    """
    errors: list[PlansmithError] = []
    for check in checks:
        try:
            check()
        except PlansmithError as error:
            errors.append(error)
    if len(errors) > 1:
        first = errors[0]
        raise type(first)(
            "\n  ".join([f"{len(errors)} problems:", *(error.message for error in errors)]),
            remedy="; ".join(dict.fromkeys(error.remedy for error in errors if error.remedy)),
            model=first.model,
            step=first.step if len({error.step for error in errors}) == 1 else "",
        ) from first
    if errors:
        raise errors[0]


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message; its type if the message is empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def in_one_line(text: str) -> str:
    """Condense a multi-line text: its first line, plus the last if the first only introduces it (ends in ":").

    The last of a list that was cut ("… and 3 more") comes with its first.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        details = [lines[1]] if len(lines) > 2 and lines[-1].startswith("…") else []
        return " ".join([lines[0], *details, lines[-1]])
    return lines[0].removesuffix(":") if lines else ""


def error_from_dict(fields: dict[str, Any]) -> PlansmithError:
    """Rebuild an error from `PlansmithError.to_dict` after it crossed a process boundary."""
    classes: dict[str, type[PlansmithError]] = {c.__name__: c for c in PlansmithError.__subclasses__()}
    return classes[fields["error"]](
        fields["message"],
        remedy=fields["remedy"],
        model=fields["model"],
        step=fields["step"],
        log=Path(fields["log"]) if fields["log"] else None,
        transient=fields["transient"],
    )
