"""Nothing that is wrong with an answer, and no measure that cannot be taken, goes by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plansmith.errors import UsageError
from plansmith.records.model import Tensor
from plansmith.validation.metrics.agreement import Task

from ...support.validation.judged import HIDDEN, LOOSE, START, TAGS, TASKS, VECTOR, Material, cosines, labelled, means

NAMES = {
    "sentences": "same nearest neighbour",
    "pairs": "Spearman correlation",
    "values": "Spearman correlation",
    "classes": "top-1 accuracy",
    "tokens": "token F1 (macro)",
    "answers": "same answer as FP32",
}


class TestFailures:
    @pytest.mark.parametrize("wrong", [np.nan, np.inf])
    def test_non_number_named_with_sample(self, wrong: float) -> None:
        """What is no number is named with its sample."""
        material = Material(VECTOR)
        material.candidate["vector"][7, 2] = wrong
        (agreement,) = material.judge(tolerances={"vector": LOOSE}).agreements
        assert agreement.failures == ("sample 107: NaN or Inf in the candidate's answer",)
        assert agreement.min_cosine == pytest.approx(-1.0)

    def test_non_number_reference_proves_nothing(self) -> None:
        """A reference that is no number proves nothing."""
        material = Material(VECTOR)
        material.reference["vector"][7] = np.nan
        material.candidate["vector"][7] = np.nan
        assert "sample 107: NaN or Inf in the reference's answer" in material.judge().agreements[0].failures

    def test_other_shape_named_rest_counted(self) -> None:
        """Another shape is named, and the rest is counted."""
        material = Material(VECTOR)
        material.candidate["vector"] = material.candidate["vector"][:, :12]
        (agreement,) = material.judge(tolerances={"vector": LOOSE}).agreements
        assert agreement.failures[0] == "sample 100: shape is 24x12, expected 24x16"
        assert agreement.failures[-1] == "21 further samples have no answer that can be compared"

    @pytest.mark.parametrize("task", TASKS)
    def test_non_number_answer_always_wrong(self, task: str) -> None:
        """An answer that is no number is wrong for every measure."""
        material = labelled(task)
        for array in material.candidate.values():
            array[:] = np.nan
        metrics = material.judge(TASKS[task][0]).metrics
        assert metrics
        assert all(m.failures for m in metrics if m.reference > 0.1)

    def test_constant_answer_proves_nothing(self) -> None:
        """One answer to all samples proves nothing."""
        material = Material(HIDDEN, VECTOR)
        for side in (material.reference, material.candidate):
            side["hidden"][:] = side["hidden"][0, 0]
            side["vector"][:] = side["vector"][0]
        for pooling in ("none", "mean"):
            evaluation = material.judge(Task(pooling=pooling), batch=5)
            assert all("does not vary between different samples" in a.failures for a in evaluation.agreements)

    def test_mean_and_worst_cosine_limited_separately(self) -> None:
        """The mean and the worst cosine have limits of their own."""
        material = Material(VECTOR, noise=0.3)
        mean = LOOSE.model_copy(update={"min_mean_cosine": 0.999})
        worst = LOOSE.model_copy(update={"min_cosine": 0.999})
        (failure,) = material.judge(tolerances={"vector": mean}).failures()
        assert failure.startswith("output 'vector' on 24 held-out samples: mean cosine of the samples is 0.9")
        (failure,) = material.judge(tolerances={"vector": worst}).failures()
        assert failure.startswith("output 'vector' on 24 held-out samples: smallest cosine of a sample is 0.")

    @pytest.mark.parametrize("task", TASKS)
    def test_falling_measure_fails_by_name(self, task: str) -> None:
        """A measure that falls fails by its name."""
        material = labelled(task)
        if task == "classes":
            material.labels["class"] = material.reference["logits"].argmax(axis=1)
        if task == "tokens":
            material.labels["tags"] = material.reference["logits"].argmax(axis=2)
        if task == "values":
            material.labels["score"] = material.reference["logits"][:, 0].astype(np.float64)
        if task == "pairs":
            means_ = means(material.reference["hidden"], material.mask)
            material.labels["score"][::2] = cosines(means_[::2], means_[1::2])
        if task == "answers":
            del material.labels["start"]
        material.candidate = {k: material.near(v, 3.0) for k, v in material.reference.items()}
        metrics = material.judge(TASKS[task][0]).metrics
        assert metrics[0].name == NAMES[task]
        assert metrics[0].reference == pytest.approx(1.0)
        assert all("allowed" in failure for m in metrics for failure in m.failures)
        assert metrics[0].failures

    def test_own_limit_replaces_precision_limit(self) -> None:
        """A limit of one's own replaces the one of the precision."""
        material = labelled("sentences")
        assert material.judge(TASKS["sentences"][0]).metrics[0].failures
        generous = material.judge(TASKS["sentences"][0], max_metric_drop=1.0).metrics[0]
        assert (generous.failures, generous.max_drop) == ((), 1.0)


class TestWithoutLabels:
    @pytest.mark.parametrize(
        ("task", "name"),
        [
            ("classes", "same first class"),
            ("tokens", "same class of a token"),
            ("answers", "same answer as FP32"),
            ("pairs", "same nearest neighbour"),
        ],
    )
    def test_agreement_with_fp32_measured(self, task: str, name: str) -> None:
        """What is measured is the agreement with FP32."""
        material = Material(*TASKS[task][1], noise=0.8)
        metric = material.judge(TASKS[task][0]).metrics[0]
        assert metric.name == name
        assert metric.reference == pytest.approx(1.0)
        assert 0 < metric.candidate < 1

    def test_labels_below_zero_are_none(self) -> None:
        material = labelled("classes")
        material.labels["class"][:] = -100
        assert [m.name for m in material.judge(TASKS["classes"][0]).metrics] == ["same first class"]


class TestRefusals:
    def test_label_without_class_refused(self) -> None:
        """A label that the model has no class for is refused."""
        for task, label in (("classes", "class"), ("tokens", "tags")):
            material = labelled(task)
            material.labels[label][0] = 9
            with pytest.raises(UsageError, match="a label is 9, and logits has 9 classes"):
                material.judge(TASKS[task][0])

    @pytest.mark.parametrize(
        ("task", "output"),
        [("accuracy", HIDDEN), ("token-f1", VECTOR), ("answer-f1", START), ("neighbours", HIDDEN), ("spearman", TAGS)],
    )
    def test_measure_without_output_refused(self, task: Any, output: Tensor) -> None:
        """A measure without an output to read is refused."""
        with pytest.raises(UsageError, match=rf"data.metric: {task} is measured on .*, and the model has only"):
            Material(output).judge(Task(task))
