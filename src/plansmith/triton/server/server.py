"""Triton server bound to a `with` block, or to this process."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from plansmith.config.engine_options import OWNER_VARIABLE, SITE_VARIABLE
from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.formatting import format_bytes
from plansmith.system.files import make_folder, scratch_name
from plansmith.system.memory import Watch
from plansmith.system.process import ProcessGroup
from plansmith.triton.repository.ensembles import with_members
from plansmith.triton.server.installation import RUNNING_PYTHON, Installation, python_library_folder, python_site
from plansmith.triton.server.process import (
    GRACE_SECONDS,
    MemoryLimit,
    end_server,
    is_port_taken,
    reasons,
    remove_environments,
    start_server,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType


_SECONDS_TO_ANSWER = 60
_ASK = """
import sys, sysconfig
sys.version_info[:2] == ({numbers}) or sys.exit("it is another Python")
print(sysconfig.get_config_var("LIBDIR"), sys.base_prefix + "/lib", sep="\\n")
"""

# The Python backend puts the library folder of an environment before all others (src/stub_launcher.cc), and the
# environment's own script (environments/activation.py) says where it lies. Both together: the variable alone may be of
# the environment that plansmith runs in.
_SCRIPT = """\
#!/bin/bash
# The process of a Python model: that of the Python which its environment is for.
stub={own}
if [ -n "${{VIRTUAL_ENV:-}}" ] && [ "${{LD_LIBRARY_PATH%%:*}}" -ef "$VIRTUAL_ENV/lib" ]; then
    for folder in "$VIRTUAL_ENV"/lib/python3.*; do
        case "${{folder##*/python}}" in
{cases}
        esac
    done
fi
exec "$stub" "$@"
"""
_CASE = """\
            {python}) stub={stub} LD_LIBRARY_PATH="$LD_LIBRARY_PATH":{libraries} ;;\
"""

STANDINS = Path(__file__).parents[1] / "standin"
_BATCHING = Path(__file__).parents[2] / "compilers" / "python_backend" / "batching.py"
HOST = "127.0.0.1"
_PORT_ATTEMPTS = 5
_POLL_SECONDS = 0.1
_END_SECONDS = 0.5
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
_CACHE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class LentPython:
    """Another Python version for a server's Python models.

    Attributes:
        python: such as "3.12".
        stub: the process that runs models with it.
        libraries: the folder of its library, which that process has to find.
    """

    python: str
    stub: Path
    libraries: Path


def lent_python(installation: Installation, python: str) -> LentPython | None:
    """Return what a server needs to run models with another Python; None if its own stub is the right one.

    Args:
        installation: the server.
        python: such as "3.12".

    Raises:
        EnvironmentFault: the server has no such process, or this machine no such Python.
    """
    if installation.stub is None or not installation.lends_python or python == RUNNING_PYTHON:
        return None
    stub = installation.stub.parents[1] / python / installation.stub.name
    if not stub.is_file():
        raise _unavailable(python, f"{installation.binary} has no Python backend for it")
    return LentPython(python, stub, _library_folder(python))


def other_pythons(installation: Installation) -> list[str]:
    """Return the other Python versions that a server can run models with here."""
    if installation.stub is None or not installation.lends_python:
        return []
    pythons = []
    for python in sorted(folder.name for folder in installation.stub.parents[1].iterdir()):
        with suppress(EnvironmentFault):
            if lent_python(installation, python) is not None:
                pythons.append(python)
    return pythons


def write_choosing_stub(stub: Path, own: Path, lent: Iterable[LentPython]) -> None:
    """Write the script that selects among the stubs of several Python versions.

    Args:
        stub: where Triton looks for the process of Python models.
        own: that of the running Python, for whatever brings no environment for another one.
        lent: the others.
    """
    cases = (
        _CASE.format(python=entry.python, stub=_quoted(entry.stub), libraries=_quoted(entry.libraries))
        for entry in lent
    )
    stub.unlink(missing_ok=True)
    stub.write_text(_SCRIPT.format(own=_quoted(own), cases="\n".join(cases)))
    stub.chmod(0o755)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path.absolute()))


def _library_folder(python: str) -> Path:
    command = [f"python{python}", "-I", "-c", _ASK.format(numbers=python.replace(".", ", "))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_TO_ANSWER, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise _unavailable(python, f"no program python{python} of this machine answers") from error
    library = f"libpython{python}.so.1.0"
    for folder in map(Path, done.stdout.splitlines()):
        if (folder / library).exists():
            return folder
    raise _unavailable(python, f"there is no {library}")


def _unavailable(python: str, why: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"the model's environment is for Python {python}, with which it cannot be served here: {why}",
        remedy=f"put a python{python} with a shared library onto PATH, or serve it in the target's container; a compile"
        " without the served check takes --no-check-served",
    )


_ONNXRUNTIME, _DALI, _PYTHON = "onnxruntime", "dali", "python"


def build_backend_folder(
    folder: Path,
    installation: Installation,
    site: Path | None = None,
    dali_site: Path | None = None,
    lent: Sequence[LentPython] = (),
) -> None:
    """Build a backend folder: Triton refuses a library linked from outside it, but follows a linked folder.

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


_REPOSITORY, _BACKENDS = "repository", "backends"


class TritonServer:
    """Context manager that starts `tritonserver` on a model repository and stops it.

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
        candidates = (lent_python(self._installation, python) for python in self._pythons)
        lent = [candidate for candidate in candidates if candidate is not None]
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
        """Stop the server and all processes it started. Idempotent."""
        self._cleanup.close()

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until the server exits, up to a timeout; return its exit status, None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def obituary(self, status: int, when: str) -> PlansmithError:
        """Return the error that explains why the server exited, given the status from `wait`.

        Args:
            status: minus the signal, where one ended it.
            when: words that say what was being done.
        """
        if self._limit is not None and self._limit.exceeded is not None:
            return self._too_large(self._limit.exceeded)
        if status == -signal.SIGKILL:
            cause, remedy = self._watch.verdict()
            return EnvironmentFault(f"Triton was killed {when}, {cause}", remedy=remedy, log=self.log)
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        return ServedCheckError(
            f"Triton ended with {how} {when}\n{reasons(self.log)}", remedy="read the log", log=self.log
        )

    def _launch(self, scratch: Path, undo: ExitStack) -> None:
        make_folder(self.log.parent)
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
        """Wait until the server is ready; return False when another program took one of its ports."""
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
        """Whether this server, and no other on the same port, is up."""
        try:
            metadata = json.loads(_get(self.http_url, "/v2"))
            _get(self.metrics_url, "/metrics")
            if self._exit_on_error:
                _get(self.http_url, "/v2/health/ready")
        except (OSError, http.client.HTTPException, ValueError):
            return False
        self.version = metadata["version"]
        return bool(metadata["name"] == self._token)

    def _too_large(self, size: int) -> EnvironmentFault:
        assert self._memory_bytes is not None
        return EnvironmentFault(
            f"Triton was ended: with its Python models it held {format_bytes(size)} of memory, and may hold"
            f" {format_bytes(self._memory_bytes)}",
            remedy="allow it more (plansmith serve --memory; the served check allows what this machine has free), or"
            " have it serve fewer models or instances",
            log=self.log,
        )

    def _failure(self, problem: str) -> ServedCheckError:
        return ServedCheckError(
            f"Triton did not load {self._repository}: {problem}\n{reasons(self.log)}",
            remedy="correct what the lines name, or read the log",
            log=self.log,
        )


def _plain_temporary_folder() -> str:
    """The folder for temporary files, or `/tmp` where its path has characters special to a shell."""
    usual = tempfile.gettempdir()
    return usual if _PLAIN.fullmatch(usual) else "/tmp"  # noqa: S108 - a name of its own is made in it


def _free_ports(numbers: Sequence[int]) -> list[int]:
    with ExitStack() as stack:
        ports = []
        for port in numbers:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError as error:
                raise EnvironmentFault(
                    f"port {port} of {HOST} cannot be used: {error.strerror}",
                    remedy="end the program that listens there, or give another port",
                ) from error
            ports.append(listener.getsockname()[1])
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
