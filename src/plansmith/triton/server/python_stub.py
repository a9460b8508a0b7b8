"""Python models whose environment is for another Python than the server here runs them with.

The server of the private folder has a process (the stub of Triton's Python backend) for each of several Pythons, and is
laid out with that of the running one. Where models bring the packages of others, a script stands in its place, and
becomes the process that the model's environment is for. A process beside the model would do as well, but a repository
is not ours to write into.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import RUNNING_PYTHON, Installation

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


@dataclass(frozen=True)
class LentPython:
    """A Python beside the one that a server runs models with.

    Attributes:
        python: such as "3.12".
        stub: the process that runs models with it.
        libraries: the folder of its library, which that process has to find.
    """

    python: str
    stub: Path
    libraries: Path


def lent_python(installation: Installation, python: str) -> LentPython | None:
    """What a server needs to run models with another Python; None where its own process is the right one.

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
    """All that a server can run models with here, beside the running one."""
    if installation.stub is None or not installation.lends_python:
        return []
    found = []
    for python in sorted(folder.name for folder in installation.stub.parents[1].iterdir()):
        with suppress(EnvironmentFault):
            if lent_python(installation, python) is not None:
                found.append(python)
    return found


def write_choosing_stub(stub: Path, own: Path, lent: Iterable[LentPython]) -> None:
    """Write the script that stands for the stubs of several Pythons.

    Args:
        stub: where Triton looks for the process of Python models.
        own: that of the running Python, for whatever brings no environment for another one.
        lent: the others.
    """
    cases = (_CASE.format(python=one.python, stub=_quoted(one.stub), libraries=_quoted(one.libraries)) for one in lent)
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
