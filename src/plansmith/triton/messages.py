"""Triton's protobuf messages of model configurations, without the client that they lie in.

`import tritonclient.grpc.model_config_pb2` imports the client as well, and with it gRPC and NumPy: a third of a second,
where all that is wanted is to read or write a `config.pbtxt`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["model_config_pb2"]

_NAME = "tritonclient.grpc.model_config_pb2"


def _load() -> ModuleType:
    """Import the module from its file, under its name: whoever imports the client later finds it there.

    Raises:
        ModuleNotFoundError: `tritonclient` is not installed.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = importlib.util.find_spec("tritonclient")
    if package is None or package.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'tritonclient'", name="tritonclient")
    file = Path(package.submodule_search_locations[0], "grpc", "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location(_NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2
else:
    model_config_pb2 = _load()
