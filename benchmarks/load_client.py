"""A client in a process of its own, which asks as soon as it is answered.

    python -m benchmarks.load_client FOLDER

FOLDER holds `bodies.json` and `expected.npy`, a body and an answer for each question. Each line of standard input is a
`Task`, each line of standard output a `Record` of it. The answers are looked at after the last one has come, so that
looking takes no time from the servers.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

_SECONDS = 120


@dataclass(frozen=True)
class Task:
    """What to ask: at host:port, under a path, these questions by their number."""

    url: str
    path: str
    questions: list[int]


@dataclass(frozen=True)
class Record:
    """What came of a task.

    Args:
        started: seconds of the system's monotonic clock, the same for all processes.
        ended: when the last answer was there.
        latencies: seconds of each request.
        error: the largest distance of an answer from the expected one, in parts of that one's length.
        refusal: the first answer that was none, or empty.
    """

    started: float
    ended: float
    latencies: list[float]
    error: float
    refusal: str = ""


def main(folder: Path) -> None:
    bodies = [body.encode() for body in json.loads((folder / "bodies.json").read_text())]
    expected = np.load(folder / "expected.npy")
    for line in sys.stdin:
        task = Task(**json.loads(line))
        connection = http.client.HTTPConnection(task.url, timeout=_SECONDS)
        connection.connect()
        latencies, answers = [], []
        started = time.monotonic()
        for number in task.questions:
            sent = time.monotonic()
            connection.request("POST", task.path, bodies[number], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
            latencies.append(time.monotonic() - sent)
        ended = time.monotonic()
        connection.close()
        refused = [content.decode(errors="replace") for status, content in answers if status != http.client.OK]
        errors = (
            []
            if refused
            else [
                distance(content, expected[number])
                for number, (_, content) in zip(task.questions, answers, strict=True)
            ]
        )
        record = Record(started, ended, latencies, max(errors, default=0.0), *refused[:1])
        print(json.dumps(asdict(record)), flush=True)


def distance(content: bytes, expected: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """How far the vector of an answer is from the expected one; infinite if it is none of this length."""
    vector = np.array(json.loads(content)["outputs"][0]["data"])
    if vector.shape != expected.shape or not np.isfinite(vector).all():
        return float("inf")
    return float(np.linalg.norm(vector - expected) / np.linalg.norm(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
