"""A set of samples is judged batch by batch, and nothing that is wrong with an answer goes by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn.neighbors import NearestNeighbors

from plansmith.comparison import TOLERANCES
from plansmith.errors import UsageError
from plansmith.judging import Judge
from plansmith.reference import StoredCase
from plansmith.reports import Evaluation, Tolerance
from plansmith.roles import Task
from plansmith.types import Component, Precision, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

SAMPLES, LENGTH = 24, 7
AXES = ("batch", "sequence")
LOOSE = Tolerance(max_relative=9, quantile_relative=9, min_cosine=-1, min_mean_cosine=-1)


def component(*outputs: Tensor) -> Component:
    inputs = tuple(Tensor(name=n, dtype="int64", dims=AXES) for n in ("input_ids", "attention_mask"))
    return Component(file="model.onnx", external_files=(), inputs=inputs, outputs=outputs, opset=17, ir_version=8)


HIDDEN = Tensor(name="hidden", dtype="float32", dims=(*AXES, 16))
VECTOR = Tensor(name="vector", dtype="float32", dims=("batch", 16))
LOGITS = Tensor(name="logits", dtype="float32", dims=("batch", 9))
TAGS = Tensor(name="logits", dtype="float32", dims=(*AXES, 9))
START, END = (Tensor(name=f"{n}_logits", dtype="float32", dims=AXES) for n in ("start", "end"))
PLACES = Tensor(name="places", dtype="int64", dims=("batch", 9))
VALUE = Tensor(name="logits", dtype="float32", dims=("batch", 1))


class Material:
    """Answers of a reference, and of a candidate that is off by some noise, to sentences of different lengths."""

    def __init__(self, *outputs: Tensor, noise: float = 0.05, precision: Precision = Precision.INT8) -> None:
        self.rng = np.random.default_rng(8)
        self.component = component(*outputs)
        self.precision = precision
        lengths = 2 + np.arange(SAMPLES) % (LENGTH - 1)
        self.mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
        self.reference = {t.name: self.draw(t) for t in outputs}
        self.candidate = {k: self.near(v, noise) for k, v in self.reference.items()}
        self.labels: Arrays = {}

    def draw(self, output: Tensor) -> NDArray[Any]:
        sizes = [{"batch": SAMPLES, "sequence": LENGTH}.get(str(d), d) for d in output.dims]
        drawn = self.rng.normal(size=[int(s) for s in sizes])
        return (drawn * 100).astype(np.int64) if output.dtype == "int64" else drawn.astype(np.float32)

    def near(self, answer: NDArray[Any], noise: float) -> NDArray[Any]:
        if answer.dtype.kind == "i":
            return answer.copy()
        return (answer + noise * self.rng.normal(size=answer.shape)).astype(np.float32)

    def judge(
        self,
        task: Task | None = None,
        *,
        tolerances: Mapping[str, Tolerance] | None = None,
        batch: int = SAMPLES,
        **options: Any,
    ) -> Evaluation:
        """What a judge says who gets the samples in batches of this size."""
        limits = {t.name: TOLERANCES[self.precision] for t in self.component.outputs} | dict(tolerances or {})
        judge = Judge(
            self.component,
            "attention_mask",
            task=task or Task(),
            precision=self.precision,
            tolerances=limits,
            **options,
        )
        for stored, answer, rows in self.batches(batch):
            judge.add(stored, answer, rows)
        return judge.evaluation("samples of the tests")

    def batches(self, size: int) -> Iterator[tuple[StoredCase, Arrays, Sequence[int]]]:
        for start in range(0, SAMPLES, size):
            here = slice(start, start + size)
            part = [{k: v[here] for k, v in side.items()} for side in (self.reference, self.candidate, self.labels)]
            feed = {"input_ids": self.mask[here], "attention_mask": self.mask[here]}
            stored = StoredCase("case", feed, part[0], np.arange(len(self.mask[here])), part[2])
            yield stored, part[1], range(100 + start, 100 + start + size)


def means(hidden: NDArray[Any], mask: NDArray[Any]) -> NDArray[np.float64]:
    weights = mask[..., None].astype(np.float64)
    return np.asarray((hidden * weights).sum(axis=1) / weights.sum(axis=1))


def cosines(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


class TestTheNumbers:
    def test_sentences_are_compared_by_their_pooled_vectors_without_padding(self) -> None:
        material = Material(HIDDEN, noise=0.4)
        hidden = material.candidate["hidden"]
        hidden[material.mask == 0] = np.nan
        (agreement,) = material.judge(Task(pooling="mean")).agreements
        expected = cosines(
            means(material.reference["hidden"], material.mask), means(np.nan_to_num(hidden), material.mask)
        )
        assert (agreement.mean_cosine, agreement.min_cosine) == pytest.approx((expected.mean(), expected.min()))
        first = cosines(material.reference["hidden"][:, 0], hidden[:, 0])
        (agreement,) = material.judge(Task(pooling="first")).agreements
        assert (agreement.mean_cosine, agreement.min_cosine) == pytest.approx((first.mean(), first.min()))

    def test_the_noise_is_told_in_decibels(self) -> None:
        (agreement,) = Material(VECTOR, noise=0.1).judge().agreements
        assert agreement.sqnr_db == pytest.approx(20, abs=0.7)

    def test_the_divergence_of_class_scores_is_that_of_scipy(self) -> None:
        material = Material(LOGITS, noise=0.5)
        p, q = (
            scipy.special.softmax(s["logits"].astype(float), axis=1) for s in (material.reference, material.candidate)
        )
        (agreement,) = material.judge().agreements
        assert agreement.kl == pytest.approx(scipy.stats.entropy(p, q, axis=1).mean())
        assert agreement.same_first == np.mean(p.argmax(axis=1) == q.argmax(axis=1))
        ranks = (q > np.take_along_axis(q, p.argmax(axis=1)[:, None], axis=1)).sum(axis=1)
        assert agreement.first_among_five == np.mean(ranks < 5)
        assert agreement.same_neighbour is None

    def test_probabilities_are_not_put_through_a_softmax_again(self) -> None:
        material = Material(LOGITS, noise=0.5)
        raw = material.judge().agreements[0].kl
        for side in (material.reference, material.candidate):
            side["logits"] = scipy.special.softmax(side["logits"], axis=1)
        assert material.judge().agreements[0].kl == pytest.approx(raw, rel=1e-3)

    def test_every_token_that_is_no_padding_has_its_class_counted(self) -> None:
        material = Material(TAGS, noise=0.7)
        same = material.reference["logits"].argmax(-1) == material.candidate["logits"].argmax(-1)
        (agreement,) = material.judge().agreements
        assert agreement.same_first == pytest.approx(same[material.mask == 1].mean())

    def test_neighbours_are_those_of_scikit_learn(self) -> None:
        material = Material(VECTOR, noise=0.6)
        nearest = [
            NearestNeighbors(n_neighbors=2, metric="cosine").fit(s["vector"]).kneighbors(s["vector"])[1][:, 1]
            for s in (material.reference, material.candidate)
        ]
        (agreement,) = material.judge().agreements
        share = float(np.mean(nearest[0] == nearest[1]))
        assert agreement.same_neighbour == share < 1

    @pytest.mark.parametrize("moved", [0, 1])
    def test_a_neighbour_that_is_just_as_near_is_no_other_neighbour(self, moved: int) -> None:
        material = Material(VECTOR)
        reference = material.reference["vector"]
        reference[1] = reference[0] + np.float32(1e-6)
        reference[2] = reference[0] + 0.1 * reference[3]
        material.candidate["vector"] = reference.copy()
        material.candidate["vector"][moved] += 1e-3 * reference[4]
        assert material.judge().agreements[0].same_neighbour == 1.0

    def test_what_is_no_number_is_nobodys_neighbour_and_has_none(self) -> None:
        material = Material(VECTOR, noise=0.0)
        material.candidate["vector"][4] = np.nan
        nearest = material.judge().agreements[0].same_neighbour
        assert nearest is not None
        assert (SAMPLES - 4) / SAMPLES <= nearest <= (SAMPLES - 1) / SAMPLES

    def test_the_worst_samples_are_told_with_their_places_in_the_data(self) -> None:
        material = Material(VECTOR, noise=0.01)
        for sample, share in ((5, 0.9), (17, 0.4)):
            material.candidate["vector"][sample, :8] *= 1 - 2 * share
        worst = material.judge(batch=4).worst
        assert [w.row for w in worst[:2]] == [105, 117]
        assert [w.cosine for w in worst] == sorted(w.cosine for w in worst)

    def test_whole_numbers_agree_where_they_are_equal(self) -> None:
        material = Material(PLACES)
        assert not material.judge().failures()
        material.candidate["places"][:6] += 1
        (agreement,) = material.judge().agreements
        assert agreement.mean_cosine == pytest.approx(0.75)
        assert agreement.failures

    def test_a_single_number_a_sample_has_one_cosine_with_all_others(self) -> None:
        material = Material(VALUE, noise=0.01)
        a, b = material.reference["logits"][:, 0], material.candidate["logits"][:, 0]
        (agreement,) = material.judge().agreements
        assert (
            agreement.min_cosine
            == agreement.mean_cosine
            == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        )
        material.candidate["logits"] = material.rng.permutation(b)[:, None]
        assert material.judge().failures()


TASKS: dict[str, tuple[Task, tuple[Tensor, ...]]] = {
    "sentences": (Task("neighbours", "mean"), (HIDDEN, VECTOR)),
    "pairs": (Task("spearman", "mean"), (HIDDEN,)),
    "values": (Task("spearman"), (VALUE,)),
    "classes": (Task("accuracy"), (LOGITS, VECTOR)),
    "tokens": (Task("token-f1"), (TAGS,)),
    "answers": (Task("answer-f1"), (START, END)),
}


NAMES = {
    "sentences": "same nearest neighbour",
    "pairs": "Spearman correlation",
    "values": "Spearman correlation",
    "classes": "top-1 accuracy",
    "tokens": "token F1 (macro)",
    "answers": "same answer as FP32",
}


def labelled(task: str) -> Material:
    material = Material(*TASKS[task][1], noise=0.8)
    rng = np.random.default_rng(9)
    starts = rng.integers(0, 2, SAMPLES)
    score = rng.random(SAMPLES)
    if task == "pairs":
        score[1::2] = np.nan
    material.labels = {
        "class": rng.integers(0, 9, SAMPLES),
        "tags": np.where(rng.random((SAMPLES, LENGTH)) < 0.2, -100, rng.integers(0, 9, (SAMPLES, LENGTH))),
        "start": starts,
        "end": starts + rng.integers(0, 2, SAMPLES),
        "score": score,
    }
    return material


class TestStreaming:
    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("batch", [1, 5])
    def test_batches_give_what_all_at_once_gives(self, batch: int, task: str) -> None:
        material = labelled(task)
        whole, parts = (material.judge(TASKS[task][0], batch=size).model_dump() for size in (SAMPLES, batch))
        assert whole.pop("metrics") == parts.pop("metrics")
        for one, other in zip(whole["agreements"], parts["agreements"], strict=True):
            assert {k: v for k, v in one.items() if k != "failures"} == pytest.approx(
                {k: v for k, v in other.items() if k != "failures"}
            )
        assert [w["row"] for w in whole["worst"]] == [w["row"] for w in parts["worst"]]

    def test_what_fills_up_the_last_batch_does_not_count(self) -> None:
        material = Material(VECTOR)
        material.candidate["vector"][-4:] = np.nan
        judge = Judge(
            material.component,
            "attention_mask",
            task=Task("neighbours"),
            precision=Precision.INT8,
            tolerances={"vector": LOOSE},
        )
        ((stored, answer, rows),) = material.batches(SAMPLES)
        judge.add(stored, answer, rows[:-4])
        evaluation = judge.evaluation("")
        assert not evaluation.failures()
        assert (evaluation.samples, evaluation.metrics[0].samples) == (SAMPLES - 4, SAMPLES - 4)

    def test_of_a_large_output_the_samples_that_were_kept_are_judged_with_their_own_labels(self) -> None:
        material = labelled("classes")
        kept = np.array([0, 3, 8, 22])
        material.labels["class"] = material.candidate["logits"].argmax(axis=1)
        ((stored, answer, rows),) = material.batches(SAMPLES)
        part = StoredCase("case", stored.feed, {k: v[kept] for k, v in stored.answer.items()}, kept, stored.labels)
        judge = Judge(
            material.component,
            "attention_mask",
            task=Task("accuracy"),
            precision=Precision.INT8,
            tolerances={"logits": LOOSE, "vector": LOOSE},
        )
        judge.add(part, answer, rows)
        evaluation = judge.evaluation("")
        assert (evaluation.metrics[0].samples, evaluation.metrics[0].candidate) == (4, 1.0)
        assert {w.row for w in evaluation.worst} == {100, 103, 108, 122}

    def test_of_pairs_those_that_were_kept_as_a_whole_are_measured(self) -> None:
        material = labelled("pairs")
        kept = np.array([0, 1, 2, 5, 6, 7, 8, 9, 11, 13])
        ((stored, answer, rows),) = material.batches(SAMPLES)
        part = StoredCase("case", stored.feed, {k: v[kept] for k, v in stored.answer.items()}, kept, stored.labels)
        judge = Judge(
            material.component,
            "attention_mask",
            task=TASKS["pairs"][0],
            precision=Precision.INT8,
            tolerances={"hidden": LOOSE},
        )
        judge.add(part, answer, rows)
        (metric,) = judge.evaluation("").metrics
        assert (metric.name, metric.samples) == ("Spearman correlation", 3)
        vectors = means(material.reference["hidden"], material.mask)
        likeness, score = cosines(vectors[::2], vectors[1::2])[[0, 3, 4]], material.labels["score"][::2][[0, 3, 4]]
        assert metric.reference == pytest.approx(scipy.stats.spearmanr(likeness, score).statistic)

    @pytest.mark.parametrize("task", ["tokens", "answers", "pairs", "sentences"])
    def test_what_stands_in_padding_is_not_measured(self, task: str) -> None:
        material = labelled(task)
        before = material.judge(TASKS[task][0]).metrics
        padding = material.mask == 0
        for side in (material.reference, material.candidate):
            for name, array in side.items():
                if name != "vector":
                    array[padding] = 1000 * material.rng.random(array[padding].shape)
        material.labels["tags"][padding] = 3
        assert material.judge(TASKS[task][0]).metrics == before


class TestFailures:
    @pytest.mark.parametrize("wrong", [np.nan, np.inf])
    def test_what_is_no_number_is_named_with_its_sample(self, wrong: float) -> None:
        material = Material(VECTOR)
        material.candidate["vector"][7, 2] = wrong
        (agreement,) = material.judge(tolerances={"vector": LOOSE}).agreements
        assert agreement.failures == ("sample 107: NaN or Inf in the candidate's answer",)
        assert agreement.min_cosine == pytest.approx(-1.0)

    def test_a_reference_that_is_no_number_proves_nothing(self) -> None:
        material = Material(VECTOR)
        material.reference["vector"][7] = np.nan
        material.candidate["vector"][7] = np.nan
        assert "sample 107: NaN or Inf in the reference's answer" in material.judge().agreements[0].failures

    def test_another_shape_is_named_and_the_rest_counted(self) -> None:
        material = Material(VECTOR)
        material.candidate["vector"] = material.candidate["vector"][:, :12]
        (agreement,) = material.judge(tolerances={"vector": LOOSE}).agreements
        assert agreement.failures[0] == "sample 100: shape is 24x12, expected 24x16"
        assert agreement.failures[-1] == "21 further samples have no answer that can be compared"

    @pytest.mark.parametrize("task", TASKS)
    def test_an_answer_that_is_no_number_is_wrong_for_every_measure(self, task: str) -> None:
        material = labelled(task)
        for array in material.candidate.values():
            array[:] = np.nan
        metrics = material.judge(TASKS[task][0]).metrics
        assert metrics
        assert all(m.failures for m in metrics if m.reference > 0.1)

    def test_one_answer_to_all_samples_proves_nothing(self) -> None:
        material = Material(HIDDEN, VECTOR)
        for side in (material.reference, material.candidate):
            side["hidden"][:] = side["hidden"][0, 0]
            side["vector"][:] = side["vector"][0]
        for pooling in ("none", "mean"):
            evaluation = material.judge(Task(pooling=pooling), batch=5)
            assert all("does not vary between different samples" in a.failures for a in evaluation.agreements)

    def test_the_mean_and_the_worst_cosine_have_limits_of_their_own(self) -> None:
        material = Material(VECTOR, noise=0.3)
        mean = LOOSE.model_copy(update={"min_mean_cosine": 0.999})
        worst = LOOSE.model_copy(update={"min_cosine": 0.999})
        (failure,) = material.judge(tolerances={"vector": mean}).failures()
        assert failure.startswith("output 'vector' on 24 held-out samples: mean cosine of the samples is 0.9")
        (failure,) = material.judge(tolerances={"vector": worst}).failures()
        assert failure.startswith("output 'vector' on 24 held-out samples: smallest cosine of a sample is 0.")

    @pytest.mark.parametrize("task", TASKS)
    def test_a_measure_that_falls_fails_by_its_name(self, task: str) -> None:
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

    def test_a_limit_of_ones_own_replaces_the_one_of_the_precision(self) -> None:
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
    def test_what_is_measured_is_the_agreement_with_fp32(self, task: str, name: str) -> None:
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
    def test_a_label_that_the_model_has_no_class_for_is_refused(self) -> None:
        for task, label in (("classes", "class"), ("tokens", "tags")):
            material = labelled(task)
            material.labels[label][0] = 9
            with pytest.raises(UsageError, match="a label is 9, and logits has 9 classes"):
                material.judge(TASKS[task][0])

    @pytest.mark.parametrize(
        ("task", "output"),
        [("accuracy", HIDDEN), ("token-f1", VECTOR), ("answer-f1", START), ("neighbours", HIDDEN), ("spearman", TAGS)],
    )
    def test_a_measure_without_an_output_to_read_is_refused(self, task: Any, output: Tensor) -> None:
        with pytest.raises(UsageError, match=rf"data.metric: {task} is measured on .*, and the model has only"):
            Material(output).judge(Task(task))
