"""Taking shared memory back from a Triton."""

from __future__ import annotations

import time
from typing import Any

from tritonclient.utils import InferenceServerException

SECONDS = 60


def let_go(client: Any, region: str = "") -> None:
    """Have a server let a region go, or all of them, once it is done with it: a moment after it has answered."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            client.unregister_system_shared_memory(region)
        except InferenceServerException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
