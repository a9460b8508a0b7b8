"""The Python and the machine that packages are chosen for, which need not be those that run here."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from plansmith.config.target.targets import Target

_GLIBC = 34
"""2.34: Ubuntu 22.04 (2.35) and 24.04 (2.39), which Triton's images are made from, have a newer one."""

_OLDEST_GLIBC = 17
_OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")


@dataclass(frozen=True)
class Platform:
    """What packages have to run on.

    Args:
        python: such as "3.12".
        machine: such as "x86_64".
        glibc: the newest version of glibc that they may need, without the "2.".
    """

    python: str
    machine: str
    glibc: int = _GLIBC

    def markers(self) -> dict[str, str]:
        """The values of environment markers there (PEP 508).

        pip takes those of the Python that it runs with, whatever it is asked for. Of the Python's patch release nothing
        is known: as of the first, so that what only the first ones lack is packed, too.
        """
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def pip_flags(self) -> list[str]:
        """What makes pip take wheels for there and no others."""
        abi = f"cp{self.python.replace('.', '')}"
        names = [f"manylinux_2_{minor}" for minor in range(self.glibc, _OLDEST_GLIBC - 1, -1)]
        tags = [f"--platform={name}_{self.machine}" for name in (*names, *_OLD_NAMES)]
        abis = [f"--abi={one}" for one in (abi, "abi3", "none")]
        return [f"--python-version={self.python}", "--implementation=cp", *abis, *tags]


def platform_of(target: Target) -> Platform:
    """That of the Triton of a target; of one whose Python nothing states, that of this machine."""
    machine = platform.machine()
    if target.python is not None:
        return Platform(".".join(target.python.split(".")[:2]), machine)
    name, number = platform.libc_ver()
    own = int(number.split(".")[1]) if name == "glibc" else _GLIBC
    return Platform(f"{sys.version_info.major}.{sys.version_info.minor}", machine, min(own, _GLIBC))
