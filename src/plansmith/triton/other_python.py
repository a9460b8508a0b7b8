"""Python models whose environment is for another Python than the server here runs them with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from plansmith.errors import EnvironmentFault
from plansmith.triton.installation import RUNNING_PYTHON, Installation

_SECONDS_TO_ANSWER = 60
_ASK = """
import sys, sysconfig
sys.version_info[:2] == ({numbers}) or sys.exit("it is another Python")
print(sysconfig.get_config_var("LIBDIR"), sys.base_prefix + "/lib", sep="\\n")
"""


def lend_stub(installation: Installation, python: str, model: Path) -> Path | None:
    """Give a model the process of the Python that its environment is for, where the server has one beside its own.

    Args:
        installation: the server.
        python: such as "3.12".
        model: the model's folder in a repository.

    Returns:
        The folder of that Python's library, which the server has to find; None where its own process is the right one.

    Raises:
        EnvironmentFault: the server has no such process, or this machine no such Python.
    """
    if installation.stub is None or not installation.lends_python or python == RUNNING_PYTHON:
        return None
    stub = installation.stub.parents[1] / python / installation.stub.name
    if not stub.is_file():
        raise _unavailable(python, f"{installation.binary} has no Python backend for it")
    folder = _library_folder(python)
    shutil.copy2(stub, model)
    return folder


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
        remedy=f"put a python{python} with a shared library onto PATH, or compile with --no-check-served",
    )
