"""`plansmith serve`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_model, repository_option, size_from_option
from plansmith.cli.store.signing import signature_policy_option
from plansmith.errors import RepositoryError, ServedCheckError
from plansmith.formatting import suggest_names

if TYPE_CHECKING:
    from plansmith.sagemaker.start_script import Start
    from plansmith.signing.policy import SignaturePolicy
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.server.follower import Follower, Needs
    from plansmith.triton.server.installation import Installation
    from plansmith.triton.server.needs import ServerNeeds
    from plansmith.triton.server.server import TritonServer

# Large models load for minutes; a person who waits can press Ctrl-C.
_LOAD_SECONDS = 3600
_LOOK_SECONDS = 0.5
_PORT = click.IntRange(0, 65535)


def is_multi_model() -> bool:
    """Whether the environment requests a multi-model endpoint."""
    from plansmith.sagemaker.start_script import MULTI_MODEL

    return os.environ.get(MULTI_MODEL) == "true"


def front_end_start(repository: ModelRepository, models: Sequence[str]) -> Start:
    """Return how a container starts Triton on a repository; without models for a multi-model endpoint.

    Args:
        repository: the repository.
        models: the default model, where it was typed.

    Raises:
        RepositoryError: the start script would end with an error, which is quoted; or no model is the default.
        UsageError: a variable has a value that the script refuses.
    """
    from plansmith.sagemaker.start_script import (
        ADDITIONAL_ARGUMENTS,
        DEFAULT_MODEL,
        default_model,
        multi_model_start,
        single_model_start,
    )
    from plansmith.triton.repository.ensembles import with_members
    from plansmith.triton.server.needs import server_arguments, shown_manifests

    environment = {name: value for name, value in os.environ.items() if name.startswith("SAGEMAKER_")}
    if is_multi_model():
        return multi_model_start(environment)
    served = repository.served_models()
    if models:
        environment[DEFAULT_MODEL] = models[0]
    elif len(served) == 1 and not environment.get(DEFAULT_MODEL):
        environment[DEFAULT_MODEL] = served[0]
    if not environment.get(DEFAULT_MODEL):
        raise RepositoryError(
            f"there are {len(served)} models, and an endpoint serves one: {', '.join(served)}",
            remedy=f"plansmith serve --sagemaker MODEL; or set {DEFAULT_MODEL}",
        )
    model = default_model(repository.root, environment)
    loads = [f"--load-model={name}" for name in with_members(repository.root, [model]) if name != model]
    needed = " ".join([*server_arguments(shown_manifests(repository, [model])), *loads])
    return single_model_start(repository.root, {ADDITIONAL_ARGUMENTS: needed} | environment)


@click.command("serve", short_help="Run Triton on a model repository until Ctrl-C.")
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@repository_option("Where the models are; or an archive of them, such as model.tar.gz.")
@click.option("--tritonserver", type=click.Path(path_type=Path), help="The server; found when left out.")
@click.option("--http-port", type=_PORT, default=8000, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--grpc-port", type=_PORT, default=8001, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--metrics-port", type=_PORT, default=8002, show_default=True, metavar="PORT", help="0 for any free one.")
@click.option("--sagemaker", is_flag=True, help="Start SageMaker's front end, as its containers do.")
@click.option(
    "--sagemaker-port",
    type=_PORT,
    default=8080,
    show_default=True,
    metavar="PORT",
    envvar="SAGEMAKER_BIND_TO_PORT",
    help="0 for any free one.",
)
@click.option("--follow", is_flag=True, help="Take up what is published and let go of what is removed, meanwhile.")
@click.option(
    "--memory",
    "memory_bytes",
    metavar="SIZE",
    callback=size_from_option,
    help="End it, with its Python models, where they hold more: 8G, 512M.",
)
@signature_policy_option("Serve nothing that is not signed by whom the policy names.")
def serve_command(  # noqa: PLR0913 - each is an option of the server
    models: tuple[str, ...],
    repository: Path,
    *,
    tritonserver: Path | None,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    sagemaker: bool,
    sagemaker_port: int,
    follow: bool,
    memory_bytes: int | None,
    require_signature: SignaturePolicy | None,
) -> None:
    """Run Triton on a model repository until Ctrl-C; all models unless some are named.

    With --follow it starts with no model, takes up what is shown one by one, and prints a line for each that serves, is
    published, exchanged or removed; a version that does not load leaves the one before serving.

    With --sagemaker it serves one model as an endpoint of SageMaker, /ping and /invocations, and reads the variables of
    the endpoint: SAGEMAKER_TRITON_DEFAULT_MODEL_NAME and the like. With SAGEMAKER_MULTI_MODEL=true it starts with none,
    and POST /models loads the folder of an unpacked archive. This front end listens on all addresses of the machine.

    \b
    plansmith serve
    plansmith serve minilm --repository /srv/models --http-port 9000
    plansmith serve --follow --memory 8G
    plansmith serve --sagemaker --repository model.tar.gz
    """
    from plansmith.errors import UsageError

    chosen = [port for port in (http_port, grpc_port, metrics_port, sagemaker_port if sagemaker else 0) if port]
    if len(set(chosen)) < len(chosen):
        raise UsageError("two of the ports are the same", remedy="give different ones, or 0 for any free one")
    multi_model = sagemaker and is_multi_model()
    if sagemaker and follow:
        raise UsageError("an endpoint of SageMaker does not follow a repository", remedy="leave out --follow")
    if multi_model and require_signature is not None:
        raise UsageError(
            "a multi-model endpoint loads archives, which hold no signature", remedy="leave out --require-signature"
        )
    if multi_model and models:
        raise UsageError("a multi-model endpoint starts with no model", remedy=f"leave out {' '.join(models)}")
    if sagemaker and len(models) > 1:
        raise UsageError(
            f"an endpoint of SageMaker serves one model, and not {', '.join(models)}",
            remedy="name one; or set SAGEMAKER_MULTI_MODEL=true, for one that loads archives by POST /models",
        )
    settings: dict[str, Any] = {
        "ports": (http_port, grpc_port, metrics_port),
        "sagemaker_port": sagemaker_port if sagemaker else None,
        "memory_bytes": memory_bytes,
    }
    with _folder(repository, multi_model=multi_model) as folder:
        _serve(
            repository,
            folder,
            models,
            tritonserver,
            settings,
            policy=require_signature,
            follow=follow,
            may_be_empty=follow or multi_model,
        )


@contextmanager
def _folder(repository: Path, *, multi_model: bool) -> Iterator[Path]:
    """Yield the folder that Triton reads: the repository, an unpacked archive of it, or an empty folder."""
    import tempfile

    from plansmith.cli.serve.check import opened
    from plansmith.errors import RepositoryError

    if multi_model:
        with tempfile.TemporaryDirectory(prefix="plansmith-sagemaker-") as folder:
            yield Path(folder)
    elif repository.exists():
        with opened(repository) as root:
            yield root
    else:
        raise RepositoryError(f"{repository} does not exist", remedy="compile a model into it first, or check the path")


def _serve(
    repository: Path,
    folder: Path,
    models: tuple[str, ...],
    tritonserver: Path | None,
    settings: dict[str, Any],
    *,
    policy: SignaturePolicy | None,
    follow: bool,
    may_be_empty: bool,
) -> None:
    """Run Triton on a folder until it exits or Ctrl-C stops it.

    Args:
        repository: as it was typed.
        folder: what Triton reads of it.
        models: those to serve; all when empty.
        tritonserver: the server; found when None.
        settings: of `TritonServer`.
        policy: who must have signed what is served; a model that is not is refused before the server starts, or, where
            it follows the repository, not loaded.
        follow: take up what is published.
        may_be_empty: whether it starts without a model.
    """
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.repository.signature import require_shown_signed, signature_obstacle
    from plansmith.triton.server.installation import find_installation
    from plansmith.triton.server.needs import obstacles

    opened = ModelRepository(folder)
    served = _served_models(opened, models, repository, may_be_empty=may_be_empty)
    if policy is not None and not follow:
        for model in served:
            require_shown_signed(opened, model, policy)
    start = front_end_start(opened, models) if settings["sagemaker_port"] is not None else None
    installation = find_installation(tritonserver)
    needs = _needs(opened, served, installation, start, follow=follow)
    if start is not None:
        served = [start.model] if start.model else []
        settings = {**settings, "variables": start.variables}
    # The follower loads each by itself, so that one that never loads holds up no other; the start script names one.
    loaded = served if start is None and not follow else []
    server = _server(folder, installation, log_file(repository.resolve()), needs, loaded, settings)
    if follow:
        activity = f"follows {opened.root}"
    else:
        activity = f"serves {', '.join(served)}" if served else "is a multi-model endpoint"
    with naming_damage(opened, served), server:
        try:
            _announce(server, activity, served, needs.arguments, stand_in=needs.site is not None)
            if follow:
                obstacle = signature_obstacle(opened, policy, obstacles(installation, opened, needs))
                status: int | None = _follow(server, _follower(server, opened, models, obstacle))
            else:
                status = server.wait()
        except KeyboardInterrupt:
            click.echo("\nstopped", err=True)
            return
    assert status is not None
    raise server.obituary(status, "while it served")


def _needs(
    opened: ModelRepository,
    served: Sequence[str],
    installation: Installation,
    start: Start | None,
    *,
    follow: bool,
) -> ServerNeeds:
    """Return what a server needs for the models that are shown now, and for those that it may load later."""
    from plansmith.triton.server.needs import needs_of, shown_manifests
    from plansmith.triton.server.server import other_pythons

    needs = needs_of(installation, opened.load_target(), shown_manifests(opened, served))
    if follow or start is not None:  # what is published meanwhile, or lies in an archive, may bring its environment
        needs = replace(needs, pythons=tuple(other_pythons(installation)))
    return needs if start is None else replace(needs, arguments=start.arguments)


def _server(
    folder: Path,
    installation: Installation,
    log: Path,
    needs: ServerNeeds,
    models: Sequence[str],
    settings: Mapping[str, Any],
) -> TritonServer:
    from plansmith.triton.server.server import TritonServer

    return TritonServer(
        folder,
        installation,
        log,
        site=needs.site,
        dali_site=needs.dali_site,
        models=models,
        deadline_seconds=_LOAD_SECONDS,
        arguments=needs.arguments,
        pythons=needs.pythons,
        **settings,
    )


@contextmanager
def naming_damage(opened: ModelRepository, models: Sequence[str]) -> Iterator[None]:
    """Have a server's failure in the block name the command that lists damaged files, where a shown release has some.

    Args:
        opened: the repository.
        models: those that are served.
    """
    try:
        yield
    except ServedCheckError as refused:
        for model in models:
            for number in {*opened.views(model).shown()} & {*opened.versions(model)}:
                if damage := opened.damage(model, number):
                    raise ServedCheckError(
                        f"{refused.message}\n{model}@{number} is not as it was published: {damage}",
                        remedy=f"plansmith verify {model} --repository {shlex.quote(str(opened.root))}",
                        log=refused.log,
                    ) from refused
        raise


def _served_models(
    opened: ModelRepository, models: Sequence[str], repository: Path, *, may_be_empty: bool
) -> list[str]:
    """Return the served models of a repository; refuse one without any unless it may be empty.

    Args:
        opened: the repository, which is settled where it can be written.
        models: those that were typed; all when empty.
        repository: as it was typed.
        may_be_empty: leave out what is not there.
    """
    from plansmith.errors import RepositoryError
    from plansmith.triton.repository.ensembles import require_alone

    require_alone(opened.root)
    with suppress(RepositoryError):  # a repository that cannot be written is served as it stands
        opened.settle_all()
    present = opened.served_models()
    missing = sorted(set(models) - set(present))
    if (missing or not present) and not may_be_empty:
        raise RepositoryError(
            f"{repository} has no model {', '.join(map(repr, missing))}" if missing else f"{repository} has no model",
            remedy=suggest_names(missing, present, otherwise="compile a model into it first"),
        )
    return [model for model in models or present if model not in missing]


def _follower(server: TritonServer, opened: ModelRepository, models: tuple[str, ...], needs: Needs) -> Follower:
    """Return a follower that keeps a server in sync with a repository; it has loaded nothing yet."""
    from plansmith.triton.server.follower import Follower
    from plansmith.triton.server.live import RunningTriton

    # A load over HTTP would hold up clients.
    triton = RunningTriton(f"grpc://{server.grpc_url}")
    return Follower(opened.root, triton, models=models, needs=needs, say=click.echo, log=server.log)


def _follow(server: TritonServer, follower: Follower) -> int:
    """Follow the repository until the server exits; return its exit status."""
    while (status := server.wait(_LOOK_SECONDS)) is None:
        follower.look()
    return status


def _announce(
    server: TritonServer, activity: str, models: Sequence[str], arguments: Sequence[str], *, stand_in: bool
) -> None:
    """Print what is served, at which address, and how to stop it."""
    click.echo(f"Triton {server.version} {activity}")
    if stand_in:
        click.echo("  ONNX models answer through plansmith's stand-in backend")
    if arguments:
        why = "as SageMaker's start script does" if server.sagemaker_url else "as its plans need"
        click.echo(f"  with     {shlex.join(arguments)}, {why}")
    if server.sagemaker_url:
        path = "/invocations" if models else "/models"
        click.echo(f"  endpoint http://{server.sagemaker_url}{path}, on all addresses of this machine")
    click.echo(f"  HTTP     http://{server.http_url}{f'/v2/models/{models[0]}' if models else ''}")
    click.echo(f"  gRPC     grpc://{server.grpc_url}")
    click.echo(f"  metrics  http://{server.metrics_url}/metrics")
    click.echo(f"  log      {server.log}")
    click.echo("Ctrl-C ends it.")


def log_file(root: Path, command: str = "serve") -> Path:
    """Return the log file's path: next to the repository, or in the temporary folder if that is not writable.

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
    import tempfile

    descriptor, log = tempfile.mkstemp(prefix=f"plansmith-{os.getpid()}-", suffix=f".{command}.log")
    os.close(descriptor)
    return Path(log)
