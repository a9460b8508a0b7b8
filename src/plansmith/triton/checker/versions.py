"""Which folders of a model Triton takes for versions, and which of them it loads.

The rules are those of VersionsToLoad in src/model_repository_manager/model_lifecycle.cc of
github.com/triton-inference-server/core, as Triton 2.51 was seen to follow them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

NO_VERSIONS = frozenset({"configs", "initial_state", "warmup"})
"""Folders beside the versions that Triton knows."""

LARGEST = 2**63 - 1
_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)


def version_of(name: str) -> int | None:
    """The version that Triton takes a folder for, by the digits that its name begins with; None where it is none.

    A number above `LARGEST` ends the server.
    """
    if name in NO_VERSIONS or (len(name) > 1 and name.startswith("0")):
        return None
    found = _NUMBER.match(name)
    return int(found[1]) if found else None


def is_plain(name: str) -> bool:
    """Whether a folder is found under the number that it is taken for."""
    number = version_of(name)
    return number is not None and 0 <= number <= LARGEST and str(number) == name


def versions_to_load(config: pb.ModelConfig | None, numbers: Iterable[int]) -> tuple[int, ...]:
    """The versions that the policy of a configuration chooses, ascending; of none the newest alone."""
    present = sorted(set(numbers))
    policy = config.version_policy if config is not None else None
    choice = policy.WhichOneof("policy_choice") if policy is not None else None
    if policy is not None and choice == "specific":
        return tuple(number for number in present if number in policy.specific.versions)
    if choice == "all" or (config is not None and config.HasField("version_policy") and choice is None):
        return tuple(present)
    count = policy.latest.num_versions if policy is not None and choice == "latest" else 1
    return tuple(present[-count:]) if count else ()
