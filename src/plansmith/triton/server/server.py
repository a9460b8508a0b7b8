"""A Triton server that lives as long as a `with` block, or as long as this process."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from plansmith.config.python import OWNER_VARIABLE, SITE_VARIABLE
from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.formatting import format_bytes
from plansmith.system.memory import Watch
from plansmith.system.process import ProcessGroup
from plansmith.system.temporary import scratch_name
from plansmith.triton.repository.ensembles import with_members
from plansmith.triton.server.installation import Installation, python_library_folder, python_site
from plansmith.triton.server.log import is_port_taken, reasons
from plansmith.triton.server.memory import MemoryLimit
from plansmith.triton.server.process import GRACE_SECONDS, end_server, remove_environments, start_server
from plansmith.triton.server.python_stub import LentPython, lent_python, write_choosing_stub

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

STANDINS = Path(__file__).parents[1] / "standin"
_BATCHING = Path(__file__).parents[2] / "compilers" / "python_backend" / "batching.py"

_ONNXRUNTIME, _DALI, _PYTHON = "onnxruntime", "dali", "python"


def build_backend_folder(
    folder: Path,
    installation: Installation,
    site: Path | None = None,
    dali_site: Path | None = None,
    lent: Sequence[LentPython] = (),
) -> None:
    """Make a backend directory: Triton refuses a library that a link leads out of it, but follows a linked folder.

    Args:
        folder: made here.
        installation: the server.
        site: the packages of the stand-in for the ONNX Runtime backend; without them it is not laid out.
        dali_site: likewise for DALI.
        lent: the Pythons beside its own that the server runs models with.
    """
    folder.mkdir()
    stand_ins: dict[str, Path] = {}
    if site is not None and not installation.real_onnxruntime:
        stand_ins[_ONNXRUNTIME] = site
    if dali_site is not None and not installation.real_dali:
        stand_ins[_DALI] = dali_site
    for backend in installation.backends.iterdir():
        if backend.name not in stand_ins and (backend.name != _PYTHON or installation.stub is None):
            (folder / backend.name).symlink_to(backend)
    if installation.stub is not None:
        shutil.copytree(installation.backends / _PYTHON, folder / _PYTHON)
        shutil.copy2(installation.stub, folder / _PYTHON)
        if lent:
            write_choosing_stub(folder / _PYTHON / installation.stub.name, installation.stub, lent)
    for name, packages in stand_ins.items():
        shutil.copytree(STANDINS / name, folder / name, ignore=shutil.ignore_patterns("__*"))
        (folder / name / "site").symlink_to(packages.absolute())
    if _ONNXRUNTIME in stand_ins:
        shutil.copy2(_BATCHING, folder / _ONNXRUNTIME)


HOST = "127.0.0.1"

_PORT_ATTEMPTS = 5

_POLL_SECONDS = 0.1

_END_SECONDS = 0.5

_REPOSITORY, _BACKENDS = "repository", "backends"

_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")

_CACHE_BYTES = 16 * 2**20


class TritonServer:
    """A context manager that starts `tritonserver` on a model repository and takes it down again.

    The kernel ends the server when the thread that entered the block ends, however it ends; so enter it in a thread
    that lives as long as the server shall. What the server started ends with this process.

    Args:
        repository: the model repository.
        installation: from `find_installation`.
        log: takes what the server prints; it is emptied first.
        site: the folder of `runtime_folder`, for the stand-in that serves ONNX models where there is no real backend;
            without it such models do not load.
        dali_site: the folder of `dali_folder`, likewise for DALI pipelines.
        models: the models to load, with those that a script of them asks; `*` for every folder of the repository.
        exit_on_error: a model that does not load is an error; otherwise the repository index says what happened.
        deadline_seconds: how long loading may take.
        ports: of HTTP, gRPC and metrics; 0 for any free one.
        sagemaker_port: of SageMaker's front end, which listens on all addresses; None for no such front end.
        arguments: what to start the server with besides.
        variables: of the server's environment, besides those of this process.
        library_folders: where libraries lie that the arguments name without a folder, as those of plugins.
        memory_bytes: what the server and its Python models may hold together; they are ended where it is more.
        pythons: what the environments that models bring are for, such as "3.12"; entering the block raises an
            `EnvironmentFault` where this machine cannot run them with one of these.

    Attributes:
        http_url: such as "127.0.0.1:8000", as the other two.
        grpc_url: where gRPC is answered.
        metrics_url: where Prometheus metrics are.
        sagemaker_url: where SageMaker's front end answers; empty without one.
        group: the process group of the server and what it started; 0 before it starts.
        log: the log file.
        version: what the running server says it is.
    """

    def __init__(  # noqa: PLR0913 - a server has as many settings, and most callers need three of them
        self,
        repository: Path,
        installation: Installation,
        log: Path,
        *,
        site: Path | None = None,
        dali_site: Path | None = None,
        models: Sequence[str] = ("*",),
        exit_on_error: bool = True,
        deadline_seconds: float = 60,
        ports: tuple[int, int, int] = (0, 0, 0),
        sagemaker_port: int | None = None,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        library_folders: Sequence[Path] = (),
        memory_bytes: int | None = None,
        pythons: Collection[str] = (),
    ) -> None:
        self.log = log
        self.group = 0
        self.version = ""
        self.sagemaker_url = ""
        self._repository = repository.absolute()
        self._installation = installation
        self._site = site
        self._dali_site = dali_site
        self._models = tuple(models)
        self._exit_on_error = exit_on_error
        self._deadline_seconds = deadline_seconds
        self._wanted_ports = (*ports, *(() if sagemaker_port is None else (sagemaker_port,)))
        self._arguments = tuple(arguments)
        self._variables = dict(variables)
        self._library_folders = tuple(library_folders)
        self._memory_bytes = memory_bytes
        self._pythons = tuple(dict.fromkeys(pythons))
        self._limit: MemoryLimit | None = None
        self._token = scratch_name(secrets.token_hex(4))
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        found = (lent_python(self._installation, python) for python in self._pythons)
        lent = [one for one in found if one is not None]
        with ExitStack() as undo:
            place = _plain_temporary_folder()
            scratch = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix=f"{self._token}-", dir=place)))
            # The Python backend puts both paths into a shell command without quoting them.
            (scratch / _REPOSITORY).symlink_to(self._repository)
            build_backend_folder(scratch / _BACKENDS, self._installation, self._site, self._dali_site, lent)
            for _ in range(_PORT_ATTEMPTS):
                attempt = undo.enter_context(ExitStack())
                self._launch(scratch, attempt)
                if self._is_ready():
                    self._cleanup = undo.pop_all()
                    return self
                attempt.close()
        raise EnvironmentFault(
            "other programs took the ports"
            f" {', '.join(filter(None, (self.http_url, self.grpc_url, self.metrics_url, self.sagemaker_url)))} first",
            remedy="try again, or give other ports",
            log=self.log,
            transient=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What failed may have noticed before the process was gone.
        status = self.wait(_END_SECONDS) if isinstance(value, Exception) else None
        self.stop()
        if status is not None:
            raise self.obituary(status, "while it was asked") from value

    def stop(self) -> None:
        """End the server and everything it started; does nothing the second time."""
        self._cleanup.close()

    def wait(self, seconds: float | None = None) -> int | None:
        """Block until the server ends by itself or by a signal, but no longer; its exit status, None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def obituary(self, status: int, when: str) -> PlansmithError:
        """Why the server ended, after `wait` gave its exit status.

        Args:
            status: minus the signal, where one ended it.
            when: words that say what was being done.
        """
        if self._limit is not None and self._limit.exceeded is not None:
            return self._too_large(self._limit.exceeded)
        if status == -signal.SIGKILL:
            who, remedy = self._watch.verdict()
            return EnvironmentFault(f"Triton was killed {when}, {who}", remedy=remedy, log=self.log)
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        return ServedCheckError(
            f"Triton ended with {how} {when}\n{reasons(self.log)}", remedy="read the log", log=self.log
        )

    def _launch(self, scratch: Path, undo: ExitStack) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(self._wanted_ports)
        self.http_url, self.grpc_url, self.metrics_url, *front_end = (f"{HOST}:{port}" for port in ports)
        self.sagemaker_url = "".join(front_end)
        with self.log.open("wb") as log:
            group = ProcessGroup(GRACE_SECONDS)
            undo.callback(group.end)
            self.group = group.number
            self._process = start_server(self._command(scratch, ports), self._environment(), log, group)
        self._watch = Watch(self._process.pid)
        undo.callback(_remove_shared_memory, self._token)
        undo.callback(remove_environments, self._token)
        undo.callback(end_server, self._process, group)
        if self._memory_bytes is not None:
            self._limit = undo.enter_context(MemoryLimit(group.number, self._memory_bytes))

    def _command(self, scratch: Path, ports: Sequence[int]) -> list[str]:
        http_port, grpc_port, metrics_port, *sagemaker_ports = ports
        flags = {
            "id": self._token,
            "model-repository": scratch / _REPOSITORY,
            "backend-directory": scratch / _BACKENDS,
            "backend-config": f"python,shm-region-prefix-name={self._token}-",
            "cache-directory": self._installation.caches,
            "cache-config": f"local,size={_CACHE_BYTES}",
            "http-address": HOST,
            "http-port": http_port,
            "grpc-address": HOST,
            "grpc-port": grpc_port,
            "metrics-address": HOST,
            "metrics-port": metrics_port,
            "model-control-mode": "explicit",
            "exit-on-error": str(self._exit_on_error).lower(),
        }
        loads = [f"--load-model={name}" for name in with_members(self._repository, self._models)]
        for port in sagemaker_ports:
            flags |= {"allow-sagemaker": "true", "sagemaker-port": port}
        return [
            str(self._installation.binary),
            *(f"--{key}={value}" for key, value in flags.items()),
            *loads,
            *self._arguments,
        ]

    def _environment(self) -> dict[str, str]:
        folders = [str(folder) for folder in (*self._installation.library_path, *self._library_folders)]
        if self._installation.lends_python:
            folders.append(str(python_library_folder()))
        folders += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
        # The Python stub takes the standard library of the first `python3` on PATH: it must be this Python's.
        programs = ":".join([str(Path(sys.base_prefix) / "bin"), os.environ.get("PATH", os.defpath)])
        packages = {SITE_VARIABLE: ":".join(map(str, python_site(self._installation)))}
        own = {"LD_LIBRARY_PATH": ":".join(folders), "PATH": programs, OWNER_VARIABLE: self._token}
        return {**packages, **os.environ, **self._variables, **own}

    def _is_ready(self) -> bool:
        """Wait until the server answers; False when another program took one of its ports."""
        deadline = time.monotonic() + self._deadline_seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                if self._limit is not None and self._limit.exceeded is not None:
                    raise self._too_large(self._limit.exceeded)
                if is_port_taken(self.log):
                    return False
                raise self._failure(f"the server ended with status {self._process.returncode}")
            if self._answers():
                return not is_port_taken(self.log)
            time.sleep(_POLL_SECONDS)
        raise self._failure(f"the server was not ready after {self._deadline_seconds:g} s")

    def _answers(self) -> bool:
        """This server, and no other on the same port, is up."""
        try:
            metadata = json.loads(_get(self.http_url, "/v2"))
            _get(self.metrics_url, "/metrics")
            if self._exit_on_error:
                _get(self.http_url, "/v2/health/ready")
        except (OSError, http.client.HTTPException, ValueError):
            return False
        self.version = metadata["version"]
        return bool(metadata["name"] == self._token)

    def _too_large(self, held: int) -> EnvironmentFault:
        assert self._memory_bytes is not None
        return EnvironmentFault(
            f"Triton was ended: with its Python models it held {format_bytes(held)} of memory, and may hold"
            f" {format_bytes(self._memory_bytes)}",
            remedy="allow it more (plansmith serve --memory; the served check allows what this machine has free), or"
            " have it serve fewer models or instances",
            log=self.log,
        )

    def _failure(self, what: str) -> ServedCheckError:
        return ServedCheckError(
            f"Triton did not load {self._repository}: {what}\n{reasons(self.log)}",
            remedy="correct what the lines name, or read the log",
            log=self.log,
        )


def _plain_temporary_folder() -> str:
    """The folder for temporary files, or another where its path means something to a shell."""
    usual = tempfile.gettempdir()
    return usual if _PLAIN.fullmatch(usual) else "/tmp"  # noqa: S108 - a name of its own is made in it


def _free_ports(wanted: Sequence[int]) -> list[int]:
    with ExitStack() as held:
        ports = []
        for port in wanted:
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, port))
            except OSError as taken:
                raise EnvironmentFault(
                    f"port {port} of {HOST} cannot be used: {taken.strerror}",
                    remedy="end the program that listens there, or give another port",
                ) from taken
            ports.append(one.getsockname()[1])
        return ports


def _remove_shared_memory(token: str) -> None:
    for region in Path("/dev/shm").glob(f"{token}-*"):  # noqa: S108 - Triton's choice, and the token is ours alone
        region.unlink(missing_ok=True)


def _get(url: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(url, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise http.client.HTTPException(f"{path} answered {response.status}")
    return body
