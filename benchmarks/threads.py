"""Instances of a PyTorch model on a CPU that share the cores beside instances of which each takes all of them.

    python -m benchmarks.threads [--quick]

The clients of `benchmarks.serving` load one, two and four instances of a model in Triton's Python backend, each number
with the threads that plansmith gives an instance by default and with as many as there are cores, all in turn, round by
round. The dynamic batcher is off: it would have one instance do the work of several.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import serving
from benchmarks.serving import CLIENTS, CORES, LENGTH, WORKPLACE, Row, Served

from plansmith.compilers.precision import benchmark
from plansmith.compilers.python_backend.run import INTRA_OP
from plansmith.triton.server.installation import find_installation, require_python

INSTANCES = (1, 2, 4)
REQUESTS, QUICK_REQUESTS = 96, 16
SECONDS, QUICK_SECONDS = 240.0, 0.0

SHARED, ALL = "cores shared", "all cores each"


def name_of(count: int, way: str) -> str:
    return f"{count} instance{'s' * (count > 1)}, {way}"


def instances(count: int, threads: int, config: Any) -> None:
    """So many instances without the dynamic batcher; threads of each, 0 for the default."""
    serving.without_batching(config)
    config.instance_group[0].count = count
    if threads:
        config.parameters[INTRA_OP].string_value = str(threads)


# One instance has all the cores by default.
SERVED = {
    name_of(count, way): Served("python", f"{way.partition(' ')[0]}{count}", partial(instances, count, threads))
    for count in INSTANCES
    for way, threads in ((SHARED, 0), (ALL, CORES))
    if count > 1 or way == SHARED
}
CONTRASTS = (
    *((f"{count} instances: {SHARED} : {ALL}", name_of(count, SHARED), name_of(count, ALL)) for count in INSTANCES[1:]),
    *(
        (f"{count} instances : one, {way}", name_of(count, way), name_of(1, SHARED))
        for way in (SHARED, ALL)
        for count in INSTANCES[1:]
    ),
)


def main(options: argparse.Namespace) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    os.environ.pop("OMP_NUM_THREADS", None)
    requests, budget = (QUICK_REQUESTS, QUICK_SECONDS) if options.quick else (REQUESTS, SECONDS)
    installation = find_installation()
    require_python(installation)
    WORKPLACE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="threads-", dir=WORKPLACE)))
        serving.write_questions(folder)
        serving.lay_out(folder / "repository", SERVED)
        server = undo.enter_context(serving.triton(folder, installation, SERVED))
        rows = {name: Row(server.http_url, entry.model, entry.limit) for name, entry in SERVED.items()}
        clients = undo.enter_context(serving.start_clients(folder))
        result = serving.race(rows, name_of(1, SHARED), clients, requests, budget)
        print(
            f"{CLIENTS} clients, a sentence of {LENGTH} tokens a request, {requests} requests a round, {result.rounds}"
            f" rounds; Triton {server.version}, PyTorch in its Python backend; {benchmark.machine()}"
        )
        serving.print_rows(rows, result.rounds, server)
        serving.print_contrasts("times as many requests a second", serving.rates_of(result), CONTRASTS)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads")
    parser.add_argument("--quick", action="store_true", help="few requests: shows that it works, and no figures")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_options())
