"""What a person writes for a load test: plan files, phases, ramps, traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import UsageError
from plansmith.loadtest.plan_file import Phase, read_plan, read_ramp, stages_of_phases
from plansmith.loadtest.stages import LoadPlan, Stage, arrival_times, read_trace, schedule_stages, share_of_client


def test_plan_file_gives_stages(tmp_path: Path) -> None:
    """A plan is read with its paths relative to the file."""
    (tmp_path / "monday.txt").write_text("0\n1.5\n")
    (tmp_path / "plan.yaml").write_text(
        "models: [{model: minilm, weight: 3, batches: [1, 4]}, {model: resnet@3}]\n"
        "stages:\n  - {users: 10, seconds: 30}\n  - {rate: 100, arrivals: poisson}\n  - {trace: monday.txt}\n"
        "stop_when: {latency: {percentile: 99, milliseconds: 200}, flat_throughput: 5e-2}\n"
    )
    file = read_plan(tmp_path / "plan.yaml")
    plan = file.plan()
    assert [stage.loop for stage in plan.stages] == ["closed", "open", "open"]
    assert plan.stages[2].trace == str(tmp_path / "monday.txt")
    assert (file.models[0].batches, file.models[1].version) == ((1, 4), "3")
    assert plan.stop_when.describe() == ["p99 above 200 ms", "throughput grows by less than 5 % with more load"]
    assert [stage.seconds for stage in schedule_stages(plan)] == [30, 30, 2]


def test_plan_problems_name_lines(tmp_path: Path) -> None:
    """Every problem of a plan is told with its line."""
    (tmp_path / "plan.yaml").write_text(
        "stages:\n  - {users: 1, rate: 2}\n  - {users: -3}\nmodels: [{model: a}]\nencodin: json\n"
    )
    with pytest.raises(UsageError) as refused:
        read_plan(tmp_path / "plan.yaml")
    text = str(refused.value)
    assert "plan.yaml:2: 'stages.0': give one of users, rate and trace, not users and rate" in text
    assert "plan.yaml:3: 'stages.1.users': must be 1 or more" in text
    assert "plan.yaml:5 'encodin' (did you mean encoding?)" in text


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            ({"users": 1, "seconds": 9}, {"users": 2, "at_seconds": 5}),
            "stages overlap: stage 2 (2 users) begins at 5 s, while stage 1 (1 user) runs until 9 s",
        ),
        (({"users": 100, "spawn_rate": 2, "seconds": 30},), "its users take 50 s to start"),
    ],
)
def test_impossible_stages_are_refused(stages: tuple[dict[str, float], ...], message: str) -> None:
    plan = LoadPlan(stages=tuple(Stage.model_validate(stage) for stage in stages))
    with pytest.raises(UsageError) as refused:
        schedule_stages(plan)
    assert message in refused.value.message


def test_phase_grows_by_spawn_rate() -> None:
    """SageMaker's SpawnRate is new users per minute."""
    stages = stages_of_phases([Phase(InitialNumberOfUsers=1, SpawnRate=2, DurationInSeconds=120)])
    assert [(stage.users, stage.seconds) for stage in stages] == [(1, 30), (2, 30), (3, 30), (4, 30)]


def test_staged_ramp_matches_published_one() -> None:
    """10 users warm up for 30 s, then 20 more come every 30 s, up to 200."""
    warm_up, stages = read_ramp("staged")
    assert (warm_up.users, warm_up.seconds) == (10, 30)
    assert [stage.users for stage in stages] == [30, 50, 70, 90, 110, 130, 150, 170, 190, 200]
    assert {stage.seconds for stage in stages} == {30}


def test_clients_share_all_arrivals() -> None:
    """Each arrival of a Poisson process goes to one client, and their mean rate is the requested one."""
    shares = [share_of_client(arrival_times("poisson", 50, [], "a"), client, 3, 20) for client in range(3)]
    arrivals = sorted(at for share in shares for at in share)
    assert arrivals == list(share_of_client(arrival_times("poisson", 50, [], "a"), 0, 1, 20))
    assert 850 < len(arrivals) < 1150


@pytest.mark.parametrize(
    ("text", "message"),
    [("soon\n", "line 1: 'soon' is no number"), ("# none\n", "holds no arrival time"), ("-1e308\n1e308\n", "30 days")],
)
def test_wrong_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.txt").write_text(text)
    with pytest.raises(UsageError) as refused:
        read_trace(tmp_path / "trace.txt")
    assert message in refused.value.message
