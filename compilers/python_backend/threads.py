"""Threads of PyTorch in an instance on a CPU: the instances of a model share the cores, and do not fight for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from plansmith.errors import UsageError

INTRA_OP, INTER_OP = "INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT"
"""Parameters of a model's configuration, by the names of Triton's PyTorch backend (pytorch_backend, README.md)."""

_CPU = "KIND_CPU"


def set_threads(config: Mapping[str, Any]) -> None:
    """Set the threads of this process, before PyTorch does anything.

    Args:
        config: the model's configuration, as Triton's Python backend has it.

    Raises:
        UsageError: a parameter is no number of threads.
    """
    import torch

    intra_op, inter_op = thread_counts(config, len(os.sched_getaffinity(0)))
    torch.set_num_threads(intra_op)
    torch.set_num_interop_threads(inter_op)


def thread_counts(config: Mapping[str, Any], cores: int) -> tuple[int, int]:
    """Threads within and between operators of each instance.

    By default the cores are divided among the model's instances on the CPU, and operators run one after the other.

    Args:
        config: as for `set_threads`.
        cores: that the server may use.

    Raises:
        UsageError: a parameter is no number of threads.
    """
    groups = config.get("instance_group", ())
    instances = sum(int(group.get("count", 1)) for group in groups if group.get("kind") == _CPU)
    share = max(1, cores // max(1, instances))
    return _parameter(config, INTRA_OP) or share, _parameter(config, INTER_OP) or 1


def _parameter(config: Mapping[str, Any], name: str) -> int | None:
    text = config.get("parameters", {}).get(name, {}).get("string_value", "")
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(
            f"the parameter {name} is {text!r}, and no number of threads",
            remedy=f'write `triton: {{parameters: {{{name}: "2"}}}}` in the spec, or leave it out',
        )
    return int(text)
