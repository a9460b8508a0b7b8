"""`plansmith serve`."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_model, repository_option

if TYPE_CHECKING:
    from plansmith.manifest import Manifest
    from plansmith.triton.installation import Installation
    from plansmith.triton.repository import ModelRepository
    from plansmith.triton.server import TritonServer

# Large models load for minutes; a person who waits can press Ctrl-C.
_LOAD_SECONDS = 3600

_PORT = click.IntRange(0, 65535)


@click.command("serve", short_help="Run Triton on a model repository until Ctrl-C.")
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@repository_option("Where the models are.")
@click.option("--tritonserver", type=click.Path(path_type=Path), help="The server; found when left out.")
@click.option("--http-port", type=_PORT, default=8000, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--grpc-port", type=_PORT, default=8001, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--metrics-port", type=_PORT, default=8002, show_default=True, metavar="PORT", help="0 for any free one.")
def serve_command(
    models: tuple[str, ...],
    repository: Path,
    tritonserver: Path | None,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
) -> None:
    """Run Triton on a model repository until Ctrl-C; all its models unless some are named.

    \b
    plansmith serve
    plansmith serve minilm --repository /srv/models --http-port 9000
    """
    from plansmith.errors import RepositoryError, UsageError
    from plansmith.triton.installation import find_installation
    from plansmith.triton.nesting import require_alone
    from plansmith.triton.repository import ModelRepository
    from plansmith.triton.server import TritonServer

    chosen = [port for port in (http_port, grpc_port, metrics_port) if port]
    if len(set(chosen)) < len(chosen):
        raise UsageError("two of the ports are the same", remedy="give three different ones, or 0 for any free one")
    if not repository.is_dir():
        raise RepositoryError(f"{repository} does not exist", remedy="compile a model into it first, or check the path")
    opened = ModelRepository(repository)
    require_alone(opened.root)
    present = opened.served_models()
    missing = sorted(set(models) - set(present))
    if missing or not present:
        raise RepositoryError(
            f"{repository} has no model {', '.join(missing)}" if missing else f"{repository} holds no model",
            remedy=f"choose from: {', '.join(present)}" if present else "plansmith compile a model into it first",
        )
    installation = find_installation(tritonserver)
    site = _stand_in(installation, opened, models or present)
    arguments = _arguments(opened, models or present)
    server = TritonServer(
        repository,
        installation,
        _log_file(repository),
        site=site,
        models=models or present,
        deadline_seconds=_LOAD_SECONDS,
        ports=(http_port, grpc_port, metrics_port),
        arguments=arguments,
    )
    with server:
        _announce(server, models or present, arguments, stand_in=site is not None)
        try:
            status = server.wait()
        except KeyboardInterrupt:
            click.echo("\nstopped", err=True)
            return
    raise RepositoryError(f"the server ended by itself with status {status}", remedy="read the log", log=server.log)


def _stand_in(installation: Installation, repository: ModelRepository, models: Sequence[str]) -> Path | None:
    """The packages of the stand-in backend; None where the server has the real one, or all that it serves are plans.

    Raises:
        EnvironmentFault: this machine or its server lacks what the models need.
        EngineError: nothing says which ONNX Runtime the target has.
    """
    from plansmith.triton.installation import require_device, require_tensorrt, stand_in_site

    target = repository.load_target()
    shown = [_manifests(repository, model) for model in models]
    if all(manifests and all(one and one.engine.plans for one in manifests) for manifests in shown):
        require_tensorrt(installation, target)
        return None
    require_device(installation, target)
    return stand_in_site(installation, target)


def _arguments(repository: ModelRepository, models: Sequence[str]) -> list[str]:
    """What the shown versions of models need the server to be started with, each once."""
    manifests = [manifest for model in models for manifest in _manifests(repository, model)]
    return list(dict.fromkeys(one for manifest in manifests if manifest for one in manifest.package.server_arguments))


def _manifests(repository: ModelRepository, model: str) -> list[Manifest | None]:
    """Of the shown versions of a model; None of one that is somebody else's or damaged."""
    return [repository.readable(model, number) for number in repository.views(model).shown()]


def _announce(server: TritonServer, models: Sequence[str], arguments: Sequence[str], *, stand_in: bool) -> None:
    """Say what is served, where, and how it ends."""
    click.echo(f"Triton {server.version} serves {', '.join(models)}")
    if stand_in:
        click.echo("  ONNX models answer through plansmith's stand-in backend")
    if arguments:
        click.echo(f"  with     {shlex.join(arguments)}, as its plans need")
    click.echo(f"  HTTP     http://{server.http_url}/v2/models/{models[0]}")
    click.echo(f"  gRPC     {server.grpc_url}")
    click.echo(f"  metrics  http://{server.metrics_url}/metrics")
    click.echo(f"  log      {server.log}")
    click.echo("Ctrl-C ends it.")


def _log_file(repository: Path) -> Path:
    """Beside the repository, or where that takes no files, in the folder for temporary ones."""
    beside = repository.with_name(f"{repository.resolve().name}.serve.log")
    if os.access(repository.parent, os.W_OK):
        return beside
    descriptor, log = tempfile.mkstemp(prefix=f"plansmith-{os.getpid()}-", suffix=".serve.log")
    os.close(descriptor)
    return Path(log)
