"""Instances of a PyTorch model on a CPU share the cores."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.compilers.python_backend.run import thread_counts
from plansmith.errors import UsageError


def config(*groups: tuple[str, int], **parameters: str) -> dict[str, Any]:
    return {
        "instance_group": [{"kind": f"KIND_{kind}", "count": count} for kind, count in groups],
        "parameters": {name: {"string_value": text} for name, text in parameters.items()},
    }


@pytest.mark.parametrize(
    ("groups", "cores", "threads"),
    [
        ((("CPU", 1),), 8, 8),
        ((("CPU", 2),), 8, 4),
        ((("CPU", 3),), 8, 2),
        ((("CPU", 4),), 2, 1),
        ((("CPU", 1), ("CPU", 3)), 8, 2),
        ((("GPU", 2),), 8, 8),
    ],
)
def test_instances_share_the_cores(groups: tuple[tuple[str, int], ...], cores: int, threads: int) -> None:
    """No more threads run than there are cores, and each instance has one or more."""
    assert thread_counts(config(*groups), cores) == (threads, 1)


def test_parameters_set_the_threads() -> None:
    """The parameters of Triton's PyTorch backend count, and one that is no number is refused."""
    assert thread_counts(config(("CPU", 4), INTRA_OP_THREAD_COUNT="3", INTER_OP_THREAD_COUNT="2"), 8) == (3, 2)
    for text in ("0", "-1", "many", "1.5"):
        with pytest.raises(UsageError, match="INTRA_OP_THREAD_COUNT"):
            thread_counts(config(INTRA_OP_THREAD_COUNT=text), 8)
