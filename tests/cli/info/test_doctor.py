"""`plansmith doctor`: what this machine can do, in words and as JSON, and what to type for the rest."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
import tomllib
import venv
import warnings
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from plansmith.cli.doctor.findings import Probed, run_probe
from plansmith.cli.doctor.probes import probe

from ...support.cli.command import Answer, environment
from ...support.cli.in_process import InProcess

SOURCES = Path(__file__).parents[3] / "src"
INSTALL = "pip install 'plansmith[compile]'"
MARKS = {"✓", "–", "!", "✗"}

# The doctor, who takes what the probes found from a file where one is, and else asks them and writes it there.
REMEMBERING = """
import dataclasses, json, pathlib, runpy, sys
from plansmith.cli.doctor import examination, findings
place = pathlib.Path(sys.argv.pop(1))
known = json.loads(place.read_text()) if place.exists() else {}
async def ask(name, **given):
    if name not in known:
        known[name] = dataclasses.asdict(await findings.run_probe(name, **given))
    return findings.Probed(**known[name])
examination.run_probe = ask
try:
    runpy.run_module("plansmith", run_name="__main__", alter_sys=True)
finally:
    place.write_text(json.dumps(known))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has plansmith's own dependencies and nothing of its extras."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    stated = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in sorted({"plansmith"}.union(*(needed_by(Requirement(line).name) for line in stated))):
        files = distribution(name).files or []
        tops = {file.parts[0] for file in files if file.parts[0] not in {"..", "__pycache__"}}
        for top in tops - {path.name for path in site.iterdir()}:
            source = Path(str(distribution(name).locate_file(top)))
            if not top.startswith("__editable__"):
                (site / top).symlink_to(source)
    (site / "plansmith.pth").write_text(f"{SOURCES}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def doctor(core: Path) -> list[str]:
    """`plansmith doctor --offline` in that environment, whose libraries are probed once for all that is printed."""
    cache_file = core.parents[1] / "known.json"
    return [str(core), "-c", REMEMBERING, str(cache_file), "doctor", "--offline"]


def needed_by(name: str) -> set[str]:
    """A distribution and all that it always needs."""
    names = {name}
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names |= needed_by(requirement.name)
    return names


def bare(command: list[str], folder: Path) -> Answer:
    """What a command in the environment without extras answers."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=bare_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def bare_environment(**more: str) -> dict[str, str]:
    unset = {"PYTHONPATH", "NO_COLOR", "COLUMNS", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"}
    return {key: value for key, value in environment().items() if key not in unset} | more


def by_name(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {f"{finding['area']}: {finding['name']}": finding for finding in document["findings"]}


async def ask_here(name: str, *, online: bool, limit_seconds: float) -> Probed:
    """What the probe of a library finds in this process, where most is imported already; Prefect's in its own."""
    if name.startswith("prefect"):
        return await run_probe(name, online=online, limit_seconds=limit_seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Probed(**json.loads(json.dumps(probe(name, online=online))))


@pytest.mark.slow
def test_complete_environment_has_all_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a complete environment every package is found."""
    probed_names: list[str] = []

    async def noting(name: str, **options: Any) -> Probed:
        probed_names.append(name)
        return await ask_here(name, **options)

    monkeypatch.setattr("plansmith.cli.doctor.examination.run_probe", noting)
    run = InProcess(tmp_path, monkeypatch, capfd)
    quick = run("doctor", "--json")
    assert not {"torch", "timm", "transformers", "onnxruntime", "prefect_server"} & {*probed_names}, "they take seconds"
    assert "plansmith doctor --deep" in by_name(quick.document)["Packages for compiling: imports"]["found"]
    assert (quick.status, quick.document["counts"]["problem"]) == (0, 0), quick
    check_complete(run("doctor", "--deep", "--json"), tmp_path)


def check_complete(answer: Answer, folder: Path) -> None:
    """All that a compile needs is there, and looking at it left nothing behind."""
    assert (answer.status, answer.document["exit_code"]) == (0, 0), answer
    assert answer.document["counts"]["problem"] == 0
    assert answer.document["verdict"].startswith("This machine can compile for ONNX Runtime")
    findings = by_name(answer.document)
    assert "CPU" in findings["Packages for compiling: onnxruntime"]["found"]
    assert findings["Prefect: server"]["severity"] == "ok"
    requirements = [Requirement(line) for line in distribution("plansmith").requires or ()]
    extras = [
        requirement
        for requirement in requirements
        if requirement.marker and any(requirement.marker.evaluate({"extra": e}) for e in ("compile", "client"))
    ]
    required = {requirement.name for requirement in extras} - {"plansmith"}  # which stands for the extra `client`
    assert {f"Packages for compiling: {name}" for name in required} <= set(findings)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_missing_packages_are_named(core: Path, tmp_path: Path) -> None:
    """Without the extra, every package is named and one command mends them."""
    answer = bare([str(core), "-m", "plansmith", "doctor", "--offline", "--json"], tmp_path)
    assert (answer.status, answer.document["exit_code"]) == (9, 9), answer
    findings = by_name(answer.document)
    torch = findings["Packages for compiling: torch"]
    assert (torch["severity"], torch["found"], torch["remedy"]) == ("problem", "not installed", INSTALL)
    assert findings["Triton: server"]["severity"] == "problem"
    assert findings["Prefect: package"]["severity"] == "optional"
    assert answer.document["next"][0] == INSTALL
    assert answer.document["next"][1].startswith("plansmith serve-env add local-cpu")
    assert "not ready to compile" in answer.document["verdict"]
    assert answer.stderr == ""


@pytest.mark.slow
def test_pipe_gets_plain_lines(doctor: list[str], tmp_path: Path) -> None:
    """A pipe gets plain whole lines that end with what to type."""
    answer = bare(doctor, tmp_path)
    assert answer.status == 9
    assert "\x1b" not in answer.stdout
    lines = answer.stdout.splitlines()
    assert "✗ torch not installed; needed for plansmith compile" in {" ".join(line.split()) for line in lines}
    assert [line.strip() for line in lines].count(f"→ {INSTALL}") == 1
    assert max(map(len, lines)) > 80
    (last,) = [number for number, line in enumerate(lines) if line.startswith("Next: ")]
    assert lines[last] == f"Next: {INSTALL}"
    assert lines[last - 1].startswith("This machine is not ready to compile: ")


@pytest.mark.slow
def test_output_falls_back_to_ascii(doctor: list[str], tmp_path: Path) -> None:
    """Output without our marks falls back to ASCII."""
    done = subprocess.run(
        doctor,
        cwd=tmp_path,
        env=bare_environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    assert b"\n  X torch " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "coloured"), [({"NO_COLOR": "1"}, False), ({}, True)], ids=["no colour", "colour"]
)
def test_narrow_terminal_wraps_columns(
    doctor: list[str], tmp_path: Path, variables: dict[str, str], coloured: bool
) -> None:
    """A narrow terminal gets wrapped columns."""
    lines, coded = on_terminal(doctor, tmp_path, 70, variables)
    verdict = next(number for number, line in enumerate(lines) if line.startswith("This machine"))
    assert [line for line in lines[:verdict] if len(line) > 70 and " " in line[22:].strip()] == []
    marked = [line for line in lines[:verdict] if line.startswith("  ") and line[2] != " "]
    assert len(marked) > 20
    assert {line[2] for line in marked} <= MARKS
    assert ("[32m" in coded) == coloured


def on_terminal(command: list[str], folder: Path, columns: int, variables: dict[str, str]) -> tuple[list[str], str]:
    """The lines that a terminal of so many columns gets, without codes, and the whole with them."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = bare_environment(TERM="xterm-256color", **variables)
    pieces = []
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL):
        os.close(theirs)
        try:
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        except OSError:  # the terminal's other end is closed
            os.close(ours)
    coded = b"".join(pieces).decode().replace("\r\n", "\n")
    from rich.text import Text

    return Text.from_ansi(coded).plain.splitlines(), coded


@pytest.mark.slow
def test_interrupt_ends_probe(core: Path, tmp_path: Path) -> None:
    """An interrupt ends what is being looked at."""
    mark = tmp_path / "pid"
    (tmp_path / "tensorrt.py").write_text(
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"pathlib.Path({str(mark)!r} + '.new').write_text(str(os.getpid()))\n"
        f"os.rename({str(mark)!r} + '.new', {str(mark)!r})\n"
        "time.sleep(600)\n"
    )
    command = [str(core), "-m", "plansmith", "doctor", "--offline"]
    env = bare_environment(PYTHONPATH=str(tmp_path))
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert not Path(f"/proc/{mark.read_text()}").exists()


@pytest.mark.slow
def test_unwritable_place_is_problem(doctor: list[str], tmp_path: Path) -> None:
    """A place that cannot be written to is a problem, with another place to type."""
    (tmp_path / "artifacts").write_text("")
    findings = by_name(json.loads(bare([*doctor, "--json"], tmp_path).stdout))
    assert findings["Artifacts: folder"]["severity"] == "problem"
    assert "plansmith compile --artifacts" in findings["Artifacts: folder"]["remedy"]
