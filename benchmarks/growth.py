"""How costs grow: CPU seconds over the size of what is worked on, the line through them, and a plot of each.

    python -m benchmarks.growth

Each size is measured in a process of its own, with the start of the interpreter and all imports. The table and the
picture in docs/benchmarks.md are written anew.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks import fleets
from benchmarks.compile_cost import MINILM
from benchmarks.measure import PLANSMITH, Cost, environment_with, run
from benchmarks.pages import PAGE, setting, write_measured
from benchmarks.store_client import Job
from tests.support.stores.releases import make_release

from plansmith.records.destination import Location

PICTURE = PAGE.parent / "images" / "growth.svg"
ROUNDS = 3
_LAYER = 2048
_MIB_OF_LAYER = _LAYER * _LAYER * 4 / 2**20


@dataclass(frozen=True)
class Series:
    """What was measured at several sizes.

    Attributes:
        title: what was done.
        unit: of the sizes.
        per: how many units the slope is given for.
        points: the sizes, each with its cost; the least CPU time of several rounds.
    """

    title: str
    unit: str
    per: int
    points: Sequence[tuple[float, Cost]]

    def line(self) -> tuple[float, float, float]:
        """Return constant and slope of the least squares, in CPU seconds, and the part of the variance they explain."""
        sizes, seconds = np.array([size for size, _ in self.points]), np.array([c.cpu_seconds for _, c in self.points])
        slope, constant = np.polyfit(sizes, seconds, 1)
        rest = seconds - (constant + slope * sizes)
        return float(constant), float(slope), float(1 - rest.var() / seconds.var())

    def row(self) -> str:
        """Return the row of the table."""
        constant, slope, explained = self.line()
        (least, small), *_, (most, large) = self.points
        return (
            f"| {self.title} | {least:,.0f} to {most:,.0f} {self.unit} | {constant:.2f} | {self.per * slope:.2f} for"
            f" {self.per:,} {self.unit} | {explained:.3f} | {small.peak_mib:,.0f} to {large.peak_mib:,.0f} |"
        )


def measured(title: str, unit: str, per: int, commands: Iterator[tuple[float, Callable[[], Cost]]]) -> Series:
    """Measure at each size, and keep the round with the least CPU time: what disturbs only adds."""
    points = []
    for size, cost in commands:
        best = min((cost() for _ in range(ROUNDS)), key=lambda c: c.cpu_seconds)
        points.append((size, best))
        print(f"{title:<44} {size:8,.0f} {unit:<9} {best.cpu_seconds:7.2f} CPU s {best.peak_mib:7,.0f} MiB", flush=True)
    return Series(title, unit, per, points)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        series = [
            measured("first compile of an ONNX file", "MiB", 100, _compiles_by_size(place / "sizes")),
            measured("first compile of MiniLM, largest batch", "sentences", 100, _compiles_by_batch()),
            measured("publication into a folder", "MiB", 100, _publications(place / "store")),
            *_of_fleets(place / "fleet"),
        ]
    write_measured("growth", _page(series))
    drawn = [
        {
            "title": each.title,
            "unit": each.unit,
            "points": [(size, cost.cpu_seconds) for size, cost in each.points],
            "line": each.line()[:2],
        }
        for each in series
    ]
    python = environment_with("matplotlib")
    script = str(Path(__file__).with_name("plots.py"))
    subprocess.run([python, script, str(PICTURE)], input=json.dumps(drawn), text=True, check=True)


def _page(series: Sequence[Series]) -> Iterator[str]:
    yield f"{setting()}; the least of {ROUNDS} rounds.\n"
    yield "| | sizes | constant, CPU s | slope, CPU s | R² | MiB peak |"
    yield "|---|---|---|---|---|---|"
    yield from (each.row() for each in series)


def _compiles_by_size(folder: Path) -> Iterator[tuple[float, Callable[[], Cost]]]:
    shapes = f"x=1x{_LAYER}:4x{_LAYER}:8x{_LAYER}"
    for layers in (4, 8, 16, 32, 48):
        file = _graph(folder / f"{layers}.onnx", layers)
        yield layers * _MIB_OF_LAYER, partial(_compile, f"onnx:{file}", shapes)
        file.unlink()


def _compiles_by_batch() -> Iterator[tuple[float, Callable[[], Cost]]]:
    for batch in (8, 32, 64, 96, 128):
        yield batch, partial(_compile, f"hf:{MINILM}", f"input_ids=1x8:4x32:{batch}x64")


def _compile(source: str, shapes: str) -> Cost:
    with tempfile.TemporaryDirectory() as artifacts:
        options = ("--shapes", shapes, "--no-check-served", "--quiet", "--artifacts", artifacts)
        return run([*PLANSMITH, "compile", source, *options])


def _graph(file: Path, layers: int) -> Path:
    """Write a graph of matrix products with random weights."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    shape = (_LAYER, _LAYER)
    weights = [
        numpy_helper.from_array((random.standard_normal(shape) / 64).astype(np.float32), f"w{number}")
        for number in range(layers)
    ]
    names = ["x", *(f"h{number}" for number in range(layers - 1)), "y"]
    nodes = [
        helper.make_node("MatMul", [before, weight.name], [after])
        for (before, after), weight in zip(itertools.pairwise(names), weights, strict=True)
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", _LAYER]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    return file


def _publications(folder: Path) -> Iterator[tuple[float, Callable[[], Cost]]]:
    for mib in (64, 128, 256, 512, 1024):
        release = make_release(folder / "repository", bulk_bytes=mib << 20)
        yield mib, partial(_publish, release.repository.root, folder)
        shutil.rmtree(folder)


def _publish(repository: Path, folder: Path) -> Cost:
    with tempfile.TemporaryDirectory(dir=folder) as store:
        job = Job(place=Location(to=store), folder=str(repository))
        return run([sys.executable, "-m", "benchmarks.store_client", "publish", job.model_dump_json()])


def _of_fleets(folder: Path) -> Iterator[Series]:
    """Commands over 1,000 specs, releases and runs, and over parts of them."""
    places = {size: fleets.make(folder / str(size), size) for size in (100, 250, 500, 1000)}
    for title, command in fleets.COMMANDS.items():
        calls = ((float(size), partial(run, [*PLANSMITH, *command(place)])) for size, place in places.items())
        yield measured(title, "models", 1000, calls)


if __name__ == "__main__":
    main()
