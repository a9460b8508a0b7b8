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
from plansmith.flows.prefect_api.secret_blocks import read_secret
from plansmith.flows.runs.submitting import SubmittedRun, WantedCompile
from plansmith.flows.triggers.triggered_runs import TRIGGERED, Blocked, Order, RunOutcome, TriggeredRuns

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


def test_a_delivery_its_repetitions_and_those_of_a_second_receiver_are_one_run_until_a_person_retries_it(
    service: TriggeredService, run: CommandLine
) -> None:
    first, other = alias_set("twice", "d-1"), alias_set("twice", "d-2")
    with service.receiver("--workers", "2") as one, service.receiver() as two:
        assert [one.post(first), two.post(first), one.post(first), two.post(other)] == [STORED] * 4
        later, entry = service.wait_for("done", "done")
        (started,) = service.runs_of("twice")
        assert [found.id for found in (*entry.runs, *later.runs)] == [started["id"]] * 2
        assert started["id"] in entry.runs[0].address
        override = {"replaces": "hf:org/twice", "is_tracked": False, "at": entry.received_at.timestamp()}
        assert started["parameters"] == {
            "spec": {"name": "twice", "source": "mlflow:models:/twice/1", "source_override": override},
            "folder": "specs",
            "directory": ".",
        }
        assert {"plansmith", "model:twice", "target:local-cpu"} <= set(started["tags"])
        assert sorted(line["outcome"] for line in one.lines("delivery") + two.lines("delivery")) == [
            *("repeated", "repeated", "stored", "stored")
        ]

        retry = ("triggers", "inbox", "retry", "--service", str(service.path), str(entry.id))
        assert run(*retry).status == 0
        assert service.wait_for("done", "done")[1].runs == entry.runs, "it has not ended"
        service.server.ask(f"flow_runs/{started['id']}/set_state", state={"type": "FAILED"}, force=True)
        assert run(*retry).status == 0
        (again,) = service.wait_for("done", "done")[1].runs
        assert again.id != started["id"]
        assert {found["id"] for found in service.runs_of("twice")} == {started["id"], again.id}

        assert one.ended_by(signal.SIGTERM) == 128 + signal.SIGTERM
        assert two.ended_by(signal.SIGINT) == 0
        for receiver in (one, two):
            assert "no deliveries are taken any more" in receiver.said
            assert "Traceback" not in receiver.said


def test_each_delivery_is_one_run_after_prefect_was_killed_and_receivers_were_at_each_boundary(
    service: TriggeredService,
) -> None:
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


def test_a_database_that_is_killed_loses_nothing_that_was_accepted_and_builds_nothing_twice(
    server: PrefectServer, registry: str, tmp_path: Path
) -> None:
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
            told = len(receiver.lines("inbox"))
            receiver.program.wait_until(lambda: len(receiver.lines("inbox")) > told, 180)
            database.start()
            assert not service.entries()[0].runs
            wire.loses = b""
            wire.mend()
            (entry,) = service.wait_for("done")
            assert "Traceback" not in receiver.said
    assert [run["id"] for run in service.runs_of("durable")] == [run.id for run in entry.runs]


def test_secrets_in_prefects_blocks_count_beside_those_of_the_environment(
    server: PrefectServer, tmp_path: Path
) -> None:
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
        sent = [alias_set("rotated", f"d-{number}", secret=one) for number, one in enumerate(secrets)]
        assert [receiver.post(one) for one in sent] == [STORED, STORED, REFUSED]
    assert not [one for one in secrets if one in receiver.said]


def test_a_receiver_comes_up_while_prefect_is_away_and_hears_what_a_block_proves_once_it_is_there(
    server: PrefectServer, tmp_path: Path
) -> None:
    with temporary_settings(_client(server)):
        Secret(value=SecretStr("new one")).save("triggers-late", overwrite=True)
    both = ("block:triggers-late", "env:MLFLOW_SECRET")
    service = TriggeredService(server, tmp_path, POOL, *MODELS, secrets=both)
    with Wire(server.port) as wire:
        wire.cut()
        with service.receiver(api=server.variables(port=wire.port)) as receiver:
            assert "not all secrets of mlflow are known yet: the Prefect API at " in receiver.said
            late = alias_set("rotated", "d-late", secret="new one")
            assert [receiver.post(late), receiver.post(alias_set("rotated", "d-early"))] == [UNSTORED, STORED]
            wire.mend()
            receiver.program.wait_until(lambda: bool(receiver.lines("secrets")), 180)
            assert receiver.post(late) == STORED
            assert receiver.post(alias_set("rotated", "d-forged", secret="forged")) == REFUSED


def test_a_key_is_one_run_a_failed_one_starts_anew_once_and_what_cannot_be_is_refused(
    server: PrefectServer, tmp_path: Path
) -> None:
    def order(key: str, pool: str = POOL, *, parameters: str = ".") -> Order:
        spec = ModelSpec(source="hf:org/ranker", name="keyed")
        return Order(WantedCompile("keyed", "local-cpu", spec, tmp_path, parameters), pool, f"{TRIGGERED}{key}")

    runs = TriggeredRuns(server.variables()["PREFECT_API_URL"])

    def asked(
        one: Order, *before: UUID, is_so: Callable[[], bool] | None = lambda: True
    ) -> SubmittedRun | Blocked | None:
        """Ask as a worker does: later again, where the server has no time."""
        for _ in range(_BUSY_ATTEMPTS):
            with suppress(EnvironmentFault):
                return runs.start(one, {str(run) for run in before}, is_so)
            time.sleep(_BUSY_SECONDS)
        return runs.start(one, {str(run) for run in before}, is_so)

    def start(one: Order, *before: UUID) -> SubmittedRun:
        run = asked(one, *before)
        assert isinstance(run, SubmittedRun)
        return run

    def end(run: SubmittedRun, how: str) -> None:
        server.ask(f"flow_runs/{run.id}/set_state", state={"type": how}, force=True)

    with temporary_settings(_client(server)):
        assert asked(order("a"), is_so=lambda: False) is None
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
        other = start(order("b"))
        assert other.id not in {first.id, second.id}
        assert asked(order("c")) == Blocked(other)
        end(other, "COMPLETED")
        assert asked(order("a"), is_so=None) == second, "a tag stays so for good, and was built"
        assert asked(order("a"), is_so=lambda: False) is None
        assert (_ended(runs, other).is_last, _ended(runs, second).is_last) == (True, False)
        again = start(order("a"))
        assert again.id not in {first.id, second.id, other.id}
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
    found = runs.ended(str(run.id))
    assert found is not None
    return found


def _client(server: PrefectServer) -> dict[Any, str]:
    """Prefect's settings of a client."""
    variables = server.variables()
    return {one: variables[one.name] for one in (PREFECT_API_URL, PREFECT_API_AUTH_STRING)}
