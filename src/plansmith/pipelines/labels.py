"""The part that makes labels of a classifier's logits, whatever the classifier looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from plansmith.pipelines.draft import DraftPart
from plansmith.pipelines.served.postprocessing.labels import LABEL, SCORE, LabelsStep, ScoresStep
from plansmith.records.model import BATCH, Tensor

Scoring = Literal["softmax", "sigmoid", "none"]
"""What makes scores of logits."""


def scores_part(logits: Tensor, names: Sequence[str], *, scoring: Scoring) -> DraftPart:
    """The part behind a classifier whose clients want the scores of all classes, in their order; as `labels_part`."""
    return DraftPart(
        name="scores",
        step=ScoresStep,
        settings={"logits": logits.name, "apply": scoring},
        inputs=(logits,),
        outputs=(Tensor(name=SCORE, dtype="float32", dims=(BATCH, len(names))),),
    )


def labels_part(logits: Tensor, names: Sequence[str], *, scoring: Scoring, top_k: int) -> DraftPart:
    """The part behind a classifier.

    Args:
        logits: the model's output [batch, classes].
        names: of all classes, in their order.
        scoring: what makes scores of logits.
        top_k: how many labels an answer has; all where there are fewer.
    """
    count = min(top_k, len(names))
    return DraftPart(
        name="labels",
        step=LabelsStep,
        settings={"logits": logits.name, "labels": list(names), "top_k": count, "apply": scoring},
        inputs=(logits,),
        outputs=(
            Tensor(name=LABEL, dtype="string", dims=(BATCH, count)),
            Tensor(name=SCORE, dtype="float32", dims=(BATCH, count)),
        ),
    )
