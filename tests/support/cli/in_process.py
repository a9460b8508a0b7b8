"""The command line without a process of its own: the same words, exit codes and messages, in a tenth of the time."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from plansmith import cli
from plansmith.errors import InternalError, error_from_dict
from plansmith.steps.worker import __main__ as worker
from plansmith.system import process

from .command import Answer, CommandLine


class InlineWorker:
    """In place of `process.Worker`: calls the worker's functions here, with the same JSON in between."""

    is_dead = False

    def __init__(
        self, module: str, log: Path, progress: Callable[[str], None] = lambda _: None, *, isolated: bool = False
    ) -> None:
        del isolated  # this process is as it is
        assert module == worker.__name__.removesuffix(".__main__")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        self._log = log
        self._progress = progress

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Do one thing; an error of ours arrives as it would from another process."""
        function: Callable[..., Any] = worker._guarded(worker.FUNCTIONS[name])
        values = json.loads(json.dumps(arguments))
        try:
            with self._log.open("a") as output, redirect_stdout(output):
                return json.loads(json.dumps(function(**values, progress=self._progress)))
        except Exception as error:
            failure = process._translate_error(error)
            if isinstance(failure, InternalError):
                raise
            raise error_from_dict(failure.to_dict()).located(log=self._log) from error

    def close(self) -> None:
        """There is nothing to end."""


class InProcess(CommandLine):
    """`plansmith`, run in a folder by this process.

    Args:
        folder: the working directory.
        monkeypatch: undoes everything.
        capture: what is printed.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self._capture = capture
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setattr("plansmith.steps.runner.Worker", InlineWorker)
        monkeypatch.setattr(signal, "signal", lambda *_: None)

    def __call__(self, *arguments: str | Path, **variables: str) -> Answer:
        """Run one command line to its end; a bug is an exception of its own here."""
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["plansmith", *map(str, arguments)])
            for stream in ("stdout", "stderr"):  # the command makes its own of them
                patch.setattr(sys, stream, getattr(sys, stream))
            for name, value in variables.items():
                patch.setenv(name, value)
            self._capture.readouterr()
            with pytest.raises(SystemExit) as ended:
                cli.main()
        printed = self._capture.readouterr()
        return Answer(int(ended.value.code or 0), printed.out, printed.err)
