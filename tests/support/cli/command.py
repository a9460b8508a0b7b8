"""The command line as a person uses it: a folder, words, an exit code, what was printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import messages

COMMAND = (sys.executable, "-m", "plansmith")
MOST_LINES = 14
LONGEST_SECONDS = 600

BERT: dict[str, Any] = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}


def environment(**more: str) -> dict[str, str]:
    """This process's environment, without a hub and without a Triton of the user's own choice."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("PLANSMITH_")}
    return own | {"HF_HUB_OFFLINE": "1"} | more


@dataclass(frozen=True)
class Answer:
    """What a command left on the terminal."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        result = json.loads(self.stdout)
        assert isinstance(result, dict)
        return result

    @property
    def message(self) -> str:
        """The error message, without the notices and the lines of progress before it, and the page named after it."""
        positions = [m.start() for m in re.finditer(r"^plansmith: ", self.stderr, re.MULTILINE)]
        assert positions, self.stderr
        return re.sub(r"^More: .*\n", "", self.stderr[positions[-1] :], flags=re.MULTILINE)


class CommandLine:
    """`plansmith`, run in a folder by an interpreter of its own.

    Args:
        folder: the working directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str | Path, **variables: str) -> Answer:
        """Run one command line to its end."""
        with self.start(*arguments, **variables) as process:
            try:
                output, errors = process.communicate(timeout=LONGEST_SECONDS)
            except BaseException:
                process.kill()
                raise
        answer = Answer(process.returncode, output, errors)
        if answer.status and "plansmith: " in errors:
            messages.note_text("as printed", answer.status, answer.message)
        return answer

    def start(self, *arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
        """Begin a command line, and leave it running."""
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def text(self, *arguments: str | Path, **variables: str) -> str:
        """What a command line that ends well prints."""
        answer = self(*arguments, **variables)
        assert answer.status == 0, answer
        return answer.stdout

    def document(self, *arguments: str | Path, **variables: str) -> dict[str, Any]:
        """The JSON document of a command line that ends well."""
        answer = self(*arguments, "--json", **variables)
        assert answer.status == 0, answer
        return answer.document


@dataclass(frozen=True)
class Refused:
    """A command line that must be refused.

    Args:
        arguments: the command line.
        status: the exit code.
        says: what the message must hold, the remedy included.
        files: what lies in the folder, by path; a path that ends in / is a folder.
        variables: of the environment.
    """

    arguments: tuple[str, ...]
    status: int
    says: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def lay_out(self, folder: Path) -> None:
        """Write the files."""
        for name, text in self.files.items():
            path = folder / name
            if name.endswith("/"):
                path.mkdir(parents=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)


def check_refusal(answer: Answer, status: int, says: tuple[str, ...]) -> None:
    """One short message that names what is wrong and what to type next; the same as one JSON document."""
    assert answer.status == status, answer
    assert "Traceback" not in answer.stdout + answer.stderr
    assert len(answer.message.splitlines()) <= MOST_LINES, answer.message
    assert "\nNext: " in answer.message
    assert not [fragment for fragment in says if fragment not in answer.message], answer.message
    document = answer.document
    assert document["exit_code"] == status
    assert document["error"]
    assert document["message"] in answer.message
    assert document["remedy"] in answer.message


def listing(folder: Path, *, folder_times: bool = False) -> dict[str, tuple[int, int, int]]:
    """Everything below a folder: kind and rights, size of a file, time of the last change.

    The time of a folder tells whether anything was made in it, even if it was removed again.
    """
    entries = {}
    for path in [folder, *folder.rglob("*")]:
        stat = path.lstat()
        is_folder = path.is_dir()
        size = 0 if is_folder else stat.st_size  # a folder's is its file system's business
        time = stat.st_mtime_ns if folder_times or not is_folder else 0
        entries[str(path.relative_to(folder))] = (stat.st_mode, size, time)
    return entries


def check_nothing_made(folder: Path) -> None:
    """No repository, no release, no half of anything; logs and finished steps may stay."""
    names = sorted(path.name for path in folder.rglob("*"))
    assert not [name for name in names if name.endswith(".plansmith") or name in {"repository", "manifest.json"}]
    left = [path for path in folder.rglob("staging/*") if path.name != ".lock"]
    assert not left
