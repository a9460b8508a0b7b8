"""A Triton that is started for one command, such as a request or a load test."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.errors import RepositoryError, ServedCheckError
from plansmith.formatting import suggest_names

if TYPE_CHECKING:
    from plansmith.records.release import Manifest
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.server.server import TritonServer


# As `plansmith serve`: a person who waits can press Ctrl-C.
_LOAD_SECONDS = 3600


def opened_model(repository: Path, model: str, version: str) -> tuple[ModelRepository, Manifest | None]:
    """Open the repository, which exposes the model in that version, and the manifest of the version that will answer.

    Args:
        repository: the folder.
        model: its name.
        version: its number; empty for the one that Triton chooses.

    Raises:
        RepositoryError: there is no such model, or it is not shown in that version.
    """
    from plansmith.triton.repository.ensembles import require_alone
    from plansmith.triton.repository.repository import ModelRepository

    if not repository.is_dir():
        raise RepositoryError(
            f"{repository} does not exist", remedy="compile a model into it first, or name another --repository"
        )
    opened = ModelRepository(repository)
    require_alone(opened.root)
    with suppress(RepositoryError):  # a repository that cannot be written is served as it stands
        opened.settle_all()
    present = opened.served_models()
    if model not in present:
        raise RepositoryError(
            f"{repository} shows no model {model!r}",
            remedy=suggest_names([model], present, otherwise="compile a model into it first"),
        )
    shown = opened.views(model).shown()
    if version and version not in map(str, shown):
        is_there = version in map(str, opened.versions(model))
        raise RepositoryError(
            f"{repository} does not show version {version} of {model}",
            remedy=f"ask for one that is shown: {', '.join(map(str, shown))}"
            + f"; or plansmith rollback {model}, which shows an earlier one again" * is_there,
        )
    number = int(version) if version else max(shown, default=0)
    return opened, opened.readable(model, number) if number else None


@contextmanager
def served(
    opened: ModelRepository, models: Sequence[str], *, purpose: str = "this request", quiet: bool
) -> Iterator[TritonServer]:
    """Serve models and their ensemble members on Triton; it stops at the end of the block.

    Args:
        opened: the repository.
        models: their names.
        purpose: what it is started for.
        quiet: say nothing while it starts.

    Raises:
        ServedCheckError: the model does not load.
        EnvironmentFault: this machine or its server lacks what the model needs.
    """
    from plansmith.cli.compile.progress import MovingLine
    from plansmith.cli.output import short
    from plansmith.cli.serve.serve import log_file, naming_damage
    from plansmith.triton.server.installation import find_installation
    from plansmith.triton.server.needs import needs_of, shown_manifests
    from plansmith.triton.server.server import TritonServer

    installation = find_installation()
    needs = needs_of(installation, opened.load_target(), shown_manifests(opened, models))
    names = " and ".join(models)
    shown = [opened.readable(model, number) for model in models for number in opened.views(model).shown()]
    members = sorted({member.model for manifest in shown if manifest for member in manifest.package.members})
    log = log_file(opened.root, "infer")
    server = TritonServer(
        opened.root,
        installation,
        log,
        site=needs.site,
        dali_site=needs.dali_site,
        models=list(dict.fromkeys([*models, *members])),
        deadline_seconds=_LOAD_SECONDS,
        arguments=needs.arguments,
        pythons=needs.pythons,
    )
    started = time.monotonic()
    try:
        with naming_damage(opened, models), ExitStack() as stack:
            with MovingLine(quiet=quiet) as line:
                message = f"starting Triton with {names}; log: {short(log)}"
                line.tell(message)
                if not (quiet or line.shown):
                    click.echo(message, err=True)
                stack.enter_context(server)
            if not quiet:
                took = time.monotonic() - started
                click.echo(f"Triton {server.version} serves {names} for {purpose}, after {took:.1f} s", err=True)
            yield server
    except ServedCheckError as refused:
        raise refused.located(log=log) from refused.__cause__
