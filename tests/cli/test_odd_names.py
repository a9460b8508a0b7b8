"""Models and folders with spaces, quotes, dollar signs, line ends and other alphabets."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ..support.cli.command import COMMAND, CommandLine, check_refusal, environment
from .conftest import Compiled

ODD = 'it\'s "a" $HOME `x`; модель 模型 🙂 e\u0301 \\'
FOLDERS = {
    "spaces and quotes": ('my model\'s "best"', "my-model-s-best"),
    "the shell's own signs": ("$HOME `ls`; *?&|<>(x) \\", "HOME-ls-x"),
    "Cyrillic": ("модель", "model"),
    "Chinese": ("模型", "model"),
    "an emoji": ("bert🙂", "bert"),
    "combining marks": ("cafe\u0301", "cafe"),
    "a line end": ("a\nb", "a-b"),
    "a very long one": ("м" * 60 + "x" * 130, "x" * 128),
    "a dash at the start": ("-bert", "bert"),
    "a colon and an at sign": ("a:b@c", "a-b-c"),
}


@pytest.mark.parametrize(("folder", "name"), FOLDERS.values(), ids=FOLDERS.keys())
def test_model_named_after_any_folder(folder: str, name: str, run: CommandLine, models: Path) -> None:
    """A model gets a name from whatever its folder is called."""
    (run.folder / folder[:120]).symlink_to(models / "bert")
    answer = run("compile", f"hf:./{folder[:120]}", "--dry-run", "--json", "--no-check-served")
    assert answer.status == 0, answer
    assert answer.document["name"] == (name if len(folder) <= 120 else name[:60])


@pytest.fixture
def odd(compiled: Compiled, models: Path, tmp_path: Path) -> CommandLine:
    """A folder with an odd name in which `bert` is compiled, from an odd folder to odd artifacts."""
    folder = tmp_path / ODD
    shutil.copytree(models / "bert", folder / f"model {ODD}")
    # The cache of the shared compile, so that only what depends on the names is done again.
    subprocess.run(["cp", "-r", compiled.folder / "artifacts", folder / f"art {ODD}"], check=True)
    return CommandLine(folder)


@pytest.mark.slow
def test_odd_paths_can_be_pasted(odd: CommandLine) -> None:
    """Every command takes odd paths, and what is printed can be pasted."""
    source, artifacts = f"hf:./model {ODD}", f"art {ODD}"
    repository = f"repo {ODD}"
    compilation = odd("compile", source, "--artifacts", artifacts, "--repository", repository, "--no-check-served")
    assert compilation.status == 0, compilation
    assert compilation.stderr.startswith(
        f"plansmith: in Triton {source} is called model-it-s-a-HOME-x-e, as names there"
    )
    *_, serve, infer, inspect = compilation.stdout.splitlines()
    assert shlex.split(infer)[-2:] == ["--repository", repository]
    command = serve.removeprefix("Next: ")
    assert shlex.split(command)[-3:] == ["model-it-s-a-HOME-x-e", "--repository", repository]
    done = in_bash(inspect.strip(), odd.folder)
    assert done.stdout.splitlines()[1].startswith("model: model-it-s-a-HOME-x-e, version 1"), done
    refused = in_bash(f"{command} --tritonserver /nope", odd.folder)
    assert (refused.returncode, "/nope was given" in refused.stderr) == (9, True)
    shown = odd("show", "model-it-s-a-HOME-x-e", "--repository", repository)
    assert shown.status == 0, shown
    assert source.removeprefix("hf:./") in shown.stdout
    assert odd("validate", "model-it-s-a-HOME-x-e", "--repository", repository).status == 0
    assert source in odd("history", "--artifacts", artifacts).stdout
    tidied = odd("gc", "--artifacts", artifacts, "--repository", repository, "--older-than", "0")
    assert tidied.status == 0, tidied
    places = [shlex.split(line.partition(": ")[2])[0] for line in tidied.stdout.splitlines()[:-1]]
    assert places
    # What processes of others left behind goes as well.
    assert not [p for p in places if not p.startswith((artifacts, f"{tempfile.gettempdir()}/plansmith-"))]


@pytest.mark.slow
def test_odd_path_spec_compiles_same(odd: CommandLine) -> None:
    """A spec for an odd path compiles to the same."""
    spec = f"spec {ODD}.yaml"
    answer = odd("init", f"hf:./model {ODD}", "--output", spec)
    assert answer.status == 0, answer
    following = answer.stdout.splitlines()[-1].removeprefix("Next: ")
    done = in_bash(
        f"{following} --dry-run --json --no-check-served --artifacts {shlex.quote(f'art {ODD}')}", odd.folder
    )
    assert done.returncode == 0, done
    plan = json.loads(done.stdout)
    assert (plan["name"], plan["plan"]["export"]) == ("model-it-s-a-HOME-x-e", "would run")


NAMES = {"модель": "model", "a b": "a-b", "café": "cafe", "-x": "x", "x" * 129: "x" * 128, "模型-7": "7"}


@pytest.mark.parametrize("name", NAMES)
def test_bad_triton_name_refused(name: str, run: CommandLine) -> None:
    """A name that Triton would not take is refused with one that it takes."""
    answer = run("compile", "timm:resnet18", f"--name={name}", "--json")
    check_refusal(answer, 2, ("'name': a name has at most 128 of A-Z a-z 0-9 . _ -", f"such as '{NAMES[name]}' (got"))


def test_renamed_model_told_early(run: CommandLine, models: Path) -> None:
    """That a model gets another name is told before it is compiled."""
    for folder in ("модель", "模型", "bert"):
        (run.folder / folder).symlink_to(models / "bert")
    options = ("--dry-run", "--no-check-served")
    answer = run("compile", "hf:модель", *options)
    message = "plansmith: in Triton hf:модель is called model, as names there are of A-Z a-z 0-9 . _ - alone;"
    assert answer.stderr == f"{message} --name gives it another\n"
    assert run("compile", "hf:модель", "--name", "mine", *options).stderr == ""
    assert run("compile", "hf:bert", *options).stderr == ""
    (run.folder / "two.yaml").write_text("models:\n- source: hf:модель\n- source: hf:模型\n")
    refused = run("compile", "two.yaml", "--json")
    check_refusal(
        refused, 2, ("two.yaml:3: the model in line 2 is called 'model' too", "give each a `name` of its own")
    )


def test_history_keeps_run_in_line(run: CommandLine) -> None:
    """The history keeps a run in its line."""
    (run.folder / "a\nb\x1b[2J").mkdir()
    assert run("compile", "hf:./a\nb\x1b[2J", "--no-check-served").status == 3
    _, row, failure = run("history").stdout.splitlines()
    assert row.endswith("hf:./a\\nb\\x1b[2J")
    assert failure.startswith("    SourceError (exit code 3): ")


def test_non_text_name_refused(run: CommandLine) -> None:
    """A name that is not text is refused with what to do."""
    for command in (
        ("compile", "hf:./a\udcff"),
        ("init", "hf:./a\udcff"),
        ("compile", "hf:a", "--artifacts", "\udcff"),
    ):
        check_refusal(run(*command, "--json"), 2, ("\\udcff is no text in this locale", "export LC_ALL=C.UTF-8"))


def in_bash(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Paste a printed line into bash."""
    assert line.startswith("python -m plansmith ")
    pasted = line.replace("python -m plansmith", shlex.join(COMMAND), 1)
    return subprocess.run(
        ["bash", "-c", pasted], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
