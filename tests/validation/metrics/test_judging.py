"""A set of samples is judged batch by batch, by numbers that others compute too."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn.neighbors import NearestNeighbors

from plansmith.data.reference import StoredCase
from plansmith.records.model import Precision
from plansmith.validation.metrics.agreement import Task
from plansmith.validation.metrics.evaluator import Evaluator

from ...support.validation.judged import (
    HIDDEN,
    LOGITS,
    LOOSE,
    PLACES,
    SAMPLES,
    TAGS,
    TASKS,
    VALUE,
    VECTOR,
    Material,
    cosines,
    labelled,
    means,
)


class TestTheNumbers:
    def test_sentences_compared_by_pooled_vectors(self) -> None:
        """Sentences are compared by their pooled vectors without padding."""
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

    def test_noise_told_in_decibels(self) -> None:
        """The noise is told in decibels."""
        (agreement,) = Material(VECTOR, noise=0.1).judge().agreements
        assert agreement.sqnr_db == pytest.approx(20, abs=0.7)

    def test_divergence_matches_scipy(self) -> None:
        """The divergence of class scores is that of SciPy."""
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

    def test_probabilities_skip_second_softmax(self) -> None:
        """Probabilities are not put through a softmax again."""
        material = Material(LOGITS, noise=0.5)
        raw = material.judge().agreements[0].kl
        for side in (material.reference, material.candidate):
            side["logits"] = scipy.special.softmax(side["logits"], axis=1)
        assert material.judge().agreements[0].kl == pytest.approx(raw, rel=1e-3)

    def test_unpadded_tokens_counted(self) -> None:
        """Every token that is no padding has its class counted."""
        material = Material(TAGS, noise=0.7)
        same = material.reference["logits"].argmax(-1) == material.candidate["logits"].argmax(-1)
        (agreement,) = material.judge().agreements
        assert agreement.same_first == pytest.approx(same[material.mask == 1].mean())

    def test_neighbours_match_scikit_learn(self) -> None:
        """Neighbours are those of scikit-learn."""
        material = Material(VECTOR, noise=0.6)
        nearest = [
            NearestNeighbors(n_neighbors=2, metric="cosine").fit(s["vector"]).kneighbors(s["vector"])[1][:, 1]
            for s in (material.reference, material.candidate)
        ]
        (agreement,) = material.judge().agreements
        share = float(np.mean(nearest[0] == nearest[1]))
        assert agreement.same_neighbour == share < 1

    @pytest.mark.parametrize("moved", [0, 1])
    def test_equally_near_neighbour_is_same(self, moved: int) -> None:
        """A neighbour that is just as near is no other neighbour."""
        material = Material(VECTOR)
        reference = material.reference["vector"]
        reference[1] = reference[0] + np.float32(1e-6)
        reference[2] = reference[0] + 0.1 * reference[3]
        material.candidate["vector"] = reference.copy()
        material.candidate["vector"][moved] += 1e-3 * reference[4]
        assert material.judge().agreements[0].same_neighbour == 1.0

    def test_non_number_has_no_neighbours(self) -> None:
        """What is no number is nobody's neighbour and has none."""
        material = Material(VECTOR, noise=0.0)
        material.candidate["vector"][4] = np.nan
        nearest = material.judge().agreements[0].same_neighbour
        assert nearest is not None
        assert (SAMPLES - 4) / SAMPLES <= nearest <= (SAMPLES - 1) / SAMPLES

    def test_worst_samples_told_with_places(self) -> None:
        """The worst samples are told with their places in the data."""
        material = Material(VECTOR, noise=0.01)
        for sample, share in ((5, 0.9), (17, 0.4)):
            material.candidate["vector"][sample, :8] *= 1 - 2 * share
        worst = material.judge(batch=4).worst
        assert [w.row for w in worst[:2]] == [105, 117]
        assert [w.cosine for w in worst] == sorted(w.cosine for w in worst)

    def test_whole_numbers_agree_when_equal(self) -> None:
        """Whole numbers agree where they are equal."""
        material = Material(PLACES)
        assert not material.judge().failures()
        material.candidate["places"][:6] += 1
        (agreement,) = material.judge().agreements
        assert agreement.mean_cosine == pytest.approx(0.75)
        assert agreement.failures

    def test_single_numbers_share_one_cosine(self) -> None:
        """A single number per sample has one cosine with all others."""
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


class TestStreaming:
    @pytest.mark.parametrize("task", TASKS)
    @pytest.mark.parametrize("batch", [1, 5])
    def test_batches_match_whole(self, batch: int, task: str) -> None:
        """Batches give what all at once gives."""
        material = labelled(task)
        whole, parts = (material.judge(TASKS[task][0], batch=size).model_dump() for size in (SAMPLES, batch))
        assert whole.pop("metrics") == parts.pop("metrics")
        for first, second in zip(whole["agreements"], parts["agreements"], strict=True):
            assert {k: v for k, v in first.items() if k != "failures"} == pytest.approx(
                {k: v for k, v in second.items() if k != "failures"}
            )
        assert [w["row"] for w in whole["worst"]] == [w["row"] for w in parts["worst"]]

    def test_last_batch_filling_not_counted(self) -> None:
        """What fills up the last batch does not count."""
        material = Material(VECTOR)
        material.candidate["vector"][-4:] = np.nan
        judge = Evaluator(
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

    def test_kept_samples_judged_with_labels(self) -> None:
        """Of a large output, the samples that were kept are judged with their own labels."""
        material = labelled("classes")
        indices = np.array([0, 3, 8, 22])
        material.labels["class"] = material.candidate["logits"].argmax(axis=1)
        ((stored, answer, rows),) = material.batches(SAMPLES)
        part = StoredCase(
            "case", stored.feed, {k: v[indices] for k, v in stored.answer.items()}, indices, stored.labels
        )
        judge = Evaluator(
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

    def test_wholly_kept_pairs_measured(self) -> None:
        """Of pairs, those that were kept as a whole are measured."""
        material = labelled("pairs")
        indices = np.array([0, 1, 2, 5, 6, 7, 8, 9, 11, 13])
        ((stored, answer, rows),) = material.batches(SAMPLES)
        part = StoredCase(
            "case", stored.feed, {k: v[indices] for k, v in stored.answer.items()}, indices, stored.labels
        )
        judge = Evaluator(
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
    def test_padding_not_measured(self, task: str) -> None:
        """What stands in padding is not measured."""
        material = labelled(task)
        before = material.judge(TASKS[task][0]).metrics
        padding = material.mask == 0
        for side in (material.reference, material.candidate):
            for name, array in side.items():
                if name != "vector":
                    array[padding] = 1000 * material.rng.random(array[padding].shape)
        material.labels["tags"][padding] = 3
        assert material.judge(TASKS[task][0]).metrics == before
