"""What `plansmith tune` finds beside a full grid, and how much better that is than the default configuration.

    python -m benchmarks.tuning grid MODEL [--passes N] [--record FILE]
    python -m benchmarks.tuning replay MODEL [--record FILE] [--starts N]
    python -m benchmarks.tuning gain MODEL [--seconds N]

`grid` measures every configuration of a model on the Triton of this machine, pass by pass, each in a random order; what
is finished is kept, and an interrupted grid goes on. `replay` searches the recorded grid with plansmith's sampler, with
Optuna's TPE and at random, from the recorded current configuration and from random ones, and prints what is found in
parts of the best of the grid. `gain` runs `plansmith tune`, and prints its verdict with the interval.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.compile_cost import MINILM
from benchmarks.measure import PLANSMITH
from optuna.samplers import BaseSampler, TPESampler
from tests.support.tuning.recorded import RecordedGrid, Row, recording, row_of
from tests.support.tuning.searches import context_of, random_sampler

from plansmith.tuning.budget import default_schedule
from plansmith.tuning.builds import find_model
from plansmith.tuning.configuration import Configuration, SpaceOptions
from plansmith.tuning.objective import Goal
from plansmith.tuning.sampler import ConfigurationSampler, SamplerFactory, gaussian_process
from plansmith.tuning.search import search
from plansmith.tuning.trials.history import TrialHistory
from plansmith.tuning.trials.runner import TrialRunner
from plansmith.tuning.tune import PreparedSearch, TuningRequest, prepare_search

FOLDER = Path("artifacts") / "benchmarks" / "tuning"
DELAYS = (0, 2000)
GRID_SECONDS = 3.0
IMAGES = "random_weights: true\nshapes:\n  pixel_values: 1x3x{0}x{0}:4x3x{0}x{0}:16x3x{0}x{0}\n"
MODELS: Mapping[str, str] = {
    "cnn": f"source: timm:resnet10t\n{IMAGES.format(176)}",
    "mobilenet": f"source: timm:mobilenetv3_small_050\n{IMAGES.format(224)}",
    "minilm": f"source: hf:{MINILM}\nshapes:\n  input_ids: 1x1:8x64:32x256\n",
}
GOALS = {"throughput": Goal(), "latency": Goal(objective="latency")}


def tpe(seed: int) -> BaseSampler:
    return TPESampler(seed=seed, multivariate=True, n_startup_trials=3)


SAMPLERS: Mapping[str, SamplerFactory] = {"plansmith": gaussian_process, "Optuna's TPE": tpe, "random": random_sampler}


def main() -> None:
    options = parse_options()
    {"grid": grid, "replay": replay, "gain": gain}[options.what](options)


@contextmanager
def spec_of(name: str) -> Iterator[Path]:
    """The spec of a model, whose artifacts are those of the benchmarks."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / f"{name}.yaml"
        spec.write_text(f"name: {name}\nartifacts: {FOLDER.absolute()}\n{MODELS[name]}")
        yield spec


def grid(options: argparse.Namespace) -> None:
    """Measure what is not measured yet, and record it."""
    with spec_of(options.model) as spec:
        request = TuningRequest(find_model(str(spec), Path()), options=SpaceOptions(queue_delays=DELAYS))
        with prepare_search(request) as prepared:
            passes: list[tuple[Row | None, ...]] = []
            for number in range(1, options.passes + 1):
                rows = measure_pass(prepared, number)
                passes.append(tuple(rows[configuration] for configuration in prepared.plan.space.points))
                record(prepared, passes, options.record or FOLDER / f"{options.model}.json")


def measure_pass(prepared: PreparedSearch, number: int) -> dict[Configuration, Row | None]:
    """Each configuration once."""
    history = TrialHistory(prepared.request.model.folder / "grid")
    runner = TrialRunner(prepared.benchmark(), history, prepared.context(), "grid", 0)
    order = list(prepared.plan.space.points)
    random.Random(number).shuffle(order)
    rows = {}
    for place, configuration in enumerate(order, 1):
        trial = runner.run("screening", configuration, GRID_SECONDS, round_number=number)
        rows[configuration] = row_of(trial.measurement)
        rate = f"{trial.measurement.throughput:.1f}/s" if trial.measurement else trial.problem
        print(f"pass {number}, {place} of {len(order)}: {configuration.label}: {rate}", flush=True)
    return rows


def record(prepared: PreparedSearch, passes: Sequence[tuple[Row | None, ...]], file: Path) -> None:
    """Write a grid, a line for each pass."""
    plan = prepared.plan
    about = f"{plan.model}, {plan.load}, {GRID_SECONDS:g} s a run; {plan.host}"
    recorded = RecordedGrid(about=about, space=plan.space, current=plan.current, passes=tuple(passes))
    head = recorded.model_dump_json(exclude={"passes"}).removesuffix("}")
    rows = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in passes)
    file.write_text(f'{head},"passes":[\n{rows}]}}\n')
    print(f"recorded {len(passes)} passes of {plan.space.size} configurations in {file}")


def replay(options: argparse.Namespace) -> None:
    """Search each pass with every sampler, from the recorded current configuration and from random ones."""
    recorded = RecordedGrid.model_validate_json((options.record or recording(options.model)).read_text())
    schedule = default_schedule(recorded.space.size, seconds=GRID_SECONDS)
    share = schedule.search_runs / recorded.space.size
    print(f"{recorded.about}\n{schedule.search_runs} of {recorded.space.size} configurations ({share:.1%} of the grid)")
    configurations = list(recorded.space.points)
    starts = random.Random(0).sample(configurations, options.starts)
    for name, make_sampler in SAMPLERS.items():
        for title, goal in GOALS.items():
            for label, currents in (("current", [recorded.current]), ("random", starts)):
                shares = [
                    search_share(recorded.only(number), goal, current, make_sampler, seed)
                    for number in range(len(recorded.passes))
                    for seed, current in enumerate(currents)
                ]
                enough = sum(value >= 0.95 for value in shares)
                print(
                    f"{name}, {title}, from {label}: median {median(shares):.3f} of the best, worst {min(shares):.3f};"
                    f" at least 0.95 in {enough} of {len(shares)}",
                    flush=True,
                )


def search_share(
    recorded: RecordedGrid, goal: Goal, current: Configuration, make_sampler: SamplerFactory, seed: int
) -> float:
    """What one search finds, in parts of the best of the grid."""
    schedule = default_schedule(recorded.space.size, seconds=GRID_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        history = TrialHistory(Path(folder))
        runner = TrialRunner(recorded.measure, history, context_of(recorded.space), "replay", schedule.runs)
        sampler = ConfigurationSampler(recorded.space, seed=seed, make_sampler=make_sampler)
        result = search(recorded.space, current, goal, schedule, runner, sampler=sampler)
    return recorded.share_of_best(goal, result.best.configuration)


def gain(options: argparse.Namespace) -> None:
    """Run the command, and print its verdict."""
    with spec_of(options.model) as spec:
        command = [
            "tune",
            str(spec),
            "--json",
            "--seconds",
            str(options.seconds),
            "--delays",
            ",".join(map(str, DELAYS)),
        ]
        done = subprocess.run([*PLANSMITH, *command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"plansmith {' '.join(command)} ended with {done.returncode}")
    document = json.loads(done.stdout)
    print(f"{options.model}: {document['verdict']}\n  {document['plan']['load']}; {document['plan']['host']}")
    if not document["better"]:
        sys.exit(f"{options.model}: nothing is significantly better than the default configuration")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning")
    parser.add_argument("what", choices=["grid", "replay", "gain"])
    parser.add_argument("model", nargs="?", choices=[*MODELS], default="cnn")
    parser.add_argument("--passes", type=int, default=1, help="of the grid")
    parser.add_argument("--record", type=Path, help="where the grid is recorded")
    parser.add_argument("--starts", type=int, default=5, help="random current configurations of the replay")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the longest runs of a search")
    return parser.parse_args()


if __name__ == "__main__":
    main()
