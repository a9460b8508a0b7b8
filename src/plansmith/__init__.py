"""plansmith: compiles Hugging Face and timm models into validated, versioned Triton model repositories.

`compile`, `load`, `Release`, `Repository` and `Client` are the Python interface; what they raise is in
`plansmith.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plansmith.api import Release, Repository, compile, load  # noqa: A004
    from plansmith.client import Client

__version__ = "0.1.0"

__all__ = ["Client", "Release", "Repository", "__version__", "compile", "load"]

_HOMES = {"Client": "plansmith.client"}


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is first used: `import plansmith` alone loads nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'plansmith' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "plansmith.api")), name)
