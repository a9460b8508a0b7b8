"""Many hostile requests to a real receiver with right ones among them, and all that has to be so afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from .hostile import HOOK, MLFLOW, SECRETS, Hostile, alias_set, right, signed_request
from .hostile_kinds import KINDS, Kind
from .sending import Storm, ask, storm
from .served import Served

_ACCEPTED = 202
_MOST_GROWTH_MIB = 128
_OF_THE_LOG = ("Traceback", "v1,", "never-", *SECRETS.values())
"""What must stand in no log: secrets, signatures, and what was never proven."""


def attack(receiver: Served, *, number: int, seed: int, at_once: int) -> list[str]:
    """Send so many hostile requests, of all kinds in turn, and some right ones; those are then sent again.

    Returns:
        What is not as it should be, in words.
    """
    chance = Random(seed)
    names = [f"right-{index}" for index in range(max(20, number // 50))]
    makers = {name: _right(index, name) for index, name in enumerate(names)}
    sent: list[bytes] = []

    def right_one(name: str) -> bytes:
        sent.append(makers[name]())
        return sent[-1]

    def replayed() -> Hostile:
        return Hostile((chance.choice(sent) if sent else b"",), frozenset({0, _ACCEPTED}))

    kinds: list[tuple[str, Callable[[], Hostile]]] = [
        _named(KINDS[index % len(KINDS)], chance) for index in range(number)
    ]
    kinds += [("replayed", replayed)] * (number // 10)
    chance.shuffle(kinds)
    receiver.entries()
    before = receiver.resident_mib
    result = asyncio.run(storm(receiver.port, kinds, [partial(right_one, name) for name in names], at_once=at_once))
    again = asyncio.run(_again(receiver.port, sent))
    growth = receiver.resident_mib - before
    return [*_answers(result, again), *_state(receiver, names, growth)]


def _right(number: int, name: str) -> Callable[[], bytes]:
    if number % 2:
        return lambda: right(signed_request(name), HOOK)
    return lambda: right(alias_set(name), MLFLOW)


def _named(kind: Kind, chance: Random) -> tuple[str, Callable[[], Hostile]]:
    return kind.__name__, lambda: kind(chance)


async def _again(port: int, sent: list[bytes]) -> set[int]:
    return {await ask(port, data) for data in sent}


def _answers(result: Storm, again: set[int]) -> list[str]:
    problems = [f"{name} was answered {sorted(statuses)}" for name, statuses in result.wrong]
    refused = [status for status in result.genuine if status != _ACCEPTED]
    problems += [f"right ones were answered {refused}"] if refused else []
    return problems + ([f"repeated ones were answered {again}"] if again != {_ACCEPTED} else [])


def _state(receiver: Served, names: list[str], growth: float) -> list[str]:
    problems = [] if receiver.program.is_running else ["it has ended"]
    deliveries = sorted(entry.delivery for entry in receiver.entries())
    if deliveries != sorted(names):
        problems.append(f"kept: {set(deliveries) ^ set(names)}, or one twice")
    if growth > _MOST_GROWTH_MIB:
        problems.append(f"it has grown by {growth:.0f} MiB")
    problems += [f"its log has {word}" for word in _OF_THE_LOG if word in receiver.output]
    if odd := {line["event"] for line in receiver.lines} - {"delivery"}:
        problems.append(f"its log tells of {odd}")
    return problems
