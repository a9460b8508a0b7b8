"""The `plansmith` command. Each command group has a folder; heavy modules are imported when a command is called."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from plansmith import __version__
from plansmith.cli.capacity.capacity import capacity_command
from plansmith.cli.compare.compare import compare_command
from plansmith.cli.compile.compile import compile_command, lower_command, validate_command
from plansmith.cli.compile.demo import demo_command
from plansmith.cli.compile.init import init_command
from plansmith.cli.infer.infer import infer_command
from plansmith.cli.info.doctor import doctor_command
from plansmith.cli.info.explain import explain_command
from plansmith.cli.info.gc import gc_command
from plansmith.cli.info.show import history_command, inspect_command, report_command, schema_command, show_command
from plansmith.cli.info.targets import targets_command
from plansmith.cli.loadtest.loadtest import loadtest_command
from plansmith.cli.output import fault_from_missing_module, fault_from_os_error, prepare_streams
from plansmith.cli.runs.fleet import fleet_group, status_command
from plansmith.cli.runs.flows import flows_group
from plansmith.cli.runs.submit import submit_command
from plansmith.cli.runs.zoo import zoo_command
from plansmith.cli.sagemaker.sagemaker import sagemaker_group
from plansmith.cli.serve.check import check_command
from plansmith.cli.serve.serve import serve_command
from plansmith.cli.serve.serve_env import serve_env_group
from plansmith.cli.store.promote import pin_command, promote_command, rollback_command
from plansmith.cli.store.publish import publish_command, pull_command, sync_command
from plansmith.cli.store.signing import sign_command
from plansmith.cli.store.verify import prune_command, verify_command
from plansmith.cli.store.versions import diff_command, store_command, versions_command
from plansmith.cli.triggers.triggers import triggers_group
from plansmith.cli.tune.tune import tune_command
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


SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "First steps": (
        demo_command,
        doctor_command,
        serve_env_group,
        init_command,
        compile_command,
        serve_command,
        infer_command,
    ),
    "Look at models and releases": (
        show_command,
        inspect_command,
        report_command,
        diff_command,
        history_command,
        targets_command,
        schema_command,
        explain_command,
    ),
    "Judge and measure": (
        lower_command,
        validate_command,
        check_command,
        loadtest_command,
        compare_command,
        tune_command,
        capacity_command,
        zoo_command,
    ),
    "Publish and go back": (
        sign_command,
        publish_command,
        pull_command,
        sync_command,
        versions_command,
        promote_command,
        pin_command,
        rollback_command,
        store_command,
        sagemaker_group,
    ),
    "Operate many models": (
        fleet_group,
        status_command,
        flows_group,
        submit_command,
        triggers_group,
        verify_command,
        prune_command,
        gc_command,
    ),
}
"""The commands, by what a person wants to do."""


class _Sections(click.Group):
    """Command group whose help lists its commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a table for each section."""
        del ctx
        width = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                rows = [(str(item.name).ljust(width), item.get_short_help_str(limit)) for item in commands]
                formatter.write_dl(rows)


@click.group(cls=_Sections, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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


for commands in SECTIONS.values():
    for command in commands:
        cli.add_command(command)


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
