"""`plansmith serve`."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_model, repository_option

if TYPE_CHECKING:
    from plansmith.manifest import Manifest
    from plansmith.triton.following import Follower, Needs
    from plansmith.triton.installation import Installation
    from plansmith.triton.repository import ModelRepository
    from plansmith.triton.server import TritonServer
    from plansmith.types import EngineKind

# Large models load for minutes; a person who waits can press Ctrl-C.
_LOAD_SECONDS = 3600

_LOOK_SECONDS = 0.5

_PORT = click.IntRange(0, 65535)


def _bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A size as a person writes it."""
    from pydantic import TypeAdapter, ValidationError

    from plansmith.written import ByteCount

    del context
    try:
        return None if value is None else TypeAdapter[int](ByteCount).validate_python(value)
    except ValidationError:
        raise click.BadParameter(f"{value!r} is no size such as 8G or 512M", param=parameter) from None


@click.command("serve", short_help="Run Triton on a model repository until Ctrl-C.")
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@repository_option("Where the models are.")
@click.option("--tritonserver", type=click.Path(path_type=Path), help="The server; found when left out.")
@click.option("--http-port", type=_PORT, default=8000, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--grpc-port", type=_PORT, default=8001, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--metrics-port", type=_PORT, default=8002, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--follow", is_flag=True, help="Take up what is published and let go of what is removed, meanwhile.")
@click.option(
    "--memory",
    "memory_bytes",
    metavar="SIZE",
    callback=_bytes,
    help="End it, with its Python models, where they hold more: 8G, 512M.",
)
def serve_command(
    models: tuple[str, ...],
    repository: Path,
    *,
    tritonserver: Path | None,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    follow: bool,
    memory_bytes: int | None,
) -> None:
    """Run Triton on a model repository until Ctrl-C; all its models unless some are named.

    With --follow it starts with no model, takes up what is shown one by one, and prints a line for each that serves, is
    published, exchanged or removed; a version that does not load leaves the one before serving.

    \b
    plansmith serve
    plansmith serve minilm --repository /srv/models --http-port 9000
    plansmith serve --follow --memory 8G
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
    with suppress(RepositoryError):  # a repository that cannot be written is served as it stands
        opened.settle_all()
    present = opened.served_models()
    missing = sorted(set(models) - set(present))
    if (missing or not present) and not follow:
        raise RepositoryError(
            f"{repository} has no model {', '.join(missing)}" if missing else f"{repository} holds no model",
            remedy=f"choose from: {', '.join(present)}" if present else "plansmith compile a model into it first",
        )
    installation = find_installation(tritonserver)
    served = [model for model in models or present if model not in missing]
    site = stand_in_for(installation, opened, served)
    arguments = server_arguments(opened, served)
    server = TritonServer(
        repository,
        installation,
        log_file(opened.root),
        site=site,
        dali_site=_dali_site(installation, opened, served),
        models=[] if follow else served,  # the follower loads each by itself: one that never loads holds up no other
        deadline_seconds=_LOAD_SECONDS,
        ports=(http_port, grpc_port, metrics_port),
        arguments=arguments,
        memory_bytes=memory_bytes,
    )
    with server:
        what = f"follows {opened.root}" if follow else f"serves {', '.join(served)}"
        _announce(server, what, served, arguments, stand_in=site is not None)
        try:
            if follow:
                follower = _follower(server, opened, models, _obstacles(opened, arguments))
                status: int | None = _follow(server, follower)
            else:
                status = server.wait()
        except KeyboardInterrupt:
            click.echo("\nstopped", err=True)
            return
    assert status is not None
    raise server.obituary(status, "while it served")


def _follower(server: TritonServer, opened: ModelRepository, models: tuple[str, ...], needs: Needs) -> Follower:
    """What keeps a server on a repository, of which it has loaded nothing yet."""
    from plansmith.triton.following import Follower
    from plansmith.triton.live import RunningTriton

    # A load over HTTP would hold up clients.
    triton = RunningTriton(f"grpc://{server.grpc_url}")
    return Follower(opened.root, triton, models=models, needs=needs, say=click.echo, log=server.log)


def _follow(server: TritonServer, follower: Follower) -> int:
    """Follow until the server ends by itself; its exit status."""
    while (status := server.wait(_LOOK_SECONDS)) is None:
        follower.look()
    return status


def _obstacles(opened: ModelRepository, arguments: Sequence[str]) -> Needs:
    """Asks whether a model can be loaded by a server that was started with these arguments, for this target."""
    target = opened.load_target().name

    def obstacle(model: str) -> str | None:
        now = opened.load_target().name
        if now != target:
            return f"the repository is for target {now}, and this server was started for {target}: start it again"
        lacking = [one for one in server_arguments(opened, [model]) if one not in arguments]
        return f"it needs a server that was started with {shlex.join(lacking)}: start it again" if lacking else None

    return obstacle


def stand_in_for(installation: Installation, repository: ModelRepository, models: Sequence[str]) -> Path | None:
    """The packages of the stand-in backend; None where the server has the real one, or nothing that it serves needs it.

    Raises:
        EnvironmentFault: this machine or its server lacks what the models need.
        EngineError: nothing says which ONNX Runtime the target has.
    """
    from plansmith.triton.installation import require_device, require_python, require_tensorrt, stand_in_site
    from plansmith.types import EngineKind

    target = repository.load_target()
    kinds = _engines(repository, models)
    if EngineKind.PYTHON in kinds or _has_python_parts(repository, models):
        require_python(installation, torch=EngineKind.PYTHON in kinds)
    if EngineKind.PYTHON in kinds:
        require_device(installation, target, EngineKind.PYTHON)
    if kinds and kinds <= {EngineKind.TENSORRT, EngineKind.PYTHON}:
        if EngineKind.TENSORRT in kinds:
            require_tensorrt(installation, target)
        return None
    require_device(installation, target)
    return stand_in_site(installation, target)


def _dali_site(installation: Installation, repository: ModelRepository, models: Sequence[str]) -> Path | None:
    """The packages of the stand-in for the DALI backend; None where the real one is here, or nothing needs it.

    Raises:
        EnvironmentFault: they are not installed.
        EngineError: nothing says which DALI the target has.
    """
    from plansmith.triton.installation import dali_site

    manifests = [manifest for model in models for manifest in _manifests(repository, model)]
    if not any(manifest is not None and manifest.package.has_dali for manifest in manifests):
        return None
    return dali_site(installation, repository.load_target())


def _engines(repository: ModelRepository, models: Sequence[str]) -> set[EngineKind | None]:
    """The engines of the shown versions of models; None among them where one is somebody else's or damaged."""
    shown = [_manifests(repository, model) for model in models]
    found = {manifest.engine.kind if manifest else None for manifests in shown for manifest in manifests}
    return found if all(shown) else {*found, None}


def _has_python_parts(repository: ModelRepository, models: Sequence[str]) -> bool:
    """Whether a shown version of a model is a script, or has a part, for Triton's Python backend."""
    from plansmith.triton.script_layout import is_script

    packages = [one.package for model in models for one in _manifests(repository, model) if one]
    return any(is_script(one) or any(part.backend == "python" for part in one.members) for one in packages)


def server_arguments(repository: ModelRepository, models: Sequence[str]) -> list[str]:
    """What the shown versions of models need the server to be started with, each once."""
    manifests = [manifest for model in models for manifest in _manifests(repository, model)]
    return list(dict.fromkeys(one for manifest in manifests if manifest for one in manifest.package.server_arguments))


def _manifests(repository: ModelRepository, model: str) -> list[Manifest | None]:
    """Of the shown versions of a model; None of one that is somebody else's or damaged."""
    return [repository.readable(model, number) for number in repository.views(model).shown()]


def _announce(
    server: TritonServer, what: str, models: Sequence[str], arguments: Sequence[str], *, stand_in: bool
) -> None:
    """Say what is done, where, and how it ends."""
    click.echo(f"Triton {server.version} {what}")
    if stand_in:
        click.echo("  ONNX models answer through plansmith's stand-in backend")
    if arguments:
        click.echo(f"  with     {shlex.join(arguments)}, as its plans need")
    click.echo(f"  HTTP     http://{server.http_url}{f'/v2/models/{models[0]}' if models else ''}")
    click.echo(f"  gRPC     grpc://{server.grpc_url}")
    click.echo(f"  metrics  http://{server.metrics_url}/metrics")
    click.echo(f"  log      {server.log}")
    click.echo("Ctrl-C ends it.")


def log_file(root: Path, command: str = "serve") -> Path:
    """Beside the repository, or where that takes no files, in the folder for temporary ones.

    The log of the server before becomes `.1`: it may say why that one ended.

    Args:
        root: the repository, an absolute path.
        command: whose server it is.
    """
    beside = root.with_name(f"{root.name}.{command}.log")
    if os.access(root.parent, os.W_OK):
        with suppress(OSError):
            if beside.exists():
                beside.replace(f"{beside}.1")
            return beside
    descriptor, log = tempfile.mkstemp(prefix=f"plansmith-{os.getpid()}-", suffix=f".{command}.log")
    os.close(descriptor)
    return Path(log)
