"""Programs and probes that are asked something within a time limit: a crash or a hang of theirs is an answer too."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

LIMIT_SECONDS = 60.0

_KILLED_SECONDS = 2


@dataclass(frozen=True)
class Ended:
    """How a program ended.

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
        """In words, how it failed; empty where it did not."""
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
    """What is known of a library or service; without facts it is broken, and without a reason for that, absent.

    Args:
        facts: what the probe found.
        broken: why it cannot be used.
    """

    facts: dict[str, Any] | None = None
    broken: str = ""

    @property
    def is_absent(self) -> bool:
        """It is not installed."""
        return self.facts is None and not self.broken


async def run_program(command: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> Ended:
    """Run a program to its end, or to that of its limit; what it prints is kept even if it is killed."""
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
    """Have `plansmith.cli.doctor.probes` look at one library or service, in a process of its own."""
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
    """What a probe's end says."""
    if ended.failure:
        return Probed(broken=f"importing it {ended.failure}")
    try:
        return Probed(**json.loads(ended.printed))
    except ValueError:
        return Probed(broken="importing it ended Python before there was an answer")


async def _status(process: asyncio.subprocess.Process, limit_seconds: float) -> int | None:
    """The exit status; None where the limit came first. However this ends, the process does too."""
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
    """Looking at Prefect and the hub's client tells their makers nothing."""
    return {**os.environ, "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
