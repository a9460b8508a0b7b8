"""Whether a model fits into memory, told before it is loaded."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

from plansmith.errors import EnvironmentFault
from plansmith.formatting import format_bytes
from plansmith.system.memory import usable_memory

# Measured on BERT of 8 layers (308 MiB in FP32, inputs of 3 x 32): the worker held 0.8 GiB with its libraries alone,
# and beyond that 3.1 times the weights with TorchScript, 4.4 times with torch.export. What the first cannot do,
# nothing can; activations of large shapes come on top.
LIBRARIES_BYTES = 800 << 20
TIMES_WEIGHTS = 3.1

_FP32_BYTES = 4
_PICKLES = ("*.bin", "*.pt", "*.pth")


def require_memory(folder: Path, usable: int | None = None) -> None:
    """See that loading and exporting a model has a chance.

    Args:
        folder: holds its weights.
        usable: bytes that this process can still take; asked of the kernel where it is None.

    Raises:
        EnvironmentFault: it has none.
    """
    weights = weights_bytes(folder)
    needed = LIBRARIES_BYTES + round(TIMES_WEIGHTS * weights)
    left = usable_memory() if usable is None else usable
    if needed > left:
        raise EnvironmentFault(
            f"the model does not fit into memory: its weights are {format_bytes(weights)} in FP32, exporting them"
            f" takes {format_bytes(needed)} or more, and {format_bytes(left)} are left",
            remedy="use a machine (or a container: docker run --memory) with more memory, or a smaller model",
        )


def weights_bytes(folder: Path) -> int:
    """What the weights of a folder take once they are loaded, in FP32: by their files' headers, none is read whole."""
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return sum(_safetensors_bytes(path) for path in found)
    return sum(path.stat().st_size for pattern in _PICKLES for path in folder.glob(pattern))


def _safetensors_bytes(path: Path) -> int:
    """As FP32, of one file; the form of its header: https://huggingface.co/docs/safetensors/index#format."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, path.stat().st_size)))
        tensors = (about for name, about in header.items() if name != "__metadata__")
        return sum(_FP32_BYTES * math.prod(about["shape"]) for about in tensors)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        return path.stat().st_size  # whoever loads it says what is wrong with it
