"""Loads as a person types them: durations, shares, numbers of users, ramps."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plansmith.errors import UsageError
from plansmith.loadtest.plan.stages import Stage

DEFAULT_USERS = (1, 2, 4, 8, 16, 32)
DEFAULT_USER_SECONDS = 10.0
DEFAULT_RATE_SECONDS = 30.0

RAMPS = {"staged": "10:200:20x30s"}
"""Ramps by name. staged: 10 users warm up, then 20 more every 30 s, up to 200."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_RAMP = re.compile(r"(\d{1,9}):(\d{1,9}):\+?(\d{1,9})x(.+)")
_MAX_STAGES = 1000


def read_duration(text: str, option: str) -> float:
    """A duration in seconds: 200ms, 30s, 2m, 1h, or a number of seconds.

    Raises:
        UsageError: another form, or 0.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise UsageError(f"{option} {text!r} is no duration", remedy=f"write it like {option} 30s, 2m or 200ms")
    return seconds


def read_milliseconds(text: str, option: str) -> float:
    """A latency in milliseconds: 200ms, 1.5s; a number without a unit is milliseconds.

    Raises:
        UsageError: another form, or 0.
    """
    plain = text.strip()
    return read_duration(f"{plain}ms" if plain.replace(".", "", 1).isdecimal() else plain, option) * 1000


def read_share(text: str, option: str) -> float:
    """A share from 0 to 1: 0.01 or 1%.

    Raises:
        UsageError: another form.
    """
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"{option} {text!r} is no share", remedy=f"write it like {option} 1% or 0.01")
    return value


def read_numbers(text: str, option: str, *, whole: bool) -> tuple[float, ...]:
    """Positive numbers, separated by commas.

    Raises:
        UsageError: another form.
    """
    try:
        numbers = tuple(float(int(part)) if whole else float(part) for part in text.split(","))
    except (ValueError, OverflowError):
        numbers = (0.0,)
    if not all(0 < number < float("inf") for number in numbers):
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{option} {text!r} is no list of {kind} above 0", remedy=f"write it like {option} 10,20,40")
    return numbers


def user_stages(users: Sequence[float], seconds: float, spawn_rate: float | None = None) -> tuple[Stage, ...]:
    """A stage for each number of users.

    Args:
        users: of the stages.
        seconds: of each stage with all of its users; the time in which they start is added.
        spawn_rate: users started or stopped per second; all at once when None.
    """
    stages, before = [], 0
    for count in map(int, users):
        ramp_seconds = abs(count - before) / spawn_rate if spawn_rate else 0.0
        stages.append(Stage(users=count, seconds=seconds + ramp_seconds, spawn_rate=spawn_rate))
        before = count
    return tuple(stages)


def read_ramp(text: str) -> tuple[Stage, tuple[Stage, ...]]:
    """A ramp FIRST:LAST:STEPxTIME, or its name: FIRST users warm up, then STEP more every TIME, up to LAST.

    Returns:
        The warm-up and the stages.

    Raises:
        UsageError: another form, or users that do not grow.
    """
    match = _RAMP.fullmatch(RAMPS.get(text.strip(), text.strip()))
    if match is None:
        raise UsageError(
            f"--ramp {text!r} is not FIRST:LAST:STEPxTIME",
            remedy="write it like --ramp 10:200:20x30s, or --ramp staged for this one",
        )
    first, last, step = int(match[1]), int(match[2]), int(match[3])
    seconds = read_duration(match[4], "--ramp")
    if not 1 <= first < last or not step:
        raise UsageError(f"the users of --ramp {text!r} do not grow", remedy="write it like --ramp 10:200:20x30s")
    users = [min(count, last) for count in range(first + step, last + step, step)]
    if len(users) > _MAX_STAGES:
        raise UsageError(f"--ramp {text!r} has {len(users)} stages", remedy="take a larger step")
    return Stage(users=first, seconds=seconds), tuple(Stage(users=count, seconds=seconds) for count in users)
