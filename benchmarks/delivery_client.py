"""A process that sends deliveries, each over a connection of its own, as MLflow does.

    python -m benchmarks.delivery_client PORT

Each line of standard input is a `Task`, each line of standard output a `Record` of it. What is sent is signed before
the time runs. At a rate, each delivery has its time, and the seconds until its answer count from then, whether or not
those before it were answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

from tests.support.deliveries.hostile import MLFLOW, alias_set, right
from tests.support.deliveries.sending import ask


@dataclass(frozen=True)
class Task:
    """What to send.

    Args:
        name: begins the id of each delivery.
        number: how many deliveries.
        per_second: at this rate, evenly; as fast as they are answered where 0.
        at_once: how many wait for their answers then, at most.
    """

    name: str
    number: int
    per_second: float = 0
    at_once: int = 32


@dataclass(frozen=True)
class Record:
    """What came of it.

    Args:
        seconds: from the first delivery to the last answer.
        latencies: seconds of each.
        statuses: of each.
    """

    seconds: float
    latencies: list[float]
    statuses: list[int]


def main(port: int) -> None:
    for line in sys.stdin:
        task = Task(**json.loads(line))
        deliveries = [right(alias_set(f"{task.name}-{number}"), MLFLOW) for number in range(task.number)]
        record = asyncio.run(_at_a_rate(port, deliveries, task) if task.per_second else _all(port, deliveries, task))
        print(json.dumps(asdict(record)), flush=True)


async def _at_a_rate(port: int, deliveries: list[bytes], task: Task) -> Record:
    begun = time.monotonic()

    async def send(number: int) -> tuple[int, float]:
        due = begun + number / task.per_second
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        status = await ask(port, deliveries[number])
        return status, time.monotonic() - due

    results = await asyncio.gather(*map(send, range(task.number)))
    return _record(begun, results)


async def _all(port: int, deliveries: list[bytes], task: Task) -> Record:
    begun, left = time.monotonic(), list(reversed(deliveries))
    results: list[tuple[int, float]] = []

    async def send() -> None:
        while left:
            start = time.monotonic()
            status = await ask(port, left.pop())
            results.append((status, time.monotonic() - start))

    await asyncio.gather(*(send() for _ in range(task.at_once)))
    return _record(begun, results)


def _record(begun: float, results: list[tuple[int, float]]) -> Record:
    return Record(time.monotonic() - begun, [seconds for _, seconds in results], [status for status, _ in results])


if __name__ == "__main__":
    main(int(sys.argv[1]))
