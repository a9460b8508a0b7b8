"""Process workers of a Prefect work pool, each as if on a machine of its own, with the runs that they take up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import psutil

from .prefect_server import PrefectServer
from .programs import Program, own_environment

_START_SECONDS = 180
_HEAVY = ("plansmith.steps.worker", "tritonserver", "triton_python_backend_stub")

# Prefect asks for work, and tells that a worker lives, every ten and thirty seconds: too slow for a test.
_QUICK = {
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",
    "PREFECT_RUNNER_POLL_FREQUENCY": "2",
}

_DEPLOY = """
import importlib, json, sys
from prefect.deployments.runner import EntrypointType
for module, function, pool, more in json.loads(sys.argv[1]):
    found = getattr(importlib.import_module(module), function)
    where = None if pool == "served" else pool
    deployment = found.to_deployment(pool, work_pool_name=where, entrypoint_type=EntrypointType.MODULE_PATH, **more)
    deployment.apply()
"""


@dataclass(frozen=True)
class PoolWorker:
    """A process worker; its flow runs are processes in sessions of their own, which outlive it when it is killed."""

    name: str
    pool: str
    server: PrefectServer
    program: Program

    def start(self) -> None:
        """Start it, or start it again after it was killed; it asks for work."""
        self.program.start(partial(_is_online, self.server, self.pool, self.name), _START_SECONDS)

    def kill(self) -> None:
        """SIGKILL to the worker alone: the runs that it has taken up go on without it."""
        self.program.kill()

    def kill_machine(self) -> None:
        """SIGKILL to the worker, its runs and their children, as when the power goes."""
        self.program.kill_all()

    def processes_of(self, run: str) -> list[psutil.Process]:
        """The process of one of its flow runs and the children of that."""
        return [process for process in self.program.processes() if _run_of(process) == run]

    def runs(self) -> list[psutil.Process]:
        """The processes of its flow runs."""
        return [process for process in self.program.processes() if "prefect.engine" in words_of(process)]

    def run_in_worker(self) -> list[psutil.Process]:
        """The processes that its flow runs compile and serve in."""
        return [process for process in self.program.processes() if any(word in _HEAVY for word in words_of(process))]

    def heavy_of(self, run: str) -> list[psutil.Process]:
        """The processes that one of its flow runs compiles and serves in."""
        return [process for process in self.run_in_worker() if _run_of(process) == run]

    def run_ids(self, *, run_in_worker: bool = False) -> set[str]:
        """The flow runs that it has taken up; only those that have come to what compiles and serves."""
        candidates = self.run_in_worker() if run_in_worker else self.program.processes()
        return {run for run in map(_run_of, candidates) if run}


@contextmanager
def running(
    server: PrefectServer, pool: str, folder: Path, *, count: int = 3, limit: int = 1, **variables: str
) -> Iterator[list[PoolWorker]]:
    """Workers of a pool, which is made, for the length of a block.

    Args:
        server: whose pool it is.
        pool: its name, new or not.
        folder: for the logs and the homes of the workers.
        count: how many.
        limit: how many runs each of them takes up at a time.
        variables: more of their environment, which their flow runs have too.
    """
    make_pool(server, pool)
    with ExitStack() as stack:
        names = [f"{pool}-{number}" for number in range(1, count + 1)]
        workers = [_worker(server, pool, folder / name, limit, variables) for name in names]
        for worker in workers:
            stack.callback(worker.program.stop)
            worker.program.start()
        for worker in workers:
            worker.program.wait_until(partial(_is_online, server, pool, worker.name), _START_SECONDS)
        yield workers


def make_pool(server: PrefectServer, pool: str) -> None:
    """A work pool for process workers, which the first of them furnishes; one that is there stays."""
    try:
        server.ask("work_pools/", name=pool, type="process", base_job_template={})
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.CONFLICT:
            raise


def deploy(server: PrefectServer, pool: str, *flows: str, **more: object) -> None:
    """Deploy flows, named by the paths of their functions, on a pool, under its name; `more` for `to_deployment`.

    On `served`, they have none, as when a process serves them.
    """
    deployments = [(*flow.rsplit(".", 1), pool, more) for flow in flows]
    done = subprocess.run(
        [sys.executable, "-c", _DEPLOY, json.dumps(deployments)],
        env=own_environment(**server.variables()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _worker(server: PrefectServer, pool: str, folder: Path, limit: int, variables: Mapping[str, str]) -> PoolWorker:
    temporary = folder / "temporary"
    temporary.mkdir(parents=True)
    environment = {**own_environment(**server.variables(), **_QUICK), **variables}
    environment |= {"PREFECT_HOME": str(folder / "home"), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--name", folder.name]
    command += ["--type", "process", "--limit", str(limit), "--install-policy", "never"]
    return PoolWorker(folder.name, pool, server, Program(command, folder / "log", environment, folder=folder))


def _is_online(server: PrefectServer, pool: str, name: str) -> bool:
    workers = server.ask(f"work_pools/{pool}/workers/filter")
    return any((worker["name"], worker["status"]) == (name, "ONLINE") for worker in workers)


def words_of(process: psutil.Process) -> Sequence[str]:
    """The command line of a process; empty where it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return ()


def _run_of(process: psutil.Process) -> str:
    """The flow run that a process belongs to; empty where it has ended, or serves none."""
    try:
        return process.environ().get("PREFECT__FLOW_RUN_ID", "")
    except psutil.NoSuchProcess:
        return ""
