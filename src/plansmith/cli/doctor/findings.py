"""Findings: the result, its severity, what it means for a compile, and the command to run next."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import IO, Any

from plansmith.errors import EnvironmentFault
from plansmith.formatting import count

_MOST_COMMANDS = 5

LIMIT_SECONDS = 60.0
_KILLED_SECONDS = 2


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    OPTIONAL = "optional"
    """Absent, and needed for something that not everybody does."""
    WARNING = "warning"
    """There and not as it should be; a plain compile still works."""
    PROBLEM = "problem"
    """A plain compile (ONNX Runtime, checked on a running Triton) does not work."""


@dataclass(frozen=True)
class Finding:
    """Finding of one check.

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
    """All findings of one run, in display order.

    Args:
        findings: what was found.
        strict: warnings count for the exit code too.
    """

    findings: Sequence[Finding]
    strict: bool = False

    def count(self, severity: Severity) -> int:
        """Count the findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """The exit code: 0, or that of `EnvironmentFault`."""
        counting = (Severity.PROBLEM, Severity.WARNING) if self.strict else (Severity.PROBLEM,)
        return EnvironmentFault.exit_code if any(map(self.count, counting)) else 0

    @property
    def verdict(self) -> str:
        """One line that states whether a basic compile works here."""
        problems, warnings = self.count(Severity.PROBLEM), self.count(Severity.WARNING)
        also = f", with {count(warnings, 'warning')}" if warnings else ""
        if problems:
            return f"This machine is not ready to compile: {count(problems, 'problem')}{also}."
        return f"This machine can compile for ONNX Runtime and check the result on Triton{also}."

    @property
    def commands(self) -> list[str]:
        """Commands to run next: remedies of problems, then of warnings, without duplicates and only the first few."""
        ordered = [
            f for severity in (Severity.PROBLEM, Severity.WARNING) for f in self.findings if f.severity is severity
        ]
        remedies = dict.fromkeys(finding.remedy for finding in ordered if finding.remedy)
        return list(remedies)[:_MOST_COMMANDS] or ["plansmith compile --help"]

    def to_dict(self) -> dict[str, Any]:
        """Return the examination as JSON-ready fields."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "counts": {severity.value: self.count(severity) for severity in Severity},
            "next": self.commands,
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(frozen=True)
class Ended:
    """Exit of a program.

    Args:
        status: its exit code, minus the signal that ended it, or None where it went on beyond its limit.
        printed: its standard output.
        complaints: its standard error.
        limit_seconds: how long it had.
    """

    status: int | None
    printed: str
    complaints: str
    limit_seconds: float

    @property
    def failure(self) -> str:
        """The failure as text; empty on success."""
        if self.status == 0:
            return ""
        last = next((line.strip() for line in reversed(self.complaints.splitlines()) if line.strip()), "")
        if self.status is None:
            how = f"did not end within {self.limit_seconds:g} s"
        elif self.status < 0:
            how = f"was ended by {signal.Signals(-self.status).name}"
        else:
            how = f"ended with exit code {self.status}"
        return f"{how}: {last}" if last else how


@dataclass(frozen=True)
class Probed:
    """Probe result of a library or service; without facts it is broken, or absent if no reason is given either.

    Args:
        facts: what the probe found.
        broken: why it cannot be used.
    """

    facts: dict[str, Any] | None = None
    broken: str = ""

    @property
    def is_absent(self) -> bool:
        """Whether it is not installed."""
        return self.facts is None and not self.broken


async def run_program(command: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> Ended:
    """Run a program until it ends or reaches its time limit; keeps its output even if killed."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=errors, env=_environment()
            )
        except OSError as error:
            return Ended(127, "", f"{command[0]}: {error.strerror}", limit_seconds)
        status = await _status(process, limit_seconds)
        return Ended(status, _text(output), _text(errors), limit_seconds)


async def run_probe(name: str, *, online: bool, limit_seconds: float = LIMIT_SECONDS) -> Probed:
    """Run `plansmith.cli.doctor.probes` for one library or service in its own process."""
    command = [
        sys.executable,
        "-m",
        "plansmith.cli.doctor.probes",
        name,
        str(os.getpid()),
        *([] if online else ["--offline"]),
    ]
    return probed(await run_program(command, limit_seconds=limit_seconds))


def probed(ended: Ended) -> Probed:
    """Parse the exit of a probe."""
    if ended.failure:
        return Probed(broken=f"importing it {ended.failure}")
    try:
        return Probed(**json.loads(ended.printed))
    except ValueError:
        return Probed(broken="importing it ended Python before there was an answer")


async def _status(process: asyncio.subprocess.Process, limit_seconds: float) -> int | None:
    """Return the exit status; None if the time limit came first. The process is always ended."""
    try:
        return await asyncio.wait_for(process.wait(), limit_seconds)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(TimeoutError):  # a driver that hangs can hold even a killed process
                await asyncio.wait_for(process.wait(), _KILLED_SECONDS)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _environment() -> dict[str, str]:
    """Return the environment for probes, with the telemetry of Prefect and the Hugging Face client disabled."""
    return {**os.environ, "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
