"""The parameter by which an ensemble names its members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MEMBERS_PARAMETER = "plansmith.members"
"""Of the configuration of a script: the names of the models that it asks, separated by commas.

Triton loads the models of an ensemble's steps by itself, and knows nothing of what a Python model may ask.
"""


def put_members(config: Any, names: Iterable[str]) -> None:
    """Note in the configuration of a script what models it asks."""
    config.parameters[MEMBERS_PARAMETER].string_value = ",".join(dict.fromkeys(names))
