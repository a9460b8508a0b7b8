"""Isolation: worker processes without network and without their user's credentials, for code that others wrote.

`python -m plansmith.system.isolation MODULE [ARGUMENT…]` isolates its process, where the kernel allows it, and becomes
the module. The process enters a user namespace with a network that leads nowhere and a view of the files in which the
places of credentials are empty (Linux user_namespaces(7), network_namespaces(7), mount_namespaces(7)). A second user
namespace inside the first takes away the right to undo that. Its home is a temporary folder, and its environment has
no variables that look like secrets. It is no virtual machine: what else its user can read and write, it can.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from plansmith.records.model import Isolation

_STATUS_VARIABLE = "PLANSMITH_ISOLATION"

# Linux sched.h and mount.h.
_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18

# In the home of a user; what is not there needs no hiding.
_CREDENTIALS = (
    *(".aws", ".azure", ".cache/huggingface/stored_tokens", ".cache/huggingface/token", ".config", ".docker"),
    *(".git-credentials", ".gnupg", ".huggingface", ".kube", ".local/share/keyrings", ".mlflow", ".netrc", ".prefect"),
    *(".pypirc", ".ssh"),
)
_NAMING_FILES = (
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN_PATH"),
    "KUBECONFIG",
)
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY|_KEY_ID$|_PIN$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"://[^/@\s]+@")  # a URL with a user, and most likely a password


def isolation_of_process() -> Isolation | None:
    """Return how this process was isolated; None if it was not to be."""
    status = os.environ.get(_STATUS_VARIABLE)
    return Isolation.model_validate_json(status) if status else None


def _isolate() -> Isolation:
    """Isolate this process, which may have one thread alone."""
    home = Path.home()
    hidden = [*_hidden(home)]
    private = tempfile.mkdtemp(prefix="home-")
    kept = os.environ.get("HF_HUB_CACHE") or str(_hub_cache(home))
    for name in [name for name, value in os.environ.items() if _is_secret(name, value)]:
        del os.environ[name]
    for name in [name for name in os.environ if name.startswith("XDG_") or name == "HF_HOME"]:
        del os.environ[name]
    os.environ |= {"HOME": private, "HF_HUB_CACHE": kept}
    try:
        _enter(_NEW_USER | _NEW_MOUNTS | _NEW_NETWORK)
        _mount(None, Path("/"), _RECURSIVE | _PRIVATE)
        for path in hidden:
            if path.is_dir():
                _mount("tmpfs", path, _READ_ONLY | _NO_SUID | _NO_DEVICES)
            else:
                _mount("/dev/null", path, _BIND)
        _enter(_NEW_USER | _NEW_MOUNTS)
    except OSError as error:
        return Isolation(complete=False, problem=error.strerror or str(error))
    os.environ["HF_HUB_OFFLINE"] = "1"  # it would wait for answers
    return Isolation(complete=True)


def _hub_cache(home: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub"


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def _hidden(home: Path) -> Iterator[Path]:
    """Yield the places of credentials that there are."""
    named = (path for name in _NAMING_FILES for path in os.environ.get(name, "").split(os.pathsep) if path)
    for place in (*(home / name for name in _CREDENTIALS), *map(Path, named)):
        if place.exists():
            yield place.resolve()


def _enter(namespaces: int) -> None:
    """Enter new namespaces, one of users among them, with the same users and groups as far as this process may say so.

    A process outside has to say who is who inside: one that may map all users writes down all, for files of others keep
    their owners then.
    """
    entered, tell = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(tell)
        status = 1
        try:
            if os.read(entered, 1):
                _map_users(os.getppid())
                status = 0
        finally:
            os._exit(status)
    os.close(entered)
    try:
        _check(_libc().unshare(namespaces))
        os.write(tell, b".")
    finally:
        os.close(tell)
        _, status = os.waitpid(helper, 0)
    if status != 0:
        raise PermissionError(errno.EPERM, "users cannot be mapped into a namespace")


def _map_users(process: int) -> None:
    """Map users and groups into the namespace of a process: all of them, or the own ones where that is not allowed."""
    for file, own in (("uid_map", os.getuid()), ("gid_map", os.getgid())):
        try:
            Path(f"/proc/{process}/{file}").write_text("0 0 4294967295")
        except PermissionError:
            if file == "gid_map":
                Path(f"/proc/{process}/setgroups").write_text("deny")
            Path(f"/proc/{process}/{file}").write_text(f"{own} {own} 1")


def _mount(source: str | None, target: Path, flags: int) -> None:
    kind = b"tmpfs" if source == "tmpfs" else None
    _check(_libc().mount(source.encode() if source else None, os.fsencode(target), kind, ctypes.c_ulong(flags), None))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(module: str, *arguments: str) -> None:
    """Isolate this process, and run a module in it as `python -m` does."""
    os.environ[_STATUS_VARIABLE] = _isolate().model_dump_json()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
