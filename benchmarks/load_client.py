"""A client in a process of its own, which asks as soon as it is answered.

    python -m benchmarks.load_client FOLDER

FOLDER holds `bodies.json` and `expected.npy`, a body (a letter a byte) and an answer for each question. Each line of
standard input is a `Task`, each line of standard output a `Record` of it. The answers are looked at after the last one
has come, so that looking takes no time from the servers.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_SECONDS = 120
# Where the JSON of a body ends and bytes of tensors begin.
_HEADER_BYTES = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Task:
    """What to ask.

    Args:
        url: host and port.
        path: of the model.
        questions: by their number.
        tokenizer: where the bodies hold a text each: the folder of the source's tokenizer, which makes tokens of them
            here, while the time runs.
        padded_to: how many tokens that gives at least.
    """

    url: str
    path: str
    questions: list[int]
    tokenizer: str = ""
    padded_to: int = 0


@dataclass(frozen=True)
class Record:
    """What came of a task.

    Args:
        started: seconds of the system's monotonic clock, the same for all processes.
        ended: when the last answer was there.
        latencies: seconds of each request.
        cpu_seconds: that this process used until then.
        error: the largest distance of an answer from the expected one, in parts of that one's length.
        refusal: the first answer that was none, or empty.
    """

    started: float
    ended: float
    latencies: list[float]
    cpu_seconds: float
    error: float
    refusal: str = ""


def main(folder: Path) -> None:
    bodies = [body.encode("latin-1") for body in json.loads((folder / "bodies.json").read_text())]
    headers = [headers_of(body) for body in bodies]
    expected = np.load(folder / "expected.npy")
    for line in sys.stdin:
        task = Task(**json.loads(line))
        body_of = tokens_of(bodies, task) if task.tokenizer else bodies.__getitem__
        connection = http.client.HTTPConnection(task.url, timeout=_SECONDS)
        connection.connect()
        latencies, answers = [], []
        cpu_before, started = time.process_time(), time.monotonic()
        for number in task.questions:
            sent = time.monotonic()
            connection.request("POST", task.path, body_of(number), headers[number])
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
            latencies.append(time.monotonic() - sent)
        ended, cpu_seconds = time.monotonic(), time.process_time() - cpu_before
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
        record = Record(started, ended, latencies, cpu_seconds, max(errors, default=0.0), *refused[:1])
        print(json.dumps(asdict(record)), flush=True)


def question(inputs: Mapping[str, Sequence[object]], datatype: str, output: str) -> str:
    """The body of a request of one row."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": [1, len(row)], "data": row} for name, row in inputs.items()
    ]
    return json.dumps({"inputs": tensors, "outputs": [{"name": output}]})


def headers_of(body: bytes) -> dict[str, str]:
    """What HTTP has to say of a body: where its JSON ends, if anything follows."""
    _, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return {"Content-Type": "application/json"} if end == len(body) else {_HEADER_BYTES: str(end)}


def tokens_of(bodies: Sequence[bytes], task: Task) -> Callable[[int], bytes]:
    """Makes bodies with tokens of those with texts, with the source's own tokenizer."""
    tokenizer = opened(task.tokenizer)
    questions = [json.loads(body) for body in bodies]
    texts, output = [entry["inputs"][0]["data"][0] for entry in questions], questions[0]["outputs"][0]["name"]
    padding = {"padding": "max_length", "max_length": task.padded_to} if task.padded_to else {}
    return lambda number: question(tokenizer(texts[number], truncation=True, **padding), "INT64", output).encode()


@cache
def opened(folder: str) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def distance(content: bytes, expected: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """How far the vector of an answer is from the expected one; infinite if it is none of this length."""
    vector = np.array(json.loads(content)["outputs"][0]["data"])
    if vector.shape != expected.shape or not np.isfinite(vector).all():
        return float("inf")
    return float(np.linalg.norm(vector - expected) / np.linalg.norm(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
