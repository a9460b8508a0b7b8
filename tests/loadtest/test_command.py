"""`plansmith loadtest` on a real Triton: what is sent, shown and stored, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.loadtest.results import LoadReport
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.server import TritonServer

from ..support.cli.command import check_refusal
from ..support.sagemaker.releases import publish_python
from ..support.triton.pipelines import publish_pipeline
from ..support.triton.versions import release

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plansmith.triton.server.installation import Installation

    from .conftest import Command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.xdist_group("loadtest"),
    pytest.mark.usefixtures("installation", "site", "busy_machine"),
]

BRIEF = ("--users", "2", "--seconds", "1", "--warm-up", "0.5s")
SECRET = "a-key-that-no-report-may-hold"


@pytest.fixture(scope="module")
def server(
    net_repository: Path, installation: Installation, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """A Triton with `net`."""
    log = tmp_path_factory.mktemp("log") / "triton.log"
    with TritonServer(net_repository, installation, log, site=site) as running:
        yield running


def test_release_served_for_test(loadtest: Command, net_repository: Path, tmp_path: Path) -> None:
    """Its requests have the kept inputs at mixed sizes, and the report has Triton's batches and resources."""
    load = ("--users", "1,3", "--seconds", "1.5", "--warm-up", "0.5s", "--batch", "1,2", "--seed", "5")
    answer = loadtest("net", "--repository", net_repository, *load, "--output", "out", "--json")
    assert answer.status == 0, answer
    report = LoadReport.model_validate(answer.document)
    assert report == LoadReport.model_validate_json((tmp_path / "out" / "report.json").read_text())
    assert (report.ending, [stage.stage.users for stage in report.stages]) == ("done", [1, 3])
    assert report.releases == {"net": "net@1"}
    assert "max_batch_size: 8" in report.configuration["net"]
    for stage in report.stages:
        assert (stage.stats.failed, stage.stats.requests > 0) == (0, True)
        assert stage.stats.samples > stage.stats.requests
        (served,) = stage.server_models
        assert sum(size * executions for size, executions in served.batches.items()) == served.inferences
        assert stage.server.cores is not None
    assert any("one machine" in note for note in report.notes)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.json", "report.html", "stages.csv", "timeline.csv", "client.log"}


@pytest.mark.parametrize(
    ("protocol", "encoding"), [("http", "json"), ("http", "binary"), ("grpc", "binary")], ids=["json", "binary", "grpc"]
)
def test_running_server_tested_by_plan(
    loadtest: Command, server: TritonServer, tmp_path: Path, protocol: str, encoding: str
) -> None:
    """Closed and open stages, over both protocols, binary and as JSON; a secret header is in no report."""
    (tmp_path / "plan.yaml").write_text(
        "stages: [{users: 2, seconds: 1}, {rate: 20, seconds: 1}]\nwarm_up: {users: 1, seconds: 0.2}\n"
        f"requests: 8\nencoding: {encoding}\nmodels: [{{model: net, batches: [1, 4]}}]\n"
    )
    url = server.http_url if protocol == "http" else server.grpc_url
    header = ("--header", f"X-Key: {SECRET}")
    more = ("--plan", "plan.yaml", "--metrics", server.metrics_url, "--output", "out")
    answer = loadtest("--url", f"{protocol}://{url}", *more, *header)
    assert answer.status == 0, answer
    stored = (tmp_path / "out" / "report.json").read_text()
    assert SECRET not in answer.stdout + stored
    report = LoadReport.model_validate_json(stored)
    assert [stage.stats.failed for stage in report.stages] == [0, 0]
    assert [stage.loop for stage in report.stages] == ["closed", "open"]
    assert report.stages[1].server_models[0].inferences > 0
    assert "net: random values at mixed sizes" in answer.stdout.replace("  ", "")
    assert "2 users closed" in " ".join(answer.stdout.split())


def test_triton_serves_the_mix(loadtest: Command, tmp_path: Path) -> None:
    """An ensemble and a model get requests by weight, and the statistics name the members of the ensemble."""
    repository = ModelRepository(tmp_path / "artifacts" / "repository")
    release(repository, tmp_path, model="single")
    publish_pipeline(repository, tmp_path, model="whole")
    answer = loadtest("single=4", "whole", *BRIEF, "--output", "out", "--json")
    assert answer.status == 0, answer
    (stage,) = LoadReport.model_validate(answer.document).stages
    assert stage.models["single"].requests > stage.models["whole"].requests > 0
    assert stage.stats.failed == 0
    names = {".".join(served.model.split(".")[:2]): served.member_of for served in stage.server_models}  # no digests
    assert names == {
        "single": (),
        "whole": (),
        **dict.fromkeys(("whole.number", "whole.model"), ("whole",)),
    }


PROGRAM = f"""
import os, sys, time
sys.path[:0] = os.environ[{SITE_VARIABLE!r}].split(":")
import numpy as np
import triton_python_backend_utils as triton

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05)
        return [self.answer(len(triton.get_input_tensor_by_name(one, "x").as_numpy())) for one in requests]

    def answer(self, rows):
        three = triton.Tensor("three", np.ones((rows, 3), np.float32))
        return triton.InferenceResponse([triton.Tensor("whole", np.ones((rows, 1), np.int64)), three])
"""
"""A batch takes as long as a sample, as on a GPU that one sample does not fill."""

DYNAMIC_BATCHING = "dynamic_batching { max_queue_delay_microseconds: 100 }"
SERVED = {
    "single": {DYNAMIC_BATCHING: ""},
    "batched": {"microseconds: 100": "microseconds: 5000"},
    "twice": {DYNAMIC_BATCHING: "", "count: 1": "count: 2"},
}


def test_batching_and_instances_raise_throughput(loadtest: Command, tmp_path: Path) -> None:
    """Eight users share a batch, or two instances: more is answered, and the statistics say why."""
    repository = ModelRepository(tmp_path / "artifacts" / "repository")
    stages = {}
    for model, changes in SERVED.items():
        publish_python(repository, tmp_path, model, PROGRAM, target="local-cpu", changes=changes)
        options = ("--users", "8", "--seconds", "3", "--warm-up", "0.5s", "--batch", "1")
        answer = loadtest(model, *options, "--output", model, "--json")
        assert answer.status == 0, answer
        (stages[model],) = LoadReport.model_validate(answer.document).stages
    rates = {model: stage.stats.samples_per_second or 0.0 for model, stage in stages.items()}
    assert rates["batched"] > 3 * rates["single"], rates
    assert rates["twice"] > 1.5 * rates["single"], rates
    assert [round(stages[model].server_models[0].batch_size or 0) for model in ("single", "twice")] == [1, 1]
    assert (stages["batched"].server_models[0].batch_size or 0) > 3


def test_user_data_are_sent(loadtest: Command, server: TritonServer, tmp_path: Path) -> None:
    """Data of the user is sent."""
    (tmp_path / "request.json").write_text(json.dumps({"x": [[[0.5] * 64] * 3] * 2}))
    url = f"http://{server.http_url}/v2/models/net"
    answer = loadtest(url, "--request", "request.json", *BRIEF, "--output", "out", "--json")
    assert answer.status == 0, answer
    (stage,) = LoadReport.model_validate(answer.document).stages
    assert stage.stats.samples == 2 * stage.stats.requests


def test_unknown_model_names_known_ones(loadtest: Command, server: TritonServer, tmp_path: Path) -> None:
    """Nothing is stored of a test that never began."""
    unknown = loadtest("nett", "--url", f"http://{server.http_url}", *BRIEF, "--output", "out", "--json")
    check_refusal(unknown, 8, ("unknown model: 'nett'", "choose from its models: net"))
    assert not (tmp_path / "out").exists()


def test_dry_run_shows_stages(loadtest: Command, net_repository: Path, tmp_path: Path) -> None:
    """The published staged shape by name; no server is started and nothing is written."""
    load = ("--ramp", "staged", "--stop-p95", "200ms", "--stop-flat", "5%")
    shown = loadtest("net", "--repository", net_repository, *load, "--dry-run")
    assert shown.status == 0, shown
    assert "net: 64 requests of x 1x3x64 to 8x3x64" in shown.stdout
    assert "warm-up  10 users, 30.0 s\n      0 s  30 users (closed loop), 30.0 s" in shown.stdout
    assert "270 s  200 users" in shown.stdout
    assert "stops at p95 above 200 ms" in shown.stdout
    assert "it would take 5 min 30 s" in shown.stdout
    assert list(tmp_path.iterdir()) == []


WRONG: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "nothing": ((), 2, ("no model is named", "--help")),
    "no release": (("nett",), 7, ("shows no model 'nett'", "net")),
    "no version": (("net@7",), 7, ("does not show version 7",)),
    "two loads": (("net", "--users", "1", "--rate", "2"), 2, ("--users and --rate give different loads",)),
    "Poisson users": (("net", "--poisson"), 2, ("--poisson goes with --rate",)),
    "pacing of a rate": (("net", "--rate", "5", "--pacing", "1s"), 2, ("pacing_seconds belongs to users",)),
    "no users": (("net", "--users", "0"), 2, ("--users '0'",)),
    "no trace": (("net", "--trace", "nope.txt"), 2, ("nope.txt cannot be read",)),
    "two limits": (("net", "--stop-p95", "1s", "--stop-p99", "1s"), 2, ("--stop-p95 and --stop-p99",)),
    "a rate beyond all clients": (("net", "--rate", "1e7"), 2, ("'rate': must be 1000000 or less",)),
    "JSON over gRPC": (("net", "--protocol", "grpc", "--encoding", "json"), 2, ("gRPC has no JSON bodies",)),
    "a shape without sizes": (("net", "--shape", "x", "--dry-run"), 2, ("--shape 'x' is not NAME=SIZES",)),
    "a batch that is too large": (("net", "--batch", "9", "--dry-run"), 2, ("takes batches of 1 to 8, and not of 9",)),
    "no weight": (("net=0",), 2, ("MODEL[@VERSION][=WEIGHT]",)),
    "a model twice": (("net", "net"), 2, ("net is named twice",)),
    "nobody there": (("net", "--url", "127.0.0.1:1"), 9, ("no server is reached",)),
    "no data": (("net", "--data", "nope.txt", "--dry-run"), 3, ("no file or folder",)),
}


@pytest.mark.parametrize(("words", "status", "says"), WRONG.values(), ids=WRONG.keys())
def test_wrong_request_refused_early(
    loadtest: Command,
    net_repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    status: int,
    says: tuple[str, ...],
) -> None:
    """One message that says what is wrong and what to type next."""
    monkeypatch.setattr("plansmith.triton.server.server.TritonServer.__enter__", None)
    repository = () if "--url" in words else ("--repository", net_repository)
    check_refusal(loadtest(*words, *repository, "--json"), status, says)
