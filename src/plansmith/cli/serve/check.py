"""`plansmith check`."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from plansmith.cli.options import complete_file, complete_target
from plansmith.cli.output import echo_lines, printable
from plansmith.formatting import count

if TYPE_CHECKING:
    from rich.text import Text

    from plansmith.config.targets import Target
    from plansmith.triton.checker.findings import Finding

_MARKS = {"error": "✗", "warning": "!", "note": "-"}
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_NARROWEST = 40


def _complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completion for a model: the folders in the repository."""
    del param
    try:
        names = [folder.name for folder in Path(ctx.params["repository"]).iterdir() if folder.is_dir()]
    except (OSError, KeyError, TypeError):
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


@click.command("check", short_help="Say what Triton would refuse in a model repository.")
@click.argument(
    "repository", required=False, type=click.Path(path_type=Path), metavar="REPOSITORY", shell_complete=complete_file
)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=_complete_models)
@click.option(
    "--target",
    metavar="NAME|FILE",
    shell_complete=complete_target,
    help="What it will be served by; what a repository of plansmith's says by itself when left out.",
)
@click.option("--sagemaker", is_flag=True, help="Hold it against the rules of SageMaker, too.")
@click.option("--dynamo", is_flag=True, help="Hold it against those of NVIDIA Dynamo's /v1/classify, too.")
@click.option(
    "--server-argument",
    "arguments",
    multiple=True,
    metavar="ARG",
    help="What the server is started with, such as --cache-config=local,size=1048576; may be repeated.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note"]),
    default="error",
    show_default=True,
    help="The least severe finding that makes the exit code 7.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all findings as one JSON document.")
@click.option(
    "--sarif",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write them as a SARIF log, too, for code review.",
)
@click.option("--rules", "list_rules", is_flag=True, help="Print every rule, with its severity and source, and end.")
def check_command(
    repository: Path | None,
    models: tuple[str, ...],
    target: str | None,
    arguments: tuple[str, ...],
    fail_on: str,
    sarif: Path | None,
    *,
    sagemaker: bool,
    dynamo: bool,
    as_json: bool,
    list_rules: bool,
) -> None:
    """Report what Triton would refuse in a model repository, or silently interpret otherwise than intended.

    REPOSITORY is a folder of models, of plansmith or of anybody, or an archive of one, as SageMaker takes it
    (.tar.gz). No server is started, no model is run, and nothing is written.

    \b
    plansmith check artifacts/repository
    plansmith check /srv/models resnet50 --target triton-26.08 --fail-on warning
    plansmith check model.tar.gz --sagemaker
    plansmith check artifacts/repository --dynamo
    plansmith check models --sarif check.sarif
    plansmith check --rules

    Exit code 7 where something is found that is as bad as --fail-on, otherwise 0.
    """
    from plansmith.config.targets import load_target
    from plansmith.errors import RepositoryError, UsageError
    from plansmith.triton.checker.checker import SEVERITIES, check_repository

    if list_rules:
        _list_rules(as_json=as_json)
        return
    if repository is None:
        raise UsageError(
            "name a repository: a folder of models, or an archive of one", remedy="plansmith check artifacts/repository"
        )
    chosen: Target | None = load_target(target) if target is not None else None
    with opened(repository) as root:
        server_arguments = [word for argument in arguments for word in _split_argument(argument)]
        findings = check_repository(
            root, models=models, target=chosen, sagemaker=sagemaker, dynamo=dynamo, arguments=server_arguments
        )
        checked = list(models) or sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    if sarif is not None:
        _write_sarif(sarif, findings, repository)
    counting = SEVERITIES[: SEVERITIES.index(next(level for level in SEVERITIES if level == fail_on)) + 1]
    code = RepositoryError.exit_code if any(finding.severity in counting for finding in findings) else 0
    if as_json:
        click.echo(json.dumps(_document(repository, checked, findings, code)))
    else:
        _show(findings, len(checked))
    sys.exit(code)


def _split_argument(argument: str) -> list[str]:
    """Split a server argument into arguments as typed: an option with its value in one pair of quotes becomes two."""
    name, space, value = argument.partition(" ")
    return [name, value.strip()] if space and name.startswith("--") and "=" not in name else [argument]


@contextmanager
def opened(repository: Path) -> Iterator[Path]:
    """Open the folder of a repository: the folder itself, or an extracted archive of it."""
    if not repository.is_file():
        yield repository
        return
    from plansmith.triton.checker.archive import unpacked

    with unpacked(repository) as root:
        yield root


def _document(repository: Path, models: Sequence[str], findings: Sequence[Finding], code: int) -> dict[str, Any]:
    return {
        "repository": str(repository),
        "models": list(models),
        "counts": _counts(findings),
        "exit_code": code,
        "findings": [finding.model_dump(mode="json") for finding in findings],
    }


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    from plansmith.triton.checker.checker import SEVERITIES

    return {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}


def _write_sarif(path: Path, findings: Sequence[Finding], repository: Path) -> None:
    """Write the SARIF log; paths in the working directory are relative to it, as code review expects."""
    from plansmith.errors import UsageError
    from plansmith.system.files import write_file
    from plansmith.triton.checker.checker import all_rules
    from plansmith.triton.checker.findings import sarif_log

    relative = Path(os.path.relpath(repository))
    folder = repository.absolute() if ".." in relative.parts else relative
    log = sarif_log(findings, all_rules(), folder.as_posix())
    try:
        write_file(path, json.dumps(log, indent=1) + "\n", replace=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", remedy="choose another --sarif") from error


def _list_rules(*, as_json: bool) -> None:
    from plansmith.triton.checker.checker import all_rules

    rules = all_rules()
    if as_json:
        fields = ("id", "severity", "summary", "source")
        click.echo(json.dumps({"rules": [{field: getattr(rule, field) for field in fields} for rule in rules]}))
        return
    for rule in rules:
        echo_lines([f"{rule.id} ({rule.severity})", f"    {rule.summary}", f"    {rule.source}"])


def _show(findings: Sequence[Finding], models: int) -> None:
    """Print whole lines for a pipe and wrapped ones for a terminal."""
    from plansmith.cli.output import open_console

    console = open_console()
    width = max(console.width, _NARROWEST) if console.is_terminal else None
    with console.capture() as shown:
        for model, group in groupby(findings, lambda finding: finding.model):
            console.print(printable(model) or "the repository", style="bold", markup=False)
            for finding in group:
                console.print(_lines(finding, width))
            console.print()
        console.print(_verdict(findings, models), style="bold", markup=False)
    click.echo(shown.get(), nl=False)


def _lines(finding: Finding, width: int | None) -> Text:
    """Format a finding: mark, path and rule; below it the problem and the remedy."""
    from rich.text import Text

    place = finding.place.removeprefix(f"{finding.model}/") if finding.model else finding.place
    head = f"{printable(place)}{f':{finding.line}' if finding.line else ''}"
    text = Text().append(f"  {_MARKS[finding.severity]} ", style=_STYLES[finding.severity])
    text.append(head).append(f"  {finding.severity}  [{finding.rule}]", style="dim")
    for paragraph in (finding.message, f"→ {finding.remedy}"):
        for line in _wrap(printable(paragraph), width):
            text.append(f"\n      {line}")
    return text


def _wrap(text: str, width: int | None) -> list[str]:
    """Wrap lines to a width, without breaking paths and fields."""
    if width is None:
        return [text]
    return textwrap.wrap(text, width - 6, break_long_words=False, break_on_hyphens=False)


def _verdict(findings: Sequence[Finding], models: int) -> str:
    counts = _counts(findings)
    summary = ", ".join(count(number, severity) for severity, number in counts.items() if number)
    more = f"\nMore: plansmith explain {findings[0].rule}" if findings else ""
    checked = count(models, "model")
    if not summary:
        return f"{checked} checked: nothing found."
    harmed = len({finding.model for finding in findings})
    where = f" in {harmed}" if models > 1 else ""
    return f"{checked} checked: {summary}{where}.{more}"
