"""One more probe for mixtures of experts: the same token everywhere, which reaches few of them.

Texts of many tokens reach all experts, so that a graph which has written down those of the traced text agrees at all of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from plansmith.compilers.export.exporters import Probe
from plansmith.system.memory import tells_of_memory

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

ALIKE = "one token everywhere"
_COUNTS = ("num_experts", "experts")
"""What a part with experts is known by."""


def mixes_experts(module: torch.nn.Module) -> bool:
    """Whether a model sends tokens to experts."""
    return any(hasattr(part, name) for part in module.modules() for name in _COUNTS)


def alike(probe: Probe, ask: Callable[[Arrays], Arrays]) -> Probe | None:
    """A probe with one token everywhere, and the model's answer; None where it takes no such text.

    Args:
        probe: gives the shape, and the token.
        ask: runs the model; raises anything where it does not take the inputs.
    """
    import numpy as np

    feed = {name: _of_one_token(array) for name, array in probe.feed.items()}
    if all(np.array_equal(feed[name], array) for name, array in probe.feed.items()):
        return None
    try:
        answer = ask(feed)
    except Exception as error:
        if tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        return None
    if any(not np.isfinite(array).all() for array in answer.values() if array.dtype.kind == "f"):
        return None
    return Probe(ALIKE, probe.axes, feed, answer)


def _of_one_token(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Token ids all alike; what holds flags or values stays."""
    import numpy as np

    if array.dtype.kind != "i" or array.size == 0 or int(np.asarray(array).max()) <= 1:
        return array
    return np.full_like(array, array.reshape(-1)[array.size // 2])
