"""Triton with what plansmith compiles beside Triton's Python backend and a plain server, under the same load.

    python -m benchmarks.serving [--quick] [--without NAME]...

Eight clients, each a process that asks as soon as it is answered, send one sentence at a time to one server after the
other, the same bytes in the same order, round by round in turn; ratios are of the same round, so that what else the
machine does meets all of them. Clients and servers share the cores. Every answer is compared with PyTorch's in FP32:
a server that answers wrongly ends the run.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.compile_cost import MINILM
from benchmarks.load_client import Record, Task, question
from benchmarks.measure import PLANSMITH, cpu_seconds
from numpy.typing import NDArray
from tests.support.real_sentences import real_sentences

from plansmith.compilers.precision import benchmark
from plansmith.config.targets import load_target
from plansmith.records.release import CONFIG_FILE
from plansmith.system.files import link_or_copy
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.server.installation import Installation, find_installation, stand_in_site
from plansmith.triton.server.server import TritonServer

CORES = os.cpu_count() or 1
CLIENTS, LENGTH, QUESTIONS = 8, 64, 64
REQUESTS, QUICK_REQUESTS = 48, 8
SECONDS, QUICK_SECONDS = 420.0, 0.0
READY_SECONDS = 120
OUTPUT = "sentence_embedding"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WORKPLACE = Path("artifacts") / "benchmarks"
REPOSITORY = WORKPLACE / "repository"
SHAPES = "input_ids=1x1:8x64:32x256"

# An answer may be so far from PyTorch's, in parts of its length: roundings of FP32, and what the gate lets INT8 do.
EXACT, LOWERED = 1e-3, 0.25

PLAIN = "FastAPI + PyTorch"
PYTHON = "Python backend, PyTorch"
ALONE = "FP32, no dynamic batching"
BATCHED = "FP32"
TWO = "FP32, two instances"
CACHED = "FP32, response cache"
INT8 = "INT8"

CONTRASTS = (
    ("dynamic batching on : off", BATCHED, ALONE),
    ("two instances : one", TWO, BATCHED),
    ("response cache, every question known : off", CACHED, BATCHED),
    ("INT8 : FP32", INT8, BATCHED),
    ("ONNX Runtime FP32 : Python backend", BATCHED, PYTHON),
    ("ONNX Runtime INT8 : Python backend", INT8, PYTHON),
    ("Python backend : FastAPI", PYTHON, PLAIN),
    ("ONNX Runtime FP32 : FastAPI", BATCHED, PLAIN),
    ("ONNX Runtime INT8 : FastAPI", INT8, PLAIN),
)


@dataclass
class Row:
    """A server under load, and what its rounds showed.

    Args:
        url: host and port.
        model: the name that it is asked for.
        limit: how far an answer may be from PyTorch's.
        questions: how many there are.
        tokenizer: see `Task`.
        padded_to: see `Task`.
        records: of each round, one a client.
        cpu_seconds: of each round, of clients and servers.
    """

    url: str
    model: str
    limit: float
    questions: int = QUESTIONS
    tokenizer: str = ""
    padded_to: int = 0
    records: list[list[Record]] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Served:
    """How a model is laid out for Triton: which release it is of, and what is changed in its configuration."""

    release: str
    model: str
    change: Callable[[Any], None]
    limit: float = EXACT


def leave(_: Any) -> None:
    """As plansmith wrote it: the dynamic batcher, one instance."""


def without_batching(config: Any) -> None:
    config.ClearField("dynamic_batching")


def two_instances(config: Any) -> None:
    """The cores are shared out between them."""
    config.instance_group[0].count = 2
    config.parameters["intra_op_thread_count"].string_value = str(max(CORES // 2, 1))


def cached(config: Any) -> None:
    config.response_cache.enable = True


SERVED = {
    PYTHON: Served("python", "pytorch", leave),
    ALONE: Served("fp32", "alone", without_batching),
    BATCHED: Served("fp32", "batched", leave),
    TWO: Served("fp32", "two", two_instances),
    CACHED: Served("fp32", "cached", cached),
    INT8: Served("int8", "int8", leave, LOWERED),
}


def main(options: argparse.Namespace) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    os.environ["OMP_NUM_THREADS"] = str(CORES)
    served = {name: entry for name, entry in SERVED.items() if name not in options.without}
    requests, budget = (QUICK_REQUESTS, QUICK_SECONDS) if options.quick else (REQUESTS, SECONDS)
    WORKPLACE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="serving-", dir=WORKPLACE)))
        write_questions(folder)
        lay_out(folder / "repository", served)
        installation = find_installation()
        server = undo.enter_context(triton(folder, installation, served))
        rows = {name: Row(server.http_url, entry.model, entry.limit) for name, entry in served.items()}
        if PLAIN not in options.without:
            rows[PLAIN] = Row(undo.enter_context(plain_server()), "minilm", EXACT)
        clients = undo.enter_context(start_clients(folder))
        baseline = PLAIN if PLAIN in rows else next(iter(rows))
        result = race(rows, baseline, clients, requests, budget)
        backend = "Triton's own" if installation.real_onnxruntime else "the stand-in"
        print(
            f"{CLIENTS} clients, a sentence of {LENGTH} tokens a request, JSON over HTTP, {requests} requests a round,"
            f" {result.rounds} rounds; Triton {server.version}, ONNX Runtime in"
            f" {backend} backend; {benchmark.machine()}"
        )
        print_rows(rows, result.rounds, server)
        print_contrasts("times as many requests a second", rates_of(result), CONTRASTS)


def race(
    rows: Mapping[str, Row], baseline: str, clients: Sequence[subprocess.Popen[str]], requests: int, budget: float
) -> benchmark.Race:
    """All servers once a round, in turn; what a round costs is the time from its first request to its last answer."""
    spent = 0.0

    def load(name: str) -> None:
        nonlocal spent
        spent += one_round(name, rows[name], clients, requests)

    return benchmark.race(
        {name: partial(load, name) for name in rows},
        baseline,
        setting=benchmark.machine(),
        clock=lambda: spent,
        budget_seconds=budget,
    )


def one_round(name: str, row: Row, clients: Sequence[subprocess.Popen[str]], requests: int) -> float:
    """Seconds in which all clients together got their answers.

    Raises:
        SystemExit: a request was refused, or an answer is wrong.
    """
    used = partial(cpu_seconds, without=[client.pid for client in clients])
    before = used()
    for place, client in enumerate(clients):
        questions = [number % row.questions for number in range(place, requests, len(clients))]
        task = Task(row.url, f"/v2/models/{row.model}/infer", questions, row.tokenizer, row.padded_to)
        assert client.stdin is not None
        client.stdin.write(json.dumps(asdict(task)) + "\n")
        client.stdin.flush()
    records = [read_record(client) for client in clients]
    row.cpu_seconds.append(used() - before + sum(record.cpu_seconds for record in records))
    for record in records:
        if record.refusal:
            sys.exit(f"{name} refused a request: {record.refusal[:500]}")
        if not record.error <= row.limit:
            sys.exit(f"{name} answers wrongly: {record.error:.3g} from PyTorch's answer, {row.limit} are allowed")
    row.records.append(records)
    return max(record.ended for record in records) - min(record.started for record in records)


def read_record(client: subprocess.Popen[str]) -> Record:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        sys.exit(f"a client ended with status {client.wait()}")
    return Record(**json.loads(line))


def print_rows(rows: Mapping[str, Row], rounds: int, server: TritonServer | None = None) -> None:
    """What each showed; with a server, what that counted, too."""
    print(
        f"{'':<28}{'requests/s':>12}{'p50 ms':>9}{'p95 ms':>9}{'CPU ms':>9}{'rows a run':>12}{'from cache':>12}"
        f"{'worst error':>13}"
    )
    for name, row in rows.items():
        measured = row.records[-rounds:]
        rates = [
            sum(len(record.latencies) for record in records)
            / (max(record.ended for record in records) - min(record.started for record in records))
            for records in measured
        ]
        latencies = [1000 * seconds for records in measured for record in records for seconds in record.latencies]
        p50, p95 = np.percentile(latencies, [50, 95])
        error = max(record.error for records in row.records for record in records)
        cpu = 1000 * median(row.cpu_seconds[-rounds:]) / sum(len(record.latencies) for record in measured[0])
        batch, hits = counted(row) if server is not None and row.url == server.http_url else ("-", "-")
        print(f"{name:<28}{median(rates):>12.1f}{p50:>9.1f}{p95:>9.1f}{cpu:>9.1f}{batch:>12}{hits:>12}{error:>13.1e}")


def counted(row: Row) -> tuple[str, str]:
    """Rows that Triton ran at once, on average, and the share of the requests that its cache answered."""
    (statistics,) = json.loads(get(row.url, f"/v2/models/{row.model}/stats"))["model_stats"]
    requests, hits = (statistics["inference_stats"][outcome]["count"] for outcome in ("success", "cache_hit"))
    return f"{statistics['inference_count'] / max(statistics['execution_count'], 1):.2f}", f"{hits / requests:.0%}"


def rates_of(result: benchmark.Race) -> dict[str, list[float]]:
    """What each was, round by round, in parts of the baseline."""
    return {result.baseline: [1.0] * result.rounds, **result.ratios}


def print_contrasts(
    title: str, values: Mapping[str, Sequence[float]], contrasts: Iterable[tuple[str, str, str]]
) -> None:
    """Median ratios of one thing to another, by the values of the same rounds, and their intervals."""
    print(f"{title} (95 %)")
    for label, first, second in contrasts:
        if first in values and second in values:
            paired = [a / b for a, b in zip(values[first], values[second], strict=True)]
            result = benchmark.Race((first, second), second, title, len(paired), {first: paired})
            ratio, low, high = result.interval(first)
            print(f"  {label:<46}{ratio:>7.2f} ({low:.2f} to {high:.2f})")


def write_questions(folder: Path) -> None:
    """The bodies of the requests, and PyTorch's answers to them."""
    from benchmarks.plain_server import Embedder

    feed = tokens(real_sentences()[-QUESTIONS:])
    np.save(folder / "expected.npy", Embedder().embed(feed))
    rows = [{name: array[number].tolist() for name, array in feed.items()} for number in range(QUESTIONS)]
    (folder / "bodies.json").write_text(json.dumps([question(row, "INT64", OUTPUT) for row in rows]))


def tokens(texts: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """The model's inputs, all of one length."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    encoding = tokenizer(list(texts), truncation=True, padding="max_length", max_length=LENGTH, return_tensors="np")
    return {name: encoding[name].astype(np.int64) for name in INPUTS}


def lay_out(repository: Path, ways: Mapping[str, Served]) -> None:
    """A folder for each way to serve, with the files of the release that it is of."""
    for served in ways.values():
        view = released(served.release)
        for file in (file for file in view.rglob("*") if file.is_file()):
            link_or_copy(file, repository / served.model / file.relative_to(view))
        config = parse_config((view / CONFIG_FILE).read_text())
        config.name = served.model
        served.change(config)
        written = repository / served.model / CONFIG_FILE
        written.unlink()  # it may be the release's own
        written.write_text(text_of(config))


@cache
def released(kind: str) -> Path:
    """The view of the release of a kind."""
    sentences = WORKPLACE / "sentences.txt"
    sentences.write_text("\n".join(real_sentences()[:-QUESTIONS]) + "\n")
    arguments = {
        "fp32": ["--precision", "fp32"],
        "int8": ["--precision", "int8", "--data", str(sentences)],
        "python": ["--engine", "python"],
    }[kind]
    return compiled(f"minilm-{kind}", f"hf:{MINILM}", "--shapes", SHAPES, *arguments)


def compiled(name: str, source: str, *arguments: str) -> Path:
    """The view of a release, which plansmith compiles unless it is there already."""
    command = ["compile", source, "--name", name, *arguments]
    places = ["--artifacts", str(WORKPLACE), "--repository", str(REPOSITORY)]
    done = subprocess.run(
        [*PLANSMITH, *command, *places, "--no-check-served", "--quiet"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"plansmith {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return (REPOSITORY / name).resolve()


def triton(folder: Path, installation: Installation, ways: Mapping[str, Served]) -> TritonServer:
    return TritonServer(
        folder / "repository",
        installation,
        folder / "triton.log",
        site=stand_in_site(installation, load_target("local-cpu")),
        models=[served.model for served in ways.values()],
        deadline_seconds=READY_SECONDS,
    )


@contextmanager
def plain_server() -> Iterator[str]:
    """Host and port of the plain server, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--factory", "benchmarks.plain_server:make_app", "--port", str(port)]
    with subprocess.Popen([*command, "--no-access-log", "--log-level", "warning"]) as process:
        try:
            wait_for(f"127.0.0.1:{port}", process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            get(url, "/v2/health/ready")
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"the plain server is not up: status {process.poll()}")


@contextmanager
def start_clients(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Clients that wait for their tasks."""
    command = [sys.executable, "-m", "benchmarks.load_client", str(folder)]
    with ExitStack() as undo:
        clients = []
        for _ in range(CLIENTS):
            client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            clients.append(undo.enter_context(client))
            undo.callback(client.terminate)
        yield clients


def get(url: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(url, timeout=READY_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--quick", action="store_true", help="few requests: shows that it works, and no figures")
    parser.add_argument("--without", action="append", default=[], choices=[*SERVED, PLAIN], help="leave one out")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_options())
