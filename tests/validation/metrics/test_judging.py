"""A set of samples is judged batch by batch, by numbers that others compute too."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn.neighbors import NearestNeighbors

from plansmith.data.reference import StoredCase
from plansmith.records.model import Precision
from plansmith.validation.metrics.evaluator import Evaluator
from plansmith.validation.metrics.output_roles import Task

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

    def test_of_a_large_output_the_samples_that_were_kept_are_judged_with_their_own_labels(self) -> None:
        material = labelled("classes")
        kept = np.array([0, 3, 8, 22])
        material.labels["class"] = material.candidate["logits"].argmax(axis=1)
        ((stored, answer, rows),) = material.batches(SAMPLES)
        part = StoredCase("case", stored.feed, {k: v[kept] for k, v in stored.answer.items()}, kept, stored.labels)
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

    def test_of_pairs_those_that_were_kept_as_a_whole_are_measured(self) -> None:
        material = labelled("pairs")
        kept = np.array([0, 1, 2, 5, 6, 7, 8, 9, 11, 13])
        ((stored, answer, rows),) = material.batches(SAMPLES)
        part = StoredCase("case", stored.feed, {k: v[kept] for k, v in stored.answer.items()}, kept, stored.labels)
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
