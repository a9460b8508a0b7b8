"""Kills of commands at moments that chance picks: nothing that one started outlives it, and the next command works.

Ten here, and as many as one likes with PLANSMITH_SOAK_KILLS; a seed (PLANSMITH_SOAK_SEED) and a number are one kill.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plansmith.triggers.inbox.inbox import open_inbox
from plansmith.triggers.registries.delivery import Event
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ..support.cli.command import COMMAND, CommandLine, environment
from ..support.faults.compiles import write_tiny_bert
from ..support.prefect.fleets import write_graph
from ..support.prefect.programs import Program
from ..support.triton.installed import installation, site
from ..support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("soak-orphans")]

__all__ = ["installation", "site"]

KILLS = int(os.environ.get("PLANSMITH_SOAK_KILLS") or 10)
FIRST = int(os.environ.get("PLANSMITH_SOAK_FIRST_KILL") or 0)
SEED = os.environ.get("PLANSMITH_SOAK_SEED") or str(random.randrange(10**6))

_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
COMMANDS = (
    ("compile", "hf:bert", "--random-weights", "--force", "--artifacts", "forced"),
    ("fleet", "run", "specs", "--jobs", "2", "--force", "--artifacts", "fleet"),
    ("serve", *_PORTS),
    ("serve", "--follow", *_PORTS),
    ("sync", "--store", "store", "--into", "mirror"),
    ("sync", "--store", "store", "--into", "loaded", "--url", "TRITON"),
    ("triggers", "serve", "--port", "0", "--service", "service.yaml"),
    ("infer", "tiny", "--random", "--serve"),
)
WAYS: dict[str, Callable[[Program], None]] = {
    "SIGKILL": lambda program: program.kill(),
    "SIGTERM": lambda program: os.kill(program.number, signal.SIGTERM),
    "SIGKILL to its group": lambda program: os.killpg(program.number, signal.SIGKILL),
}
_LONGEST_SECONDS = 12.0
"""Until which all of them are at work on a machine that has nothing else to do."""
_ONNXRUNTIMES_OWN = ".ses"
_GONE_SECONDS = 90
"""A service that is asked to end finishes what it has begun, within a minute."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a compiled model, which the stand-in serves by Triton's Python backend: its stubs are what was left."""
    root = tmp_path_factory.mktemp("orphans")
    for name in ("specs", "temporary"):
        (root / name).mkdir()
    write_tiny_bert(root / "bert")
    write_graph(root / "tiny.onnx")
    for name in ("one", "two"):
        spec = {"name": name, "source": "onnx:../tiny.onnx", "check_served": False}
        (root / "specs" / f"{name}.yaml").write_text(json.dumps(spec))
    triggers = {
        "registries": {"ci": {"type": "hook", "secrets": ["env:CI_SECRET"]}},
        "rules": [{"registry": "ci", "model": "one", "when": "asked", "spec": "specs/one.yaml"}],
    }
    service = {"specs": ["specs"], "pools": {"local": {}}, "triggers": triggers}
    (root / "service.yaml").write_text(json.dumps(service))
    run = CommandLine(root)
    run.text("compile", "onnx:tiny.onnx", "--no-check-served")
    run.text("publish", "tiny", "store")
    return root


@pytest.fixture(scope="module")
def triton(folder: Path, installation: Installation, site: Path) -> Iterator[str]:
    """The URL of a Triton that a sync loads models into; no kill reaches it."""
    (folder / "loaded").mkdir()
    with TritonServer(folder / "loaded", installation, folder / "triton.log", site=site, models=[]) as server:
        yield f"grpc://{server.grpc_url}"


@pytest.mark.parametrize("number", range(FIRST, FIRST + KILLS))
def test_killed_command_leaves_nothing(number: int, folder: Path, triton: str) -> None:
    """Nothing outlives a command that is killed at any moment, and what it left in files is mended or tidied."""
    words = tuple(triton if word == "TRITON" else word for word in COMMANDS[number % len(COMMANDS)])
    way = tuple(WAYS)[number % len(WAYS)]
    seconds = random.Random(f"{SEED} {number}").uniform(0, _LONGEST_SECONDS)
    told = f"seed {SEED}, number {number}: {way} to {' '.join(words[:2])} after {seconds:.2f} s"
    own = {"TMPDIR": str(folder / "temporary"), "CI_SECRET": "secret"}
    _prepare(words, number, folder)
    program = Program([*COMMAND, *words], folder / "log", environment(**own), folder=folder)
    program.start()
    try:
        time.sleep(seconds)
        WAYS[way](program)
        wait_until(lambda: not program.processes(), lambda: f"{told}: {program.processes()}", _GONE_SECONDS)
    finally:
        program.stop()
    assert (told, _problem_after(CommandLine(folder), words, folder, own)) == (told, "")


def _prepare(words: tuple[str, ...], number: int, folder: Path) -> None:
    """Have something to do for those that wait for it otherwise."""
    if words[0] == "sync":
        mirror = words[words.index("--into") + 1]
        for name in (mirror, f"{mirror}.plansmith"):
            shutil.rmtree(folder / name, ignore_errors=True)
    if words[0] == "triggers":
        shutil.rmtree(folder / "artifacts" / "cache", ignore_errors=True)
        inbox = open_inbox(f"sqlite:///{folder}/plansmith-triggers.db")
        inbox.take("ci", f"d{number}", [Event(registry="ci", model="one", version=str(number), change="asked")])
        inbox.close()


def _problem_after(run: CommandLine, words: tuple[str, ...], folder: Path, own: dict[str, str]) -> str:
    """What is wrong with the next commands: one that goes on where the killed one was, and gc."""
    artifacts = words[words.index("--artifacts") + 1] if "--artifacts" in words else "artifacts"
    goes_on = (*words, "--once") if words[0] == "sync" else ("compile", "onnx:tiny.onnx", "--no-check-served")
    for following in (goes_on, ("gc", "--artifacts", artifacts, "--older-than", "0")):
        answer = run(*following, **own)
        if answer.status != 0:
            return f"then {' '.join(following)}: {answer}"
    left = [path.name for path in (folder / "temporary").iterdir() if path.name != _ONNXRUNTIMES_OWN]
    left += [str(path) for path in folder.rglob("staging/*") if path.name != ".lock"]
    return f"then {left} are left" if left else ""
