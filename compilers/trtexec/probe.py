"""Which trtexec this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from plansmith.compilers.trtexec.output import banner_version
from plansmith.errors import EnvironmentFault

TRTEXEC_FOLDERS = (Path("/usr/src/tensorrt/bin"), Path("/opt/tensorrt/bin"))
"""Where NVIDIA's packages and containers put it."""

_SECONDS_TO_ANSWER = 60


def find_trtexec(folders: Sequence[Path] = TRTEXEC_FOLDERS) -> str | None:
    """The program, on PATH or where NVIDIA's packages and containers put it; None where there is none."""
    return shutil.which("trtexec") or shutil.which("trtexec", path=os.pathsep.join(map(str, folders)))


def version(program: str) -> str:
    """The three numbers of the TensorRT that a trtexec belongs to.

    It is run without arguments: it then prints a banner and its help, and touches no GPU.

    Raises:
        EnvironmentFault: it does not start, does not end, or is another program.
    """
    try:
        done = subprocess.run(
            [program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS_TO_ANSWER,
            check=False,
        )
    except OSError as error:
        raise EnvironmentFault(
            f"{program} cannot be run: {error.strerror}",
            remedy="set tensorrt: trtexec to the program, or use --builder api",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"{program} did not say its version within {_SECONDS_TO_ANSWER} s",
            remedy="run it by hand, without arguments; if it hangs, look at the GPU's driver with nvidia-smi",
        ) from error
    said = done.stdout.decode(errors="replace")
    found = banner_version(said)
    if not found:
        lines = said.strip().splitlines()
        raise EnvironmentFault(
            f"{program} does not say which TensorRT it belongs to: {lines[-1] if lines else 'it prints nothing'}",
            remedy="put the folder of TensorRT's libraries into LD_LIBRARY_PATH, and run it without arguments to see",
        )
    return ".".join(found.split(".")[:3])
