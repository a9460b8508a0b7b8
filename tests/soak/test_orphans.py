"""SIGKILL to a command at a moment that chance picks: nothing that it started outlives it.

A round here, and as many as one likes with PLANSMITH_SOAK_ROUNDS.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from ..support.cli.command import COMMAND, CommandLine, environment
from ..support.prefect.fleets import write_graph
from ..support.prefect.programs import Program
from ..support.waiting import wait_until

ROUNDS = int(os.environ.get("PLANSMITH_SOAK_ROUNDS") or 1)

_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
COMMANDS = {
    "compile": ("compile", "onnx:tiny.onnx", "--force", "--artifacts", "forced"),
    "serve": ("serve", *_PORTS),
    "follow": ("serve", "--follow", *_PORTS),
    "infer": ("infer", "tiny", "--random", "--serve"),
}
_LONGEST_SECONDS = 6.0
"""Until which all of them are at work on a machine that has nothing else to do."""
_GONE_SECONDS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a compiled model, which the stand-in serves by Triton's Python backend: its stubs are what was left."""
    root = tmp_path_factory.mktemp("orphans")
    write_graph(root / "tiny.onnx")
    answer = CommandLine(root)("compile", "onnx:tiny.onnx", "--no-check-served")
    assert answer.status == 0, answer
    return root


@pytest.mark.slow
@pytest.mark.xdist_group("soak-orphans")
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_killed_command_leaves_no_orphans(words: tuple[str, ...], folder: Path) -> None:
    """Nothing outlives a command that is killed at any moment."""
    seed = os.environ.get("PLANSMITH_SOAK_SEED") or str(random.randrange(10**6))
    chance = random.Random(seed)
    for number in range(ROUNDS):
        own = environment(TMPDIR=str(folder))  # what was killed leaves its temporary files to gc
        program = Program([*COMMAND, *words], folder / "log", own, folder=folder)
        seconds = chance.uniform(0, _LONGEST_SECONDS)
        program.start()
        time.sleep(seconds)
        program.kill()
        left = f"{words[0]} was killed after {seconds:.2f} s (seed {seed}, round {number}): {program.processes()}"
        wait_until(lambda: not program.processes(), lambda: left, _GONE_SECONDS)  # noqa: B023 - called at once
        program.stop()
