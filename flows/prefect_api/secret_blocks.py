"""Secrets that a Prefect server keeps."""

from __future__ import annotations

from typing import Any

from plansmith.errors import UsageError
from plansmith.flows.prefect_api.api import asking, configured_api


def read_secret(name: str) -> str:
    """The value of a Secret block.

    Raises:
        UsageError: there is no such block, or it holds no text.
        EnvironmentFault: Prefect is not installed, or its API does not answer as it should.
    """
    shown = configured_api()
    from prefect.blocks.system import Secret

    with asking(shown) as client:
        # Prefect's own `load` says the same for a block that is not there and for an API that is away.
        client.read_flows(limit=1)
        try:
            block: Any = Secret.load(name)
        except ValueError as error:
            raise UsageError(
                f"the Prefect server has no Secret block {name}", remedy="make one in Prefect's pages under Blocks"
            ) from error
    value: object = block.get()
    if not isinstance(value, str):
        raise UsageError(f"the Secret block {name} holds no text", remedy="make it anew, with a text as its value")
    return value
