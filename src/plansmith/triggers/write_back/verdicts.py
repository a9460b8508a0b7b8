"""What is told a registry of the builds that one of its events became: a few names with short texts.

All names begin with `OWN_TAGS`, so that what is written never triggers again. Each telling writes the same names, with
`NOTHING` where there is nothing to say: what an earlier build left does not stay beside what a later one says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, Protocol

from pydantic import Field

from plansmith.records.model import Record
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.event import OWN_TAGS, Event

NOTHING = "none"

Verdict = Literal["published", "refused", "failed", "cancelled"]
"""It stands, was judged and not good enough, could not be made, or was ended by somebody."""

_BY_WEIGHT: tuple[Verdict, ...] = ("cancelled", "failed", "refused", "published")
_DIGEST_LENGTH = 8
_NO_LABEL = re.compile(r"[^A-Za-z0-9_.-]")


class Build(Record):
    """What came of a model for a target.

    `places`: where it stands; `reason`: why it does not; `run`: the address of its flow run, or its id.
    """

    model: str
    target: str
    verdict: Verdict
    reason: str = ""
    places: tuple[str, ...] = ()
    manifest_digest: str = ""
    figures: dict[str, int | float | str] = Field(default_factory=dict)
    run: str = ""


class VersionReport(Record):
    """What is told of a version.

    `builds`: that ended and were not told before, of each model and target the one of the youngest event; `verdict`: of
    all, also of those that were told before, empty while it may still be published or not; `is_last`: no event
    has had another version of the model published since.
    """

    event: Event
    builds: tuple[Build, ...]
    verdict: Verdict | Literal[""]
    is_last: bool


class Writer(Protocol):
    """Writes to a registry; for several threads."""

    def write(self, telling: VersionReport, still_ours: Callable[[], bool]) -> bool:
        """Tell a version what came of its builds; telling it twice is telling it once.

        Args:
            telling: what.
            still_ours: asked before each change whether to go on.

        Returns:
            False where it was not gone on with.

        Raises:
            UsageError: the registry does not take it, or has no such version.
            EnvironmentFault: the registry cannot be asked.
        """
        ...


class Form(Record):
    """How a registry wants its texts.

    `longest_name` and `longest_value`: in bytes of UTF-8; `foreign`: a pattern of what no value may hold; `as_json`:
    whether figures may be written so.
    """

    longest_name: int
    longest_value: int
    foreign: str = ""
    as_json: bool = True

    def texts(self, telling: VersionReport) -> dict[str, str]:
        """What is told, by name; the verdict of the whole comes last."""
        told = {f"{OWN_TAGS}{name}": text for one in telling.builds for name, text in self._of(one)}
        if telling.verdict:
            told[f"{OWN_TAGS}verdict"] = telling.verdict
        return {name: self._fitting(text) for name, text in told.items()}

    def _of(self, build: Build) -> Iterator[tuple[str, str]]:
        said = {
            "verdict": build.verdict,
            "reason": build.reason,
            "published": ", ".join(build.places),
            "manifest": build.manifest_digest,
            "figures": self._figures(build.figures),
            "run": build.run,
        }
        room = self.longest_name - len(OWN_TAGS) - max(map(len, said)) - 1
        label = _label(f"{build.model}.{build.target}", room)
        for name, text in said.items():
            yield f"{label}.{name}", text or NOTHING

    def _figures(self, figures: Mapping[str, int | float | str]) -> str:
        """As many as there is room for: JSON that is cut off is none, and half a number is another one."""
        left = dict(figures)
        while left:
            text = json.dumps(left) if self.as_json else " ".join(f"{name}={value}" for name, value in left.items())
            if len(text.encode()) <= self.longest_value:
                return text
            left.popitem()
        return ""

    def _fitting(self, text: str) -> str:
        """A text that the registry takes: what it may not hold becomes a space, and one that is too long is cut."""
        plain = re.sub(f"(?: *{self.foreign})+ *", " ", text) if self.foreign else text
        return plain.encode(errors="replace")[: self.longest_value].decode(errors="ignore")


def whole_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """That of several builds: published where all are."""
    return min(verdicts, key=_BY_WEIGHT.index, default="published")


def _label(text: str, longest: int) -> str:
    plain = _NO_LABEL.sub("_", text)
    if plain == text and len(plain) <= longest:
        return plain
    return f"{plain[: longest - _DIGEST_LENGTH - 1]}-{digest_of(text)[:_DIGEST_LENGTH]}"
