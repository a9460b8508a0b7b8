"""Libraries of plugins: loaded before anything that needs them, as Triton does."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

from plansmith.errors import EngineError, first_line

_REMEDY = "correct tensorrt: plugins, or build the library against this TensorRT"


def load_plugins(libraries: Iterable[str]) -> None:
    """Load libraries into this process; their plugins register themselves.

    Triton's backend opens those of its option `plugins` in the same way, so that a library which only tells of its
    plugins when it is asked for them would not work there either.

    Raises:
        EngineError: one is missing or cannot be loaded.
    """
    for library in libraries:
        if not Path(library).is_file():
            raise EngineError(f"the plugin library {library} is not there", remedy=_REMEDY)
        try:
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise EngineError(
                f"the plugin library {library} cannot be loaded: {first_line(error)}", remedy=_REMEDY
            ) from error
