"""What was found, how bad it is, what that means for a compile, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from plansmith.errors import EnvironmentFault

_MOST_COMMANDS = 5


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    OPTIONAL = "optional"
    """Absent, and needed for something that not everybody does."""
    WARNING = "warning"
    """There and not as it should be; a plain compile still works."""
    PROBLEM = "problem"
    """A plain compile (ONNX Runtime, checked on a running Triton) does not work."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        area: the heading it stands under.
        name: what was looked at.
        severity: how bad it is.
        found: version, path or figure; or what is wrong.
        needed_for: what does not work without it.
        remedy: what to type or change; empty where nothing is to be done.
    """

    area: str
    name: str
    severity: Severity
    found: str
    needed_for: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Examination:
    """All findings of one run, in the order in which they are shown.

    Args:
        findings: what was found.
        strict: warnings count for the exit code too.
    """

    findings: Sequence[Finding]
    strict: bool = False

    def count(self, severity: Severity) -> int:
        """How many findings are that bad."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0, or that of `EnvironmentFault`."""
        counting = (Severity.PROBLEM, Severity.WARNING) if self.strict else (Severity.PROBLEM,)
        return EnvironmentFault.exit_code if any(map(self.count, counting)) else 0

    @property
    def verdict(self) -> str:
        """One line that says whether a plain compile works here."""
        problems, warnings = self.count(Severity.PROBLEM), self.count(Severity.WARNING)
        also = f", with {_counted(warnings, 'warning')}" if warnings else ""
        if problems:
            return f"This machine is not ready to compile: {_counted(problems, 'problem')}{also}."
        return f"This machine can compile for ONNX Runtime and check the result on Triton{also}."

    @property
    def commands(self) -> list[str]:
        """What to type next: the remedies of problems, then those of warnings, each once and the first few only."""
        ordered = [
            f for severity in (Severity.PROBLEM, Severity.WARNING) for f in self.findings if f.severity is severity
        ]
        remedies = dict.fromkeys(finding.remedy for finding in ordered if finding.remedy)
        return list(remedies)[:_MOST_COMMANDS] or ["plansmith compile --help"]

    def to_dict(self) -> dict[str, Any]:
        """The examination as JSON-ready fields."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "counts": {severity.value: self.count(severity) for severity in Severity},
            "next": self.commands,
            "findings": [asdict(finding) for finding in self.findings],
        }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
