"""The `plansmith` command. Each command group has a folder; heavy modules are imported when a command is called."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from plansmith import __version__
from plansmith.cli.output import fault_from_missing_module, fault_from_os_error, prepare_streams
from plansmith.errors import EXIT_INTERRUPTED, PlansmithError, UsageError
from plansmith.system.garbage import collect_seldom

_EXIT_SIGNALLED = 128
_INTERRUPTED = {
    "error": "Interrupted",
    "message": "interrupted",
    "remedy": "run the same command again to go on after what is finished",
    "exit_code": EXIT_INTERRUPTED,
}
_COMPLETES = "_PLANSMITH_COMPLETE"
"""Set by the scripts of shells that ask what fits."""


SECTIONS: dict[str, dict[str, str]] = {
    "First steps": {
        "demo": "compile.demo",
        "doctor": "info.doctor",
        "serve-env": "serve.serve_env",
        "init": "compile.init",
        "compile": "compile.compile",
        "serve": "serve.serve",
        "infer": "infer.infer",
    },
    "Look at models and releases": {
        "show": "info.show",
        "inspect": "info.show",
        "report": "info.show",
        "diff": "store.versions",
        "history": "info.show",
        "targets": "info.targets",
        "schema": "info.show",
        "explain": "info.explain",
    },
    "Judge and measure": {
        "lower": "compile.compile",
        "validate": "compile.compile",
        "check": "serve.check",
        "loadtest": "loadtest.loadtest",
        "compare": "compare.compare",
        "tune": "tune.tune",
        "capacity": "capacity.capacity",
        "zoo": "runs.zoo",
    },
    "Publish and go back": {
        "sign": "store.signing",
        "publish": "store.publish",
        "pull": "store.publish",
        "sync": "store.publish",
        "versions": "store.versions",
        "promote": "store.promote",
        "pin": "store.promote",
        "rollback": "store.promote",
        "store": "store.versions",
        "sagemaker": "sagemaker.sagemaker",
    },
    "Operate many models": {
        "fleet": "runs.fleet",
        "status": "runs.fleet",
        "flows": "runs.flows",
        "submit": "runs.submit",
        "triggers": "triggers.triggers",
        "verify": "store.verify",
        "prune": "store.verify",
        "gc": "info.gc",
    },
}
"""The commands, by what a person wants to do, each with the module below this one that has it."""


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name; each is imported when it is asked for."""

    def __init__(self) -> None:
        self._commands: dict[str, str | click.Command] = {}
        for modules in SECTIONS.values():
            self._commands |= modules

    def __getitem__(self, name: str) -> click.Command:
        command = self._commands[name]
        if isinstance(command, str):
            members = vars(import_module(f"{__name__}.{command}")).values()
            command = next(item for item in members if isinstance(item, click.Command) and item.name == name)
            self._commands[name] = command
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


class _Sections(click.Group):
    """Command group whose help lists its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a table for each section."""
        del ctx
        width = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in commands]
                formatter.write_dl(rows)


@click.group(
    cls=_Sections,
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="plansmith", message="%(prog)s %(version)s")
def cli() -> None:
    """Compile Hugging Face, timm, ONNX and PyTorch models into a validated, versioned Triton model repository.

    \b
    plansmith demo
    plansmith compile hf:sentence-transformers/all-MiniLM-L6-v2
    plansmith compile timm:resnet50                # or onnx:model.onnx, torch:model.pt2, mlflow:…, s3://…
    plansmith serve

    Each command has --help with examples. To have the shell complete commands, options and names, put one line into
    its start-up file:

    \b
    ~/.bashrc                   eval "$(_PLANSMITH_COMPLETE=bash_source plansmith)"
    ~/.zshrc, after compinit    eval "$(_PLANSMITH_COMPLETE=zsh_source plansmith)"
    ~/.config/fish/config.fish  _PLANSMITH_COMPLETE=fish_source plansmith | source
    """


def main() -> NoReturn:
    """Run the command line; turns plansmith errors into one message and their exit code."""
    collect_seldom()
    try:
        _run()
    except SystemExit as end:
        tracking = sys.modules.get("plansmith.flows.local.tracked")
        if tracking is None or not tracking.api_was_lost.is_set():
            raise
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(int(end.code or 0))  # Prefect would go on for minutes to call an API that is gone


def _run() -> NoReturn:
    prepare_streams()
    if _COMPLETES in os.environ:
        from plansmith.cli.bash_completion import offer_in_bash

        offer_in_bash()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _terminate)
    try:
        cli.main(prog_name="plansmith", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.exceptions.NoArgsIsHelpError as bare:
        click.echo(bare.format_message())
        sys.exit(bare.exit_code)
    except click.UsageError as wrong:
        _fail(UsageError(wrong.format_message(), remedy=f"{_typed_command()} --help"))
    except PlansmithError as error:
        _fail(error)
    except OSError as error:
        _fail(fault_from_os_error(error))
    except ModuleNotFoundError as error:
        fault = fault_from_missing_module(error)
        if fault is None:
            raise
        _fail(fault)
    except (click.Abort, KeyboardInterrupt):
        if _as_json():
            click.echo(json.dumps(_INTERRUPTED))
        click.echo(f"plansmith: {_INTERRUPTED['message']}; {_INTERRUPTED['remedy']}", err=True)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def _typed_command() -> str:
    """Return the typed command with its groups, which not every usage error of click names."""
    names = ["plansmith"]
    command: click.Command | None = cli
    for word in sys.argv[1:]:
        command = command.commands.get(word) if isinstance(command, click.Group) else None
        if command is None:
            break
        names.append(word)
    return " ".join(names)


def _as_json() -> bool:
    return "--json" in sys.argv[1:]


def _fail(error: PlansmithError) -> NoReturn:
    """Format one error message for the terminal, or as a JSON document with --json."""
    if _as_json():
        click.echo(json.dumps(error.to_dict()))
    click.echo(f"plansmith: {error}\nMore: plansmith explain {error.exit_code}", err=True)
    sys.exit(error.exit_code)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Exit cleanly on a signal, so that servers and workers are stopped and staging folders removed."""
    del frame
    sys.exit(_EXIT_SIGNALLED + number)
