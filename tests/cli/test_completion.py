"""Completion in bash, zsh and fish: what is offered, and that it is offered at once and in silence."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.config.target_names import target_names

from ..support.cli.command import COMMAND, CommandLine, environment
from ..support.cli.completion import bash
from .conftest import Compiled

COMMANDS = [
    *("capacity", "check", "compare", "compile", "demo", "diff", "doctor", "explain", "fleet", "flows", "gc"),
    *("history", "infer", "init", "inspect"),
    *(
        "loadtest",
        "lower",
        "pin",
        "promote",
        "prune",
        "publish",
        "pull",
        "report",
        "rollback",
        "sagemaker",
        "schema",
        "serve",
        "serve-env",
        "show",
        "sign",
        "status",
        "store",
        "submit",
        "sync",
        "targets",
        "triggers",
        "tune",
    ),
    *("validate", "verify", "versions", "zoo"),
]

# What is typed, and what has to be offered; a type in angle brackets is left to the shell.
OFFERED: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "commands": (("",), COMMANDS),
    "the start of a command": (("se",), ["serve", "serve-env"]),
    "commands of a group": (("serve-env", ""), ["add", "list", "remove"]),
    "commands of flows": (("flows", ""), ["deploy", "serve"]),
    "commands of fleets": (("fleet", ""), ["plan", "run"]),
    "specs of a fleet": (("fleet", "plan", "conf"), ["<file>"]),
    "models of a fleet": (("status", "--model", "t"), ["tiny"]),
    "options": (("compile", "--s"), ["--shapes", "--shared-cache"]),
    "choices": (("compile", "x", "--engine", "t"), ["tensorrt"]),
    "targets": (("compile", "x", "--target", "triton-26"), [n for n in target_names() if n.startswith("triton-26")]),
    "targets by name": (("targets", "sage"), [n for n in target_names() if n.startswith("sage")]),
    "target files": (("compile", "x", "--target", "our"), ["<file>"]),
    "specs": (("compile", "conf"), ["<file>"]),
    "repositories": (("check", "arti"), ["<file>"]),
    "precisions": (("lower", "x", "--precision", "a"), ["auto"]),
    "data": (("compile", "x", "--data", "sent"), ["<file>"]),
    "specs to lower": (("lower", "conf"), ["<file>"]),
    "folders for a graph": (("lower", "x", "--output", "a"), ["<dir>"]),
    "folders": (("compile", "x", "--repository", "a"), ["<dir>"]),
    "models to show": (("show", ""), ["tiny"]),
    "models to serve": (("serve", "t"), ["tiny"]),
    "models to ask": (("infer", "t"), ["tiny"]),
    "no model to ask": (("infer", "x"), []),
    "files to send": (("infer", "x", "--file", "ca"), ["<file>"]),
    "models with a history": (("history", "t"), ["tiny"]),
    "models to validate": (("validate", "t"), ["tiny"]),
    "models with a report": (("report", "t"), ["tiny"]),
    "folders to validate": (("validate", "art"), ["<file>"]),
    "models of a repository": (("show", "--repository", "artifacts/repository", ""), ["tiny"]),
    "models of no repository": (("show", "--repository", "none", ""), []),
}


def zsh(run: CommandLine, words: tuple[str, ...]) -> list[str]:
    """What zsh is told, three lines a word: type, word, help."""
    typed = shlex.join(("plansmith", *words))
    answer = run(_PLANSMITH_COMPLETE="zsh_complete", COMP_WORDS=typed, COMP_CWORD=str(len(words)))
    assert (answer.status, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    return [word if kind == "plain" else f"<{kind}>" for kind, word in zip(lines[::3], lines[1::3], strict=False)]


def fish(run: CommandLine, words: tuple[str, ...]) -> list[str]:
    """What fish is told, a line a word: type, word and help."""
    typed = " ".join(("plansmith", *words))
    answer = run(_PLANSMITH_COMPLETE="fish_complete", COMP_WORDS=typed, COMP_CWORD=words[-1])
    assert (answer.status, answer.stderr) == (0, "")
    completions = [line.split("\t")[0].split(",", 1) for line in answer.stdout.splitlines() if line]
    return [word if kind == "plain" else f"<{kind}>" for kind, word in completions]


@pytest.mark.slow
@pytest.mark.parametrize("shell", [bash, zsh, fish])
@pytest.mark.parametrize(("words", "offered"), OFFERED.values(), ids=OFFERED.keys())
def test_shell_offers_fitting_values(
    shell: Callable[[CommandLine, tuple[str, ...]], list[str]],
    words: tuple[str, ...],
    offered: list[str],
    compiled: Compiled,
) -> None:
    """A shell is offered what fits."""
    assert sorted(shell(CommandLine(compiled.folder), words)) == sorted(offered)


@pytest.mark.slow
def test_versions_come_from_usual_place(compiled: Compiled) -> None:
    """Versions to ask are those of the repository in the usual place."""
    run = CommandLine(compiled.folder)
    assert zsh(run, ("infer", "tiny@")) == fish(run, ("infer", "tiny@")) == ["tiny@1"]
    assert zsh(run, ("infer", "--repository", "none", "tiny@")) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_help_explains_shell_scripts(shell: str, run: CommandLine, tmp_path: Path) -> None:
    """The help says how each shell gets its script."""
    line = next(line for line in run("--help").stdout.splitlines() if f"{shell}_source" in line)
    command = re.search(r"eval .*|_PLANSMITH.*", line)
    assert command is not None
    script = run(_PLANSMITH_COMPLETE=f"{shell}_source")
    assert script.status == 0, script
    assert "_plansmith_completion" in script.stdout
    if shutil.which(shell) is None:
        return
    (tmp_path / "plansmith").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    (tmp_path / "plansmith").chmod(0o755)
    before = "autoload -U compinit; compinit -u -D; " if shell == "zsh" else ""
    check = {"bash": "complete -p plansmith", "zsh": "echo $_comps[plansmith]", "fish": "complete -c plansmith"}[shell]
    done = subprocess.run(
        [shell, "-c", f"{before}{command.group()}\n{check}"],
        env=environment(PATH=f"{tmp_path}:/usr/bin:/bin", HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_plansmith_completion" in done.stdout, done
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("show", ""), ("compile", "x", "--target", "t"), ("",), ("diff", "--store", "s", "m@")], ids=" ".join
)
def test_completion_imports_nothing_slow(words: tuple[str, ...], compiled: Compiled) -> None:
    """Completion imports nothing that takes time."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "plansmith"],
        cwd=compiled.folder,
        env=environment(
            _PLANSMITH_COMPLETE="zsh_complete",
            COMP_WORDS=shlex.join(("plansmith", *words)),
            COMP_CWORD=str(len(words)),
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "plansmith" in imported
    assert not {"pydantic", "numpy", "torch", "yaml", "rich", "onnx", "prefect"} & imported


def test_unreadable_repository_passed_over(run: CommandLine) -> None:
    """A repository that cannot be read is passed over in silence."""
    (run.folder / "artifacts").write_text("no folder")
    assert zsh(run, ("show", "")) == []
    assert zsh(run, ("show", "--repository", "a\\0b", "")) == []
