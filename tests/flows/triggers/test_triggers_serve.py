"""A real receiver, a real inbox and a real Prefect server: each delivery becomes one run, whatever ends meanwhile."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect.blocks.system import Secret
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from pydantic import SecretStr

from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.flows.prefect_api.api import read_secret
from plansmith.flows.runs.submitting import SubmittedRun, WantedCompile
from plansmith.flows.triggers.builder import TRIGGERED, Blocked, Order, RunOutcome, TriggeredRuns

from ...support.cli.command import CommandLine
from ...support.deliveries.recorded import SECRET
from ...support.prefect import postgres, prefect_server, workers
from ...support.prefect.prefect_server import PrefectServer
from ...support.prefect.programs import free_port
from ...support.prefect.wire import Wire
from ...support.triggers.mlflow_server import Mlflow, serving
from ...support.triggers.triggered_service import TriggeredService, alias_set
from ...support.waiting import soon

pytestmark = pytest.mark.services

FLOW = "plansmith.flows.compile_model.compile_model"
POOL = "unattended"
"""No worker polls it: what becomes of its runs, the tests say."""

MODELS = ("twice", "kept", "started", "put-off", "durable", "rotated")
"""Each is of one test alone: runs of one model wait for one another."""

STORED, REFUSED, UNSTORED = 202, 401, 503
STARTS_A_RUN = b"/create_flow_run "
_BUSY_ATTEMPTS, _BUSY_SECONDS = 20, 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> Iterator[PrefectServer]:
    """A server of this module's own, which may be killed, with a deployment on a pool without workers."""
    with prefect_server.running(tmp_path_factory.mktemp("server"), prefect_database) as started:
        workers.make_pool(started, POOL)
        workers.deploy(started, POOL, FLOW)
        yield started


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """What stands for MLflow: it confirms that the first version of each model is its champion."""
    with serving(Mlflow(aliases={model: {"champion": "1"} for model in MODELS})) as mlflow:
        yield mlflow.url


@pytest.fixture
def service(server: PrefectServer, registry: str, tmp_path: Path) -> TriggeredService:
    """A service with an inbox of its own."""
    return TriggeredService(server, tmp_path, POOL, *MODELS, tracking_uri=registry)


def test_repeated_delivery_is_one_run(service: TriggeredService, run: CommandLine) -> None:
    """A delivery, its repetitions and those of a second receiver are one run until a person retries it."""
    first, second = alias_set("twice", "d-1"), alias_set("twice", "d-2")
    with service.receiver("--workers", "2") as primary, service.receiver() as two:
        assert [primary.post(first), two.post(first), primary.post(first), two.post(second)] == [STORED] * 4
        later, entry = service.wait_for("done", "done")
        (started,) = service.runs_of("twice")
        assert [item.id for item in (*entry.runs, *later.runs)] == [started["id"]] * 2
        assert started["id"] in entry.runs[0].address
        override = {"replaces": "hf:org/twice", "is_tracked": False, "at": entry.received_at.timestamp()}
        assert started["parameters"] == {
            "spec": {"name": "twice", "source": "mlflow:models:/twice/1", "source_override": override},
            "folder": "specs",
            "directory": ".",
        }
        assert {"plansmith", "model:twice", "target:local-cpu"} <= set(started["tags"])
        assert sorted(line["outcome"] for line in primary.lines("delivery") + two.lines("delivery")) == [
            *("repeated", "repeated", "stored", "stored")
        ]

        retry = ("triggers", "inbox", "retry", "--service", str(service.path), str(entry.id))
        assert run(*retry).status == 0
        assert service.wait_for("done", "done")[1].runs == entry.runs, "it has not ended"
        service.server.ask(f"flow_runs/{started['id']}/set_state", state={"type": "FAILED"}, force=True)
        assert run(*retry).status == 0
        (again,) = service.wait_for("done", "done")[1].runs
        assert again.id != started["id"]
        assert {item["id"] for item in service.runs_of("twice")} == {started["id"], again.id}

        assert primary.ended_by(signal.SIGTERM) == 128 + signal.SIGTERM
        assert two.ended_by(signal.SIGINT) == 0
        for receiver in (primary, two):
            assert "no deliveries are taken any more" in receiver.output
            assert "Traceback" not in receiver.output


def test_delivery_survives_kills(
    service: TriggeredService,
) -> None:
    """Each delivery is one run after Prefect was killed and receivers were at each boundary."""
    # Kept, and nothing else was done.
    with service.receiver("--no-worker", api={}) as keeps:
        assert keeps.post(alias_set("kept", "d-1")) == STORED
        keeps.program.kill()
    service.wait_for("waiting")

    # Taken up: by one whose API takes connections and never answers.
    with socket.create_server(("127.0.0.1", free_port())) as mute:
        nowhere = service.server.variables(port=mute.getsockname()[1])
        with service.receiver(api=nowhere) as hangs:
            service.wait_for("in-work")
            hangs.program.kill()

    # Started, and nobody heard so.
    with (
        Wire(service.server.port, loses=STARTS_A_RUN) as wire,
        service.receiver("--workers", "2", api=service.server.variables(port=wire.port)) as unheard,
    ):
        assert unheard.post(alias_set("started", "d-2")) == STORED
        assert soon(lambda: len(service.runs_of("started")), 1) == 1
        unheard.program.kill()
    assert not any(entry.runs for entry in service.entries())

    # Put off, as Prefect is away.
    service.server.kill()
    with service.receiver() as builds:
        assert builds.post(alias_set("put-off", "d-3")) == STORED
        builds.program.wait_until(lambda: bool(builds.lines("build")), 180)
        line = builds.lines("build")[0]
        assert line["outcome"] == "put-off"
        assert "cannot be reached" in line["reason"]
        builds.program.kill()
    service.server.start()

    with service.receiver("--workers", "2"):
        entries = service.wait_for("done", "done", "done")
    for entry, model in zip(entries, ("put-off", "started", "kept"), strict=True):
        assert [run.id for run in entry.runs] == [run["id"] for run in service.runs_of(model)]
        assert len(entry.runs) == 1


def test_killed_database_loses_nothing(server: PrefectServer, registry: str, tmp_path: Path) -> None:
    """A database that is killed loses nothing that was accepted and builds nothing twice."""
    sent = alias_set("durable", "d-1")
    with (
        postgres.running() as database,
        Wire(server.port, loses=STARTS_A_RUN) as wire,
    ):
        url = database.url.replace("+asyncpg", "")
        service = TriggeredService(server, tmp_path, POOL, *MODELS, database=url, tracking_uri=registry)
        with service.receiver(api=server.variables(port=wire.port)) as receiver:
            database.kill()
            assert receiver.post(sent) == UNSTORED
            assert httpx.get(f"http://127.0.0.1:{receiver.port}/healthz", timeout=60).status_code == UNSTORED
            database.start()
            assert soon(lambda: receiver.post(sent), STORED) == STORED

            # The run is started, and neither the answer nor what came of the entry is written down.
            assert soon(lambda: len(service.runs_of("durable")), 1) == 1
            database.kill()
            wire.cut()
            count = len(receiver.lines("inbox"))
            receiver.program.wait_until(lambda: len(receiver.lines("inbox")) > count, 180)
            database.start()
            assert not service.entries()[0].runs
            wire.loses = b""
            wire.mend()
            (entry,) = service.wait_for("done")
            assert "Traceback" not in receiver.output
    assert [run["id"] for run in service.runs_of("durable")] == [run.id for run in entry.runs]


def test_block_secrets_count(server: PrefectServer, tmp_path: Path) -> None:
    """Secrets in Prefect's blocks count beside those of the environment."""
    with temporary_settings(_client(server)):
        Secret(value=SecretStr("new one")).save("triggers-hook", overwrite=True)
        assert read_secret("triggers-hook") == "new one"
        with pytest.raises(UsageError, match="no Secret block triggers-absent"):
            read_secret("triggers-absent")
    away = {**_client(server), PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}
    with temporary_settings(away), pytest.raises(EnvironmentFault, match="cannot be reached"):
        read_secret("triggers-hook")

    both = ("block:triggers-hook", "env:MLFLOW_SECRET")
    with TriggeredService(server, tmp_path, POOL, *MODELS, secrets=both).receiver() as receiver:
        secrets = ("new one", SECRET, "older one")
        sent = [alias_set("rotated", f"d-{number}", secret=item) for number, item in enumerate(secrets)]
        assert [receiver.post(item) for item in sent] == [STORED, STORED, REFUSED]
    assert not [item for item in secrets if item in receiver.output]


def test_receiver_starts_without_prefect(server: PrefectServer, tmp_path: Path) -> None:
    """A receiver starts while Prefect is away, and hears what a block proves once it is there."""
    with temporary_settings(_client(server)):
        Secret(value=SecretStr("new one")).save("triggers-late", overwrite=True)
    both = ("block:triggers-late", "env:MLFLOW_SECRET")
    service = TriggeredService(server, tmp_path, POOL, *MODELS, secrets=both)
    with Wire(server.port) as wire:
        wire.cut()
        with service.receiver(api=server.variables(port=wire.port)) as receiver:
            assert "not all secrets of mlflow are known yet: the Prefect API at " in receiver.output
            late = alias_set("rotated", "d-late", secret="new one")
            assert [receiver.post(late), receiver.post(alias_set("rotated", "d-early"))] == [UNSTORED, STORED]
            wire.mend()
            receiver.program.wait_until(lambda: bool(receiver.lines("secrets")), 180)
            assert receiver.post(late) == STORED
            assert receiver.post(alias_set("rotated", "d-forged", secret="forged")) == REFUSED


def test_failed_key_starts_once_more(server: PrefectServer, tmp_path: Path) -> None:
    """A key is one run; a failed one starts anew once, and what cannot be is refused."""

    def order(key: str, pool: str = POOL, *, parameters: str = ".") -> Order:
        spec = ModelSpec(source="hf:org/ranker", name="keyed")
        return Order(WantedCompile("keyed", "local-cpu", spec, tmp_path, parameters), pool, f"{TRIGGERED}{key}")

    runs = TriggeredRuns(server.variables()["PREFECT_API_URL"])

    def attempt(
        request: Order, *before: UUID, is_so: Callable[[], bool] | None = lambda: True
    ) -> SubmittedRun | Blocked | None:
        """Ask as a worker does: later again, where the server has no time."""
        for _ in range(_BUSY_ATTEMPTS):
            with suppress(EnvironmentFault):
                return runs.start(request, {str(run) for run in before}, is_so)
            time.sleep(_BUSY_SECONDS)
        return runs.start(request, {str(run) for run in before}, is_so)

    def start(request: Order, *before: UUID) -> SubmittedRun:
        run = attempt(request, *before)
        assert isinstance(run, SubmittedRun)
        return run

    def end(run: SubmittedRun, how: str) -> None:
        server.ask(f"flow_runs/{run.id}/set_state", state={"type": how}, force=True)

    with temporary_settings(_client(server)):
        assert attempt(order("a"), is_so=lambda: False) is None
        first = start(order("a"))
        assert start(order("a")) == first
        # A repetition gives the run that failed; a person who has seen that one gets another, and the same one again.
        end(first, "FAILED")
        assert start(order("a")) == first
        second = start(order("a"), first.id)
        assert second.id != first.id
        assert start(order("a"), first.id) == second
        end(second, "COMPLETED")
        assert start(order("a"), first.id, second.id) == second, "it went well"

        # One of the same model that goes on is waited for, and what it replaced is built again while that is asked for.
        third = start(order("b"))
        assert third.id not in {first.id, second.id}
        assert attempt(order("c")) == attempt(order("a")) == Blocked(third)
        end(third, "COMPLETED")
        assert attempt(order("a"), is_so=None) == second, "a tag stays so for good, and was built"
        assert attempt(order("a"), is_so=lambda: False) is None
        assert (_ended(runs, third).is_last, _ended(runs, second).is_last) == (True, False)
        again = start(order("a"))
        assert again.id not in {first.id, second.id, third.id}
        assert start(order("a")) == again, "asked once more, as by a worker after one that was killed"
        end(again, "COMPLETED")
        assert start(order("a")) == again
        with pytest.raises(
            EnvironmentFault, match=r"there is no work pool none; compile-model is deployed to unattended"
        ):
            start(order("c", "none"))
        workers.deploy(server, "served", FLOW)
        assert start(order("c", "none")).name == "keyed for local-cpu"
    with (
        temporary_settings({**_client(server), PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}),
        pytest.raises(EnvironmentFault, match="cannot be reached") as away,
    ):
        runs.start(order("a"), (), None)
    assert away.value.transient


def _ended(runs: TriggeredRuns, run: SubmittedRun) -> RunOutcome:
    outcome = runs.ended(str(run.id))
    assert outcome is not None
    return outcome


def _client(server: PrefectServer) -> dict[Any, str]:
    """Prefect's settings of a client."""
    variables = server.variables()
    return {setting: variables[setting.name] for setting in (PREFECT_API_URL, PREFECT_API_AUTH_STRING)}
