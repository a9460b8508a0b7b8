"""Terminals of every kind, and output that leads elsewhere: a pipe, a reader that goes, nowhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from plansmith.cli import SECTIONS, cli

from ..support.cli.command import COMMAND, CommandLine, check_refusal, environment
from ..support.cli.screen import in_terminal
from .conftest import Compiled

LISTINGS = {
    "targets": ("targets",),
    "history": ("history",),
    "show": ("show", "tiny"),
    "inspect": ("inspect", "artifacts/repository"),
    "rules": ("check", "--rules"),
    "schema": ("schema",),
    "help": ("compile", "--help"),
}
_STEPS = ("fetch", "export", "lower", "compile", "validate", "package", "publish")


def in_shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `plansmith` is the command; a failure in a pipe is the pipe's."""
    called = " ".join(COMMAND)
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; plansmith() {{ {called} "$@"; }}; {script}'],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("words", LISTINGS.values(), ids=LISTINGS.keys())
def test_closed_reader_is_no_error(words: tuple[str, ...], compiled: Compiled) -> None:
    """It closes its end at once, so that the first line meets a broken pipe."""
    done = in_shell(f"plansmith {' '.join(words)} | (exec <&-; sleep 0.2)", compiled.folder)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_compile_survives_unread_progress(finished: Compiled) -> None:
    """A compile goes on to its end when nobody reads its progress."""
    done = in_shell(f"plansmith {' '.join(finished.command)} --name other 2>&1 | head -1", finished.folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "  fetch        cached\n", "")
    assert sorted(path.name for path in finished.release.parents[1].iterdir()) == ["other", "tiny"]


@pytest.mark.slow
def test_models_compile_with_unread_summary(finished: Compiled, models: Path) -> None:
    """Every model of a spec is compiled when nobody reads its summary."""
    listed = "".join(f"  - {{source: hf:{models / 'bert'}, name: {name}}}\n" for name in ("tiny", "second"))
    (finished.folder / "models.yaml").write_text(f"models:\n{listed}")
    done = in_shell("plansmith compile models.yaml --no-check-served 2>&1 | (exec <&-; sleep 0.2)", finished.folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in finished.release.parents[1].iterdir()) == ["second", "tiny"]


@pytest.mark.slow
def test_unread_failure_keeps_exit_code(run: CommandLine) -> None:
    """A failure keeps its exit code when nobody reads it."""
    done = in_shell("plansmith compile hf:./nope --json 2>&1 | (exec <&-; sleep 0.2)", run.folder)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", LISTINGS.values(), ids=LISTINGS.keys())
def test_unwritable_output_is_error(words: tuple[str, ...], compiled: Compiled) -> None:
    """Output that cannot be written is an error."""
    done = in_shell(f"plansmith {' '.join(words)} > /dev/full", compiled.folder)
    message = "plansmith: standard output: No space left on device\nNext: free some space, or write it elsewhere\n"
    assert (done.returncode, done.stderr) == (9, f"{message}More: plansmith explain 9\n")


@pytest.mark.slow
def test_closed_streams_are_let_be(finished: Compiled) -> None:
    done = in_shell(f"plansmith {' '.join(finished.command)} --force <&- >&- 2>&-", finished.folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert CommandLine(finished.folder)("validate", "tiny@2").status == 0


@pytest.mark.slow
@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_moving_line_leaves_nothing(columns: int, finished: Compiled) -> None:
    """The moving line leaves nothing behind."""
    shown = in_terminal(finished.folder, *finished.command, columns=columns)
    assert shown.status == 0
    assert {"A", "K"} <= shown.sequences
    expected = [*(f"  {step:<13}cached" for step in _STEPS), "tiny unchanged, still version 1: onnxruntime"]
    missing = [line for line in expected if line not in shown.text]
    assert not missing, shown.screen
    assert not re.search(r"[⠀-⣿]", shown.text)


@pytest.mark.slow
@pytest.mark.parametrize("width", ["abc", "0", "-5", "1", "99999999"])
def test_terminal_width_beats_variable(width: str, finished: Compiled) -> None:
    """A terminal knows its width better than a variable."""
    shown = in_terminal(finished.folder, *finished.command, columns=80, COLUMNS=width)
    assert [line for line in shown.screen if line.endswith("cached")] == [f"  {step:<13}cached" for step in _STEPS]
    assert "Next: " in shown.text
    assert in_terminal(finished.folder, "targets", COLUMNS=width).screen[0].startswith("target ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "without"), [({"TERM": "dumb"}, ""), ({"TERM": "unknown"}, ""), ({}, "TERM")], ids=str
)
def test_dumb_terminal_gets_plain_lines(variables: dict[str, str], without: str, finished: Compiled) -> None:
    """A terminal that can do nothing gets plain lines."""
    shown = in_terminal(finished.folder, *finished.command, columns=80, without=without, **variables)
    assert "\x1b" not in shown.written
    assert "\r" not in shown.written
    assert [line for line in shown.screen if line.endswith("cached")] == [f"  {step:<13}cached" for step in _STEPS]


@pytest.mark.slow
def test_colours_can_be_refused(finished: Compiled) -> None:
    """Nobody gets colours against their will."""
    shown = in_terminal(finished.folder, *finished.command)
    assert shown.colours
    assert "\x1b[1;32mgate passed" in shown.written
    assert not in_terminal(finished.folder, *finished.command, NO_COLOR="1").colours


@pytest.mark.slow
def test_piped_output_is_plain(finished: Compiled, run: CommandLine) -> None:
    """Piped output has no escape sequences, and its lines are whole."""
    for arguments in (finished.command, *LISTINGS.values()):
        answer = run(*arguments, COLUMNS="20", TERM="xterm-256color")
        assert "\x1b" not in answer.stdout + answer.stderr
    coloured = run(*finished.command, FORCE_COLOR="1")
    assert not re.search(r"\x1b\[[?\d]*[AKhl]", coloured.stdout + coloured.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [20, 40])
def test_narrow_terminal_cuts_no_path(columns: int, finished: Compiled) -> None:
    """A narrow terminal cuts no path and no message."""
    shown = in_terminal(finished.folder, "compile", "hf:./no-such-folder-at-all", columns=columns)
    assert shown.status == 3
    assert f"there is no directory {finished.folder}/no-such-folder-at-all" in shown.text
    tidied = in_terminal(finished.folder, "gc", "--dry-run", "--older-than", "0", columns=columns)
    named = re.findall(r"artifacts/cache/export/\w+", tidied.text)
    assert [len(Path(path).name) for path in named] == [64]
    past = in_terminal(finished.folder, "history", columns=columns)
    assert finished.command[1] in past.text


@pytest.mark.slow
def test_quiet_prints_notices_and_errors(finished: Compiled, run: CommandLine) -> None:
    """With --quiet only notices and errors are printed."""
    stored = next(finished.folder.glob("artifacts/cache/export/*/model.onnx"))
    stored.write_bytes(stored.read_bytes()[:-1])
    answer = run(*finished.command, "--force", "--quiet")
    assert answer.status == 0, answer
    assert all(line.startswith("plansmith: ") for line in answer.stderr.splitlines()), answer.stderr
    failed = run("compile", "hf:./nope", "--quiet", "--json")
    check_refusal(failed, 3, ("there is no directory",))
    assert failed.stderr.startswith("plansmith: ")


def test_command_has_summary_and_example(run: CommandLine) -> None:
    """Every command has a short summary and an example."""

    def pages(group: click.Group, name: str) -> dict[str, click.Command]:
        by_name = {f"{name} {word}": command for word, command in group.commands.items()}
        inner = [pages(member, word) for word, member in by_name.items() if isinstance(member, click.Group)]
        return by_name | {word: command for page in inner for word, command in page.items()}

    by_name = pages(cli, "plansmith")
    assert {"plansmith compile", "plansmith serve-env add"} <= by_name.keys()
    for name, command in by_name.items():
        text = f"{command.help}\n{command.epilog}"
        assert re.search(rf"^ *{name}\b", text, re.MULTILINE), name
    for prefix, heading in (((), "First steps:"), (("serve-env",), "Commands:")):
        _, shown, listing = run(*prefix, "--help", COLUMNS="80").stdout.partition(heading)
        assert shown
        assert "...\n" not in listing
    assert sum(map(len, SECTIONS.values())) == len(cli.commands)
    assert "onnx:" in run("compile", "--help").stdout


ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "the C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.mark.slow
@pytest.mark.parametrize("variables", ENCODINGS.values(), ids=ENCODINGS.keys())
def test_no_encoding_stops_a_command(variables: dict[str, str], finished: Compiled) -> None:
    """Names that the encoding lacks are there, in help, in messages, in progress and in listings."""
    (finished.folder / "модель").symlink_to(finished.command[1].removeprefix("hf:"))
    called = [*COMMAND]
    lines = (
        (*finished.command, "--repository", "хранилище"),
        ("compile", "hf:модель", "--no-check-served"),
        ("show", "нет…✓"),
        ("inspect", b"no-text-\xff".decode(errors="surrogateescape")),
        ("history",),
        ("serve", "--help"),
    )
    for arguments in lines:
        done = subprocess.run(
            [*called, *arguments],
            cwd=finished.folder,
            env=environment(**variables),
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr
        assert done.returncode in {0, 2, 7, 9}, done.stderr
        assert done.stdout or done.stderr


@pytest.mark.slow
def test_non_text_path_printed_as_bytes(finished: Compiled) -> None:
    """A path that is not text is printed as the bytes it has."""
    name = b"artifacts-\xff"
    (finished.folder / "artifacts").rename(finished.folder / name.decode(errors="surrogateescape"))
    done = subprocess.run(
        [sys.executable.encode(), b"-m", b"plansmith", b"history", b"none", b"--artifacts", name],
        cwd=finished.folder,
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"no such run is noted below " + name + b"\n"
    assert json.loads(CommandLine(finished.folder)("history", "--json").stdout) == {"runs": [], "unreadable": 0}
