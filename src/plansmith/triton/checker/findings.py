"""What a check of a repository finds, and the rules that findings are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plansmith.records.model import Record

Severity = Literal["error", "warning", "note"]
"""An error: Triton refuses the model, or requests fail; a warning: it does not do what was meant; a note: advice."""


class Finding(Record):
    """One thing that is wrong in a repository.

    `rule`: the stable id of what was broken; `model`: the name of its folder, empty for the repository as a whole;
    `place`: the file or folder, relative to the repository, which itself is "."; `line`: in it from 1, 0 where there is
    none.
    """

    rule: str
    severity: Severity
    model: str
    place: str
    line: int = 0
    message: str
    remedy: str


@dataclass(frozen=True)
class Rule:
    """Something that holds in a repository which Triton serves as it was meant.

    Args:
        id: stable; the area and the rule, such as "layout.version-name".
        severity: of what breaks it.
        summary: what holds, in one sentence.
        source: who says so: a file of Triton's sources, a page of its documentation, or what a server was seen to do.
    """

    id: str
    severity: Severity
    summary: str
    source: str

    def broken(self, message: str, *, model: str, place: str, remedy: str, line: int = 0) -> Finding:
        """The finding that something breaks the rule."""
        return Finding(
            rule=self.id, severity=self.severity, model=model, place=place, line=line, message=message, remedy=remedy
        )
