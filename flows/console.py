"""What Prefect writes to the terminal, settled before it is imported: afterwards it has made up its mind."""

from __future__ import annotations

import os
from typing import Literal

from plansmith.errors import EnvironmentFault


def prepare_prefect(console: Literal["INFO", "CRITICAL"]) -> None:
    """Keep Prefect from reporting its use to its makers, and from writing less grave things than these to the terminal.

    What the environment says otherwise stands.

    Raises:
        EnvironmentFault: Prefect is not installed.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    for what in ("LOGGING_HANDLERS_CONSOLE_LEVEL", "INTERNAL_LOGGING_LEVEL"):
        os.environ.setdefault(f"PREFECT_{what}", console)
    try:
        import prefect.settings  # noqa: F401 - whether it is there
    except ImportError as error:
        raise EnvironmentFault("Prefect is not installed", remedy="pip install 'plansmith[flows]'") from error
