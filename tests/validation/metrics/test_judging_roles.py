"""What an output holds is told by its name, its dims and the task's measure."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.records.model import Tensor
from plansmith.validation.metrics.agreement import Role, Task, measured_outputs, role_of

AXES = ("batch", "sequence")
MASK = Tensor(name="attention_mask", dtype="int64", dims=AXES)


def tensor(name: str, *dims: int | str, dtype: str = "float32") -> Tensor:
    return Tensor(name=name, dtype=dtype, dims=dims)


@pytest.mark.parametrize(
    ("output", "task", "role"),
    [
        (tensor("logits", "batch", 10), Task(), Role.CLASSES),
        (tensor("output", "batch", 10), Task(), Role.EMBEDDING),
        (tensor("output", "batch", 10), Task("accuracy"), Role.CLASSES),
        (tensor("pooler_output", "batch", 10), Task("accuracy"), Role.EMBEDDING),
        (tensor("logits", "batch", 10), Task("neighbours"), Role.EMBEDDING),
        (tensor("features", "batch", 10), Task(), Role.EMBEDDING),
        (tensor("probabilities", "batch", 2), Task(), Role.CLASSES),
        (tensor("logits", "batch", 1), Task(), Role.VALUE),
        (tensor("score", "batch"), Task(), Role.VALUE),
        (tensor("logits", *AXES, 10), Task(), Role.TAGS),
        (tensor("output", *AXES, 10), Task("token-f1"), Role.TAGS),
        (tensor("last_hidden_state", *AXES, 10), Task("token-f1"), Role.OTHER),
        (tensor("last_hidden_state", *AXES, 10), Task("accuracy"), Role.OTHER),
        (tensor("last_hidden_state", *AXES, 10), Task("neighbours", "mean"), Role.EMBEDDING),
        (tensor("start_logits", *AXES), Task(), Role.POSITIONS),
        (tensor("begin", *AXES), Task("answer-f1"), Role.POSITIONS),
        (tensor("weights", *AXES), Task(), Role.OTHER),
        (tensor("maps", "batch", 3, 8, 8), Task(), Role.OTHER),
        (tensor("logits", "batch", "classes"), Task(), Role.OTHER),
        (tensor("logits", "batch", 10, dtype="int64"), Task(), Role.OTHER),
        (tensor("logits", "batch", 10, dtype="float16"), Task(), Role.CLASSES),
    ],
)
def test_the_role_of(output: Tensor, task: Task, role: Role) -> None:
    assert role_of(output, MASK, task) is role


@pytest.mark.parametrize(
    ("task", "outputs", "measured"),
    [
        (Task(), ["logits", "hidden"], []),
        (Task("accuracy"), ["pooled", "auxiliary", "logits"], ["logits"]),
        (Task("neighbours", "mean"), ["pooled", "hidden"], ["hidden"]),
        (Task("neighbours"), ["pooled", "hidden"], ["pooled"]),
        (Task("answer-f1"), ["end_logits", "start_logits"], ["start_logits", "end_logits"]),
        (Task("spearman"), ["value"], ["value"]),
        (Task("spearman", "mean"), ["value", "hidden"], ["hidden"]),
    ],
)
def test_the_measure_reads(task: Task, outputs: list[str], measured: list[str]) -> None:
    dims: dict[str, tuple[Any, ...]] = {
        "logits": ("batch", 10),
        "auxiliary": ("batch", 10),
        "pooled": ("batch", 16),
        "hidden": (*AXES, 16),
        "value": ("batch", 1),
        "start_logits": AXES,
        "end_logits": AXES,
    }
    result = measured_outputs([tensor(name, *dims[name]) for name in outputs], MASK, task)
    assert [output.name for output in result] == measured
