"""Trials on the real Triton: what is served, and what becomes of servers that die, hang or answer errors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from plansmith.errors import EnvironmentFault
from plansmith.loadtest.runner.load_runner import Progress
from plansmith.loadtest.stages import Stage
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.tuning.builds import BuildCompiler, changed_spec, find_model, model_config, spec_changes
from plansmith.tuning.configuration import SpaceOptions
from plansmith.tuning.objective import Goal, parse_constraints
from plansmith.tuning.trials import runner
from plansmith.tuning.trials.history import TrialFailed
from plansmith.tuning.trials.runner import ServedBenchmark, TuningLoad, measurement_of
from plansmith.tuning.trials.trial_server import LocalServer
from plansmith.tuning.tune import PreparedSearch, TuningRequest, prepare_search

from ..support.loadtest.http_server import HttpServer, Response
from ..support.loadtest.runs import run
from .conftest import write_net

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.xdist_group("loadtest"),
    pytest.mark.usefixtures("installation", "site", "idle_client"),
]


@pytest.fixture
def idle_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may delay a client: that is no saturation here."""
    monkeypatch.setattr("plansmith.loadtest.runner.stage_results._LATE_MS", 60_000)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedSearch]:
    """A search of `net` whose build is compiled."""
    spec = write_net(tmp_path_factory.mktemp("net"))
    options = SpaceOptions(
        max_batch_sizes=(1, 4), queue_delays=(0,), preferences=("none",), instances=(1,), threads=(1,)
    )
    model = find_model(str(spec), Path())
    folder = str(spec.parent / "artifacts")
    model = type(model)(model.name, model.spec.model_copy(update={"artifacts": folder}), model.base)
    request = TuningRequest(model, load=TuningLoad(users=3), options=options, engines=("onnxruntime",), seconds=2)
    with prepare_search(request) as search:
        yield search


def benchmark_of(prepared: PreparedSearch, progress: Callable[[Progress], None] = lambda _: None) -> ServedBenchmark:
    request = prepared.request
    folder = request.model.folder
    server = LocalServer(folder)
    return ServedBenchmark(prepared.builds, prepared.inputs, request.load, folder, server, progress=progress)


def test_trial_is_served_as_configured(prepared: PreparedSearch) -> None:
    """Three users who wait for a batch of two share it, and the load leaves nothing behind."""
    configuration = prepared.plan.current.model_copy(
        update={"max_batch_size": 2, "queue_delay_microseconds": 500_000, "instances": 1}
    )
    measurement = benchmark_of(prepared)(configuration, 2)
    assert measurement.requests > measurement.failed == 0
    assert measurement.throughput > 0
    assert 0 < measurement.p50_ms <= measurement.p95_ms <= measurement.p99_ms
    assert measurement.memory_bytes
    assert measurement.batch_size is not None
    assert 1 < measurement.batch_size <= 2
    assert "server and client ran on one machine and shared its CPUs" in measurement.notes
    folder = prepared.request.model.folder
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert not list((folder / "logs").glob("*.triton.log"))


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "is lost"), (signal.SIGSTOP, "has answered nothing for")],
    ids=["dies", "hangs"],
)
def test_lost_server_fails_trial(
    number: signal.Signals, reason: str, prepared: PreparedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that dies or hangs under load is the result of its trial, with the reason in one line."""
    monkeypatch.setattr(runner, "_TIMEOUT_SECONDS", 2.0)
    before = set(psutil.Process().children(recursive=True))

    def end(progress: Progress) -> None:
        if not progress.requests:
            return
        for child in set(psutil.Process().children(recursive=True)) - before:
            if child.name() == "tritonserver":
                os.kill(child.pid, number)

    with pytest.raises(TrialFailed, match=reason) as failed:
        benchmark_of(prepared, end)(prepared.plan.current, 60)
    assert "\n" not in str(failed.value)


def test_hanging_server_fails_trial(prepared: PreparedSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first request that twice has no answer is the configuration's fault, and no fault of the machine."""
    fault = EnvironmentFault("net did not answer within 30 s", transient=True)
    fault.located(step="loadtest")
    attempts: list[object] = []

    def hang(*_: object, **__: object) -> object:
        attempts.append(None)
        raise fault

    monkeypatch.setattr(ServedBenchmark, "_run_load", hang)
    with pytest.raises(TrialFailed, match="did not answer within 30 s"):
        benchmark_of(prepared)(prepared.plan.current, 1)
    assert len(attempts) == 2


def test_machine_fault_ends_search(prepared: PreparedSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong twice with the machine is an error, and no result of the configuration."""

    def fail(*_: object, **__: object) -> object:
        raise EnvironmentFault("the client processes do not start", remedy="free some memory")

    monkeypatch.setattr(ServedBenchmark, "_run_load", fail)
    with pytest.raises(EnvironmentFault, match="do not start"):
        benchmark_of(prepared)(prepared.plan.current, 1)


def test_error_answers_violate_rate(tmp_path: Path) -> None:
    """Errors in mid-run are counted: the measurement does not meet the limit of the error rate."""
    with HttpServer() as server:

        def fail(progress: Progress) -> None:
            if progress.requests:
                server.answer = lambda _: Response(500, b"no")

        report = run(tmp_path, server.place, Stage(rate=40, seconds=3), progress=fail)
    measurement = measurement_of(report, "tiny")
    assert 0 < measurement.failed < measurement.requests
    assert not Goal(constraints=parse_constraints([])).is_met(measurement)


def test_unloadable_model_fails_trial(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged model is the result of its trial: the reason that Triton gives, in one line."""
    monkeypatch.chdir(net.parent)
    request = TuningRequest(find_model(str(net), Path()), engines=("onnxruntime",), precisions=("fp32",))
    with prepare_search(request) as prepared:
        (file,) = (path for path in prepared.inputs.release.rglob("model.onnx") if path.is_file())
        content = b"x" * file.stat().st_size
        file.unlink()  # the cache of the steps has a link of it
        file.write_bytes(content)
        with pytest.raises(TrialFailed, match="did not load") as failed:
            benchmark_of(prepared)(prepared.plan.current, 1)
    assert "\n" not in str(failed.value)


CHANGES: dict[str, dict[str, Any]] = {
    "all": {
        "max_batch_size": 8,
        "queue_delay_microseconds": 0,
        "preferred_batch_sizes": (4, 8),
        "instances": 2,
        "threads": 1,
    },
    "no batching": {"max_batch_size": 1, "queue_delay_microseconds": None},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_compiled_changes_serve_as_tried(change: dict[str, Any], net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config.pbtxt of a compile with the printed changes is that of the trial; other settings of the spec stay."""
    from plansmith.steps.compilation import Compilation

    monkeypatch.chdir(net.parent)
    model = find_model(str(net), Path())
    compiled, current = BuildCompiler(model).compile_current()
    best = current.model_copy(update=change).normalized
    tried = model_config(compiled.release, compiled.manifest)
    best.apply_to(tried)
    spec = changed_spec(model.spec, yaml.safe_load(yaml.safe_dump(spec_changes(model.spec, best, current))))
    spec = spec.model_copy(update={"check_served": False})
    with Compilation(spec, relative_to=model.base) as compilation:
        published, _ = compilation.run()
    release_config = parse_config((Path(published.release) / "config.pbtxt").read_text())
    for config in (tried, release_config):
        config.ClearField("version_policy")
        config.ClearField("model_warmup")
    assert text_of(release_config) == text_of(tried)
    assert "enable_mem_pattern" in text_of(release_config)
