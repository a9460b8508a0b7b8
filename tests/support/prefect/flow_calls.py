"""Flows called in a process of their own, and the tables that they leave on a Prefect server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..cli.command import environment
from .prefect_server import PrefectServer

# Runs a flow with parameters, each as JSON, one after another; a failed one is told by its error's name.
_CALLS = """
import json, sys
from importlib import import_module
for name, parameters in json.loads(sys.argv[1]):
    flow = getattr(import_module(f"plansmith.flows.{name}"), name)
    state = flow(**parameters, return_state=True)
    found = state.result(raise_on_failure=False)
    failed = isinstance(found, BaseException)
    print("told:", json.dumps([state.name, type(found).__name__ if failed else found]))
"""


def run_flows(prefect: PrefectServer, folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[list[Any]]:
    """The state and the result of flows that run in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", _CALLS, json.dumps(calls)],
        cwd=folder,
        env=environment(**prefect.variables()),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line.removeprefix("told: ")) for line in done.stdout.splitlines() if line.startswith("told: ")]


def tables_of(prefect: PrefectServer, flow: str, folder: Path) -> list[tuple[str, str, list[dict[str, str]], str]]:
    """Name, state, table and description of the runs of a flow for a folder, in turn; no rows where it has no table."""
    runs = prefect.ask("flow_runs/filter", flows={"name": {"any_": [flow]}}, sort="START_TIME_ASC")
    tables = []
    for run in (run for run in runs if run["parameters"].get("folder") == str(folder)):
        (table,) = prefect.artifacts_of(run["id"]).values() or [{"data": "[]", "description": ""}]
        tables.append((run["name"], run["state"]["type"], json.loads(table["data"]), table["description"]))
    return tables
