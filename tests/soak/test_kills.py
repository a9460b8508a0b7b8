"""SIGKILL to a worker's machine, to the Prefect server and to its database, at moments that chance picks.

A few rounds here, and as many as one likes with PLANSMITH_SOAK_ROUNDS.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ..support.prefect.compiled import check_whole, has_finished, problems, records, small_spec
from ..support.prefect.team import BEGUN_SECONDS, SILENT_SECONDS, Team
from ..support.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("soak-kills")]

ROUNDS = int(os.environ.get("PLANSMITH_SOAK_ROUNDS") or 3)
VICTIMS = ("machine", "server", "database")
STEPS = ("", "fetch", "export", "validate")
"""After which steps there is a kill; "" is none, when the compile has only begun."""

_LONGEST_AWAY_SECONDS = 5.0
_NOTICED_SECONDS = 15
"""In which the server's automations are looked at, every five seconds."""
_LONGEST_LATER_SECONDS = 1.0


@pytest.fixture(scope="module")
def unbegun(crew: Team, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run whose machine died after it was taken up and before it began; that nobody sees for a while."""
    folder = tmp_path_factory.mktemp("unbegun")
    run = crew.submit(small_spec(folder), folder)
    wait_until(lambda: any(run in worker.run_ids() for worker in crew.workers))
    (worker,) = [candidate for candidate in crew.workers if run in candidate.run_ids()]
    worker.kill_machine()
    assert crew.run(run)["state"]["type"] == "PENDING"
    worker.start()
    return run


@pytest.fixture(scope="module")
def silent(crew: Team) -> str:
    """A run of which the server heard that it begins, and then nothing, not even a first heartbeat."""
    run = crew.start("compile-model", {"spec": {"source": "hf:."}}, state="PENDING")
    crew.server.ask(f"flow_runs/{run}/set_state", state={"type": "RUNNING"})
    return run


@pytest.mark.usefixtures("silent", "unbegun")
def test_repository_whole_after_any_kill(crew: Team, tmp_path: Path) -> None:
    """Whoever is killed, the repository is whole and the next run goes on."""
    seed = os.environ.get("PLANSMITH_SOAK_SEED") or str(random.randrange(10**6))
    chance = random.Random(seed)
    wrong = []
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = _round(crew, VICTIMS[number % len(VICTIMS)], chance, folder)
        wrong += [(seed, number, *outcome)] if outcome[-1] else []
        shutil.rmtree(folder)
    assert wrong == []


def test_compile_continues_without_server(crew: Team, tmp_path: Path) -> None:
    """A compile goes on while the server and its database are away."""
    spec = small_spec(tmp_path, held=True)
    run = crew.submit(spec, tmp_path)
    wait_until((tmp_path / "held").exists)
    worker = crew.worker_of(run)
    crew.database.kill()
    crew.server.kill()
    (tmp_path / "go").touch()
    try:
        # The process itself stays for minutes: it would like to tell Prefect of its tasks.
        wait_until(lambda: bool(records(tmp_path)))
        check_whole(tmp_path)
    finally:
        crew.database.start()
        crew.server.start()
        crew.mend()
    assert crew.ended(run) in {"COMPLETED", "CRASHED"}
    wait_until(lambda: not worker.processes_of(run))
    assert crew.ended(crew.submit(spec, tmp_path)) == "COMPLETED"
    assert [record.outcome for record in records(tmp_path)] == ["published", "unchanged"]
    check_whole(tmp_path)


def test_unstarted_run_crashed(crew: Team, unbegun: str) -> None:
    """The server's automation says so; where a kill took the event that this goes by, whoever deploys next does."""
    since = datetime.fromisoformat(crew.run(unbegun)["state"]["timestamp"])
    least = timedelta(seconds=BEGUN_SECONDS + _NOTICED_SECONDS)
    wait_until(lambda: crew.run(unbegun)["state"]["type"] == "CRASHED" or datetime.now(UTC) - since > least)
    crew.deploy()
    assert crew.run(unbegun)["state"]["type"] == "CRASHED"
    assert "did not begin within" in crew.run(unbegun)["state"]["message"]


def test_run_without_heartbeat_crashed(crew: Team, silent: str) -> None:
    """A run that died before its first heartbeat has crashed."""
    assert crew.ended(silent) == "CRASHED"
    assert f"no heartbeat for {SILENT_SECONDS} s" in crew.run(silent)["state"]["message"]


def _round(crew: Team, victim: str, chance: random.Random, folder: Path) -> tuple[str, str, str, list[str]]:
    """Kill somebody while a model is compiled, and compile it again: who and when, how the first run ended, faults."""
    spec = small_spec(folder)
    first = crew.submit(spec, folder)
    worker = crew.worker_of(first)
    after = chance.choice(STEPS)
    wait_until(lambda: not after or has_finished(folder, after) or not worker.processes_of(first))
    time.sleep(chance.uniform(0, _LONGEST_LATER_SECONDS))
    finished = [step for step in STEPS if step and has_finished(folder, step)]
    away = chance.uniform(0, _LONGEST_AWAY_SECONDS)
    if victim == "machine":
        worker.kill_machine()
        time.sleep(away)
        worker.start()
    else:
        killed = crew.server if victim == "server" else crew.database
        killed.kill()
        time.sleep(away)
        killed.start()
        crew.mend()
    wait_until(lambda: not worker.processes_of(first))
    faults = problems(folder)
    faults += _go_on(crew, spec, folder, finished)
    ended, message = crew.ended(first), str(crew.run(first)["state"]["message"])
    if ended == "COMPLETED" and records(folder)[0].outcome != "published":
        faults.append("it is completed, and published nothing")
    # It may have come to its end just before the kill.
    if victim == "machine" and ended != "COMPLETED" and f"no heartbeat for {SILENT_SECONDS} s" not in message:
        faults.append("its death was not noticed")
    return victim, after, f"{ended}: {message}", faults


def _go_on(crew: Team, spec: dict[str, Any], folder: Path, finished: list[str]) -> list[str]:
    """Compile again; what is wrong then."""
    ended = crew.ended(crew.submit(spec, folder))
    if ended != "COMPLETED":
        return [f"the next run is {ended}"]
    check_whole(folder)
    cached = {step.name: step.cached for step in records(folder)[-1].steps}
    return [f"{step} was finished and is done again" for step in finished if not cached[step]]
