"""What the outputs of a model hold, as far as names, dims and the task's measure tell.

- Class scores: floating point, [batch, classes] or [batch, sequence, classes] with a fixed number of classes, two or
  more; either the task's measure reads such (accuracy, token-f1) and the name does not say vectors (embedding, hidden,
  pooled, features), or the name says scores (logits, probabilities) and the measure is not one of embeddings.
- Position scores: [batch, sequence] over the axes of the mask, where the task is to find an answer or where the name
  says start or end: classes too, of which padding is none.
- Embeddings: [batch, width] that are no scores, and [batch, sequence, width] where `pooling` says how they become one.
- Values: one number a sample.
- Anything else has a distance and nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from plansmith.data.task import names_vectors
from plansmith.errors import UsageError
from plansmith.records.model import Measured, Pooling, Tensor

_SCORES = re.compile(r"logit|prob|score|softmax", re.IGNORECASE)
_SPAN_END = re.compile(r"(^|_)(start|end)(_|$)", re.IGNORECASE)
_OF_EMBEDDINGS = ("spearman", "neighbours")


class Role(StrEnum):
    """What one output holds."""

    CLASSES = "class scores"
    TAGS = "class scores of tokens"
    POSITIONS = "scores of positions"
    EMBEDDING = "embeddings"
    VALUE = "one value a sample"
    OTHER = "numbers"


@dataclass(frozen=True)
class Task:
    """What is measured, and how vectors of tokens become one of a sentence."""

    metric: Measured = "none"
    pooling: Pooling = "none"


def role_of(output: Tensor, mask: Tensor | None, task: Task) -> Role:
    """What an output holds; see the module for the rules."""
    if not output.dtype.startswith(("float", "bfloat")):
        return Role.OTHER
    rank, width = len(output.dims), output.dims[-1] if output.dims else 1
    if rank == 1 or (rank == 2 and width == 1):
        return Role.VALUE
    if rank == 2 and mask is not None and output.dims == mask.dims:
        named = _SPAN_END.search(output.name) is not None
        return Role.POSITIONS if named or task.metric == "answer-f1" else Role.OTHER
    if rank not in (2, 3) or not isinstance(width, int):
        return Role.OTHER
    if _holds_scores(output, task):
        return Role.CLASSES if rank == 2 else Role.TAGS
    return Role.EMBEDDING if rank == 2 or task.pooling != "none" else Role.OTHER


def _holds_scores(output: Tensor, task: Task) -> bool:
    if task.metric == ("accuracy" if len(output.dims) == 2 else "token-f1"):
        return not names_vectors(output.name)
    return _SCORES.search(output.name) is not None and task.metric not in _OF_EMBEDDINGS


def measured_outputs(outputs: Sequence[Tensor], mask: Tensor | None, task: Task) -> tuple[Tensor, ...]:
    """The outputs that the task's measure reads: none, one, or the start and the end of an answer.

    Of several that hold the same, those with "logits" in the name come first, then those that are pooled, then the
    model's order decides.

    Raises:
        UsageError: the model has no such output.
    """
    wanted = {
        "none": (),
        "accuracy": (Role.CLASSES,),
        "token-f1": (Role.TAGS,),
        "answer-f1": (Role.POSITIONS,),
        "spearman": (Role.EMBEDDING, Role.VALUE),
        "neighbours": (Role.EMBEDDING,),
    }[task.metric]
    if not wanted:
        return ()
    fitting = [o for role in wanted for o in outputs if role_of(o, mask, task) is role]
    if task.metric == "answer-f1":
        ends = [[o for o in fitting if word in o.name.lower()] for word in ("start", "end")]
        found = tuple(end[0] for end in ends if end) if all(ends) else tuple(fitting) if len(fitting) == 2 else ()
    else:
        found = tuple(sorted(fitting, key=lambda o: ("logits" not in o.name.lower(), -len(o.dims)))[:1])
    if not found:
        has = ", ".join(f"{o.name} [{', '.join(map(str, o.dims))}]" for o in outputs)
        raise UsageError(
            f"data.metric: {task.metric} is measured on {' or '.join(wanted)}, and the model has only {has}",
            remedy="set `metric` in `data` to another measure, or to none",
        )
    return found
