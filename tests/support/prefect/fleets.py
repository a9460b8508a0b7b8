"""Fleets of tiny ONNX models, run as a flow by a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .prefect_server import PrefectServer
from .programs import own_environment

_RUN = """
import importlib, json, sys
module, function, parameters = json.loads(sys.argv[1])
flow = getattr(importlib.import_module(module), function)
state = flow(**parameters, return_state=True)
found = state.result(raise_on_failure=False)
print(json.dumps([state.type.value, state.message or "", found if isinstance(found, dict) else repr(found)]))
"""

COMPILE_FLEET = "plansmith.flows.compile_fleet.compile_fleet"
REFRESH = "plansmith.flows.refresh.refresh"


@dataclass(frozen=True)
class Answer:
    """How a fleet run ended, and what came of each model by its name."""

    state: str
    message: str
    outcomes: dict[str, dict[str, Any]]

    @property
    def ended(self) -> dict[str, str]:
        """How each model ended."""
        return {name: outcome["ended"] for name, outcome in self.outcomes.items()}


class FleetRun:
    """A fleet run in a process that this one starts, can kill, and asks for what came of it.

    Args:
        server: that it reports to.
        folder: of the specs, in `specs`, and of the artifacts.
        flow: the path of its function.
        port: of the API, where it is reached by another way.
        parameters: of the flow, besides the specs and the folder.
    """

    def __init__(
        self, server: PrefectServer, folder: Path, *, flow: str = COMPILE_FLEET, port: int = 0, **parameters: Any
    ) -> None:
        arguments = [*flow.rsplit(".", 1), {"specs": ["specs"], "folder": str(folder), **parameters}]
        self._log = folder / f"fleet-{len(list(folder.glob('fleet-*')))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RUN, json.dumps(arguments)],
                cwd="/",
                env=own_environment(**server.variables(port=port)),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def answer(self) -> Answer:
        """What came of it, once it has ended."""
        stdout = self.process.communicate(timeout=300)[0]
        assert stdout.strip(), self.log
        state, message, report = json.loads(stdout.splitlines()[-1])
        assert isinstance(report, dict), report
        outcomes = {outcome["model"] or Path(outcome["file"]).name: outcome for outcome in report["outcomes"]}
        return Answer(state, message, outcomes)

    @property
    def log(self) -> str:
        """What it logged so far."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, to the process alone."""
        self.process.kill()
        self.process.communicate()


_HELD = """
import time
from pathlib import Path

import numpy as np


def samples():
    here = Path(__file__).parent
    (here / "held").touch()
    while not (here / "go").exists():
        time.sleep(0.05)
    for number in range(400):
        yield {"x": np.full(8, number, np.float32)}
"""


def lay_out(folder: Path, *names: str, held: bool = False, **more: Any) -> None:
    """Specs of a tiny model under several names; each has a graph of its own, so that none is in another's cache.

    Args:
        folder: the specs lie in its `specs`.
        names: of the models.
        held: their compiles wait for a `go` in that folder, and leave a `held` there when they do.
        more: of each spec.
    """
    specs = folder / "specs"
    specs.mkdir(exist_ok=True)
    more |= hold(specs) if held else {}
    for number, name in enumerate(names):
        write_graph(specs / f"{name}.onnx", seed=number)
        spec = {"source": f"onnx:{name}.onnx", "name": name, "check_served": False, **more}
        (specs / f"{name}.yaml").write_text(json.dumps(spec))


def hold(folder: Path) -> dict[str, Any]:
    """What a spec in this folder says so that its compile, once the model is fetched, waits for a `go` there."""
    (folder / "holding.py").write_text(_HELD)
    return {"data": {"entry_point": "holding:samples"}}


def children_of(server: PrefectServer, fleet: str) -> dict[str, list[dict[str, Any]]]:
    """The runs that a fleet's run started, by name, the first started first."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    runs = server.ask("flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [fleet]}}, sort="START_TIME_ASC")
    for run in runs:
        by_name.setdefault(run["name"], []).append(run)
    return by_name


def runs_named(server: PrefectServer, *names: str) -> list[dict[str, Any]]:
    """All runs of some names."""
    runs: list[dict[str, Any]] = server.ask("flow_runs/filter", flow_runs={"name": {"any_": list(names)}})
    return runs


def state_of(server: PrefectServer, run: str) -> str:
    """The type of a run's state."""
    (flow_run,) = server.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    return str(flow_run["state"]["type"])


def table(artifact: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table artifact."""
    rows: list[dict[str, Any]] = json.loads(artifact["data"])
    return rows


def write_graph(path: Path, seed: int = 0) -> None:
    """An ONNX file of a matrix: `x` [batch, 8] becomes `y` [batch, 4]."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
