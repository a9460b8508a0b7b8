"""When Python looks for garbage in cycles.

With its default, every 700 new objects, it does so a thousand times while PyTorch and transformers are imported: a
quarter of the CPU time of that, and nothing is found.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_COLLECT_AFTER = 50_000


def collect_seldom() -> None:
    """Look for garbage every 50,000 new objects."""
    gc.set_threshold(_COLLECT_AFTER)


@contextmanager
def never_collected() -> Iterator[None]:
    """In the block, look for no garbage; what exists at its end is taken for no garbage from then on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.unregister(gc.unfreeze)
        atexit.register(gc.unfreeze)  # what is in cycles has to go before the libraries that it is of
        if was_enabled:
            gc.enable()
