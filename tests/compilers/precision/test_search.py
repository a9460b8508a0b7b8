"""The search for a recipe, on a graph whose faults are known: who is blamed, what stays high, what it may cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.precision.candidate import Candidate, Verdict
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.search import CandidateEvaluators, Search, Subject
from plansmith.errors import ExportError
from plansmith.records.model import Precision

NAMES = tuple(f"layer{number}" for number in range(12))
WIDTH = 8
FEED = np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)
ALLOWED = 0.02

Weights = dict[str, NDArray[np.float32]]


def _model() -> onnx.ModelProto:
    """x through one orthogonal product a name, so that errors neither grow nor fade on their way to y."""
    rng = np.random.default_rng(1)
    nodes, tensors, last = [], [], "x"
    for name in NAMES:
        weight = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
        tensors.append(onnx.numpy_helper.from_array(weight, f"{name}_w"))
        out = "y" if name == NAMES[-1] else f"{name}_out"
        nodes.append(onnx.helper.make_node("MatMul", [last, f"{name}_w"], [out], name=name))
        last = out
    form = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", WIDTH]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "chain", form[:1], form[1:], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


class Faulty:
    """Lowering that spoils the weights of some nodes, and what lies between some others.

    Args:
        faults: by node, the share of noise in its weights.
        stored: by node, the noise in its output, which is there unless node and next node both stay high.
        undone: by node, the noise in its output, which the next node takes out again.
        name: in words.
    """

    precision = Precision.INT8
    settings: Mapping[str, str] = {}
    high_reasons: Mapping[str, str] = {}
    not_validated: tuple[str, ...] = ()
    lowerable = NAMES

    def __init__(
        self,
        faults: Mapping[str, float],
        *,
        stored: Mapping[str, float] | None = None,
        undone: Mapping[str, float] | None = None,
        name: str = "faulty",
    ) -> None:
        self._faults, self._stored, self._undone, self.name = faults, stored or {}, undone or {}, name
        self.requests: list[frozenset[str]] = []

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        self.requests.append(frozenset(keep))
        graph = Graph(_model())
        for name, share in self._faults.items():
            if name not in keep:
                graph.set_initializer(f"{name}_w", graph.floats(f"{name}_w") + _noise(name, (WIDTH, WIDTH)) * share)
        for name, share in self._stored.items():
            following = NAMES[NAMES.index(name) + 1]
            if not {name, following} <= set(keep):
                self._store(graph, name, following, share)
        for name, share in self._undone.items():
            if name not in keep:
                following = NAMES[NAMES.index(name) + 1]
                noise = (_noise(name, (WIDTH,)) * share).astype(np.float32)
                self._add(graph, name, noise)
                self._add(graph, following, -noise @ graph.floats(f"{following}_w"))
        return graph.model

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        return lowered

    @staticmethod
    def _store(graph: Graph, name: str, following: str, share: float) -> None:
        node = next(n for n in graph.model.graph.node if n.name == following)
        noise = graph.add_initializer(f"{name}_noise", _noise(name, (WIDTH,)) * share)
        add = onnx.helper.make_node("Add", [node.input[0], noise], [f"{name}_stored"], name=f"{name}_add")
        node.input[0] = f"{name}_stored"
        graph.rewrite({following: [add, node]})

    @staticmethod
    def _add(graph: Graph, name: str, noise: NDArray[np.float32]) -> None:
        node = next(n for n in graph.model.graph.node if n.name == name)
        out, node.output[0] = node.output[0], f"{name}_before"
        terms = graph.add_initializer(f"{name}_noise", noise)
        add = onnx.helper.make_node("Add", [f"{name}_before", terms], [out], name=f"{name}_add")
        graph.rewrite({name: [node, add]})


def _noise(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.default_rng(NAMES.index(name)).standard_normal(shape).astype(np.float32)


@pytest.fixture
def search(tmp_path: Path) -> Search:
    return searching(tmp_path)


def searching(folder: Path, feed: NDArray[np.float32] = FEED, **judges: Any) -> Search:
    """A search that compares layers on a feed."""
    accuracy = judges.pop("accuracy", None) or _Distance(folder, {"x": FEED})
    return Search(
        Subject(_model(), {"x": feed}), CandidateEvaluators(accuracy, **judges), _empty(folder), lambda _: None
    )


def _empty(folder: Path) -> Path:
    (folder / "trials").mkdir()
    return folder / "trials"


class _Distance:
    """Judges by the distance of the answers to some inputs."""

    def __init__(self, folder: Path, feed: Mapping[str, NDArray[np.float32]]) -> None:
        onnx.save(_model(), folder / "right.onnx")
        self._feed = dict(feed)
        self._right = self._answer(folder / "right.onnx")

    def __call__(self, path: Path) -> Verdict:
        apart = float(np.abs(self._answer(path) - self._right).max())
        problem = f"{apart:.3f} apart" if apart > ALLOWED else None
        return Verdict(score=1 - apart, worst=1 - apart, problem=problem, feed=lambda: self._feed)

    def _answer(self, path: Path) -> NDArray[np.float32]:
        answer: NDArray[np.float32] = open_session(path).run(None, self._feed)[0]
        return answer


def find_candidate(search: Search, *methods: Faulty, budget: int = 12) -> Candidate:
    (candidate,) = search.find(methods, budget, all_of_them=False)
    return candidate


def test_accurate_method_taken_unchanged(search: Search) -> None:
    """A method that is accurate enough is taken as it is."""
    assert find_candidate(search, Faulty({})).keep == {}
    assert len(search.tried) == 1


@pytest.mark.parametrize("guilty", [{"layer3"}, {"layer0", "layer11"}, {"layer2", "layer5", "layer6"}])
def test_only_guilty_nodes_stay_high(search: Search, guilty: set[str]) -> None:
    """Only the guilty nodes stay high, each with its reason."""
    candidate = find_candidate(search, Faulty(dict.fromkeys(guilty, 0.5)))
    assert set(candidate.keep) == guilty
    assert all("brought too much error in: from" in reason for reason in candidate.keep.values())


def test_keeping_both_mends_storage(search: Search) -> None:
    """What is stored between two nodes is mended by keeping both."""
    candidate = find_candidate(search, Faulty({}, stored={"layer4": 0.5}))
    assert set(candidate.keep) == {"layer4", "layer5"}
    assert "at layer5, which takes what it makes" in candidate.keep["layer4"]
    assert "dB here" in candidate.keep["layer5"]


def test_innocent_node_lowered_again(search: Search) -> None:
    """The error behind layer4 is the largest one, and none of it reaches the answer."""
    candidate = find_candidate(search, Faulty({"layer7": 0.1}, undone={"layer4": 2.0}))
    assert set(search.tried[1].keep) == {"layer4"}
    assert set(candidate.keep) == {"layer7"}


def test_failed_inputs_show_guilty_node(tmp_path: Path) -> None:
    """The first batch holds nothing but zeros where the fault is; what the judge complains of does."""
    search = searching(tmp_path, np.zeros_like(FEED))
    assert set(find_candidate(search, Faulty({"layer7": 0.5})).keep) == {"layer7"}


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_budget_bounds_trials(search: Search, budget: int) -> None:
    """No more than the budget is tried."""
    method = Faulty(dict.fromkeys(NAMES, 0.5))
    assert search.find([method], budget, all_of_them=False) == []
    assert len(search.tried) == 1 + budget


def test_something_always_stays_lowered(search: Search) -> None:
    method = Faulty(dict.fromkeys(NAMES, 0.5))
    assert search.find([method], 50, all_of_them=False) == []
    assert max(len(keep) for keep in method.requests) == len(NAMES) - 1


def test_budgeted_search_ends_with_pass(search: Search) -> None:
    """Three attempts are enough to pass, and leave none to find out which nodes were not needed."""
    candidate = find_candidate(search, Faulty({"layer2": 0.5, "layer5": 0.5, "layer6": 0.5}), budget=2)
    assert candidate.verdict.problem is None
    assert {"layer2", "layer5", "layer6"} <= set(candidate.keep)


def test_most_accurate_method_is_repaired(search: Search) -> None:
    """The most accurate of several methods is repaired."""
    bad, better = Faulty({"layer3": 3.0}, name="bad"), Faulty({"layer3": 0.3}, name="better")
    assert find_candidate(search, bad, better).method.name == "better"


def test_first_pass_ends_search(search: Search) -> None:
    """Of several methods, the first that passes ends the search unless speed decides."""
    first, second = Faulty({}, name="one"), Faulty({}, name="other")
    assert [c.method.name for c in search.find([first, second], 0, all_of_them=False)] == ["one"]
    assert [c.method.name for c in search.find([first, second], 0, all_of_them=True)] == ["one", "other"]


def test_same_faults_same_search(tmp_path: Path) -> None:
    """The same faults are searched the same way."""
    tried = []
    for name in ("one", "other"):
        place = tmp_path / name
        place.mkdir()
        search = searching(place)
        find_candidate(search, Faulty({"layer2": 0.5, "layer9": 0.4}, stored={"layer4": 0.3}))
        tried.append([(list(c.keep.items()), c.verdict.score) for c in search.tried])
    assert tried[0] == tried[1]
    assert len(tried[0]) > 3


class Unwritable(Faulty):
    """Lowers nothing while a node is lowered that it cannot have."""

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        if "layer1" in keep:
            return super().lower(keep)
        raise ExportError("ONNX Runtime refuses layer1")


def test_unwritable_method_is_failed_trial(search: Search) -> None:
    """A method that cannot write its graph is a failed trial and the next one is tried."""
    assert find_candidate(search, Unwritable({}, name="unwritable"), Faulty({}, name="fine")).method.name == "fine"
    first = search.tried[0]
    assert first.verdict.problem == "ONNX Runtime refuses layer1"
    assert (first.trial(chosen=False).file_bytes, search.layers(first)) == (0, [])


def test_unwritable_graph_is_repaired(search: Search) -> None:
    """A graph that cannot be written is repaired though nothing can be compared."""
    assert set(find_candidate(search, Unwritable({})).keep) == {"layer1"}


def test_unloadable_graph_is_failed_trial(tmp_path: Path) -> None:
    """A graph that does not load is a failed trial without layers."""

    class Strange(Faulty):
        def lower(self, keep: Collection[str]) -> onnx.ModelProto:
            model = super().lower(keep)
            model.graph.node[3].op_type = "NoSuchOperator"
            return model

    search = searching(tmp_path, accuracy=lambda _: Verdict.of_failure("does not load"))
    assert search.find([Strange({})], 2, all_of_them=False) == []
    assert len(search.tried) == 3
    assert search.layers(search.tried[0]) == []


def test_comparison_fault_is_no_verdict(search: Search) -> None:
    """A fault of the comparison itself is no verdict."""
    candidate = find_candidate(search, Faulty({}))
    model = onnx.load(candidate.path)
    model.graph.node[3].op_type = "NoSuchOperator"
    onnx.save(model, candidate.path)
    with pytest.raises(Exception, match="NoSuchOperator"):
        search.layers(candidate)


def test_mistaken_candidate_passed_over(tmp_path: Path) -> None:
    """The linter speaks only of what is accurate enough, and is told whether the graph runs itself."""
    calls: list[bool] = []

    def mistakes(_: onnx.ModelProto, runs_itself: bool) -> None:
        calls.append(runs_itself)
        if len(calls) == 1:
            raise ExportError("one error:\n  it is wrong [some-id]")

    search = searching(tmp_path, mistakes=mistakes)
    inaccurate = Faulty({"layer3": 3.0}, name="inaccurate")
    candidate = find_candidate(search, inaccurate, Faulty({}, name="one"), Faulty({}, name="other"))
    assert candidate.method.name == "other"
    assert [c.verdict.problem for c in search.tried][1:] == ["one error: it is wrong [some-id]", None]
    assert calls == [True, True]


def test_few_trial_files_are_kept(tmp_path: Path) -> None:
    """Of many trials, the files of a few stay and the sizes of all."""
    most = 0

    class Counting(Faulty):
        def lower(self, keep: Collection[str]) -> onnx.ModelProto:
            nonlocal most
            most = max(most, len(list((tmp_path / "trials").glob("*/model.onnx"))))
            return super().lower(keep)

    search = searching(tmp_path)
    candidate = find_candidate(search, Counting({"layer2": 0.5, "layer9": 0.4}, stored={"layer4": 0.3}))
    assert len(search.tried) > 5
    assert most <= 2
    assert [path.parent for path in (tmp_path / "trials").glob("*/model.onnx")] == [candidate.folder]
    assert all(tried.trial(chosen=False).file_bytes > 1000 for tried in search.tried)


def test_best_failed_trial_is_kept(search: Search, tmp_path: Path) -> None:
    """Where nothing passes, the best trial stays so that its layers can be told."""
    assert search.find([Faulty(dict.fromkeys(NAMES, 0.5))], 3, all_of_them=False) == []
    best = max(search.tried, key=lambda candidate: candidate.verdict.score)
    assert [path.parent for path in (tmp_path / "trials").glob("*/model.onnx")] == [best.folder]
    assert search.layers(best)


def test_hopeless_method_leaves_budget(search: Search) -> None:
    """A method that cannot be repaired leaves some of the budget to the next one."""
    hopeless = Faulty(dict.fromkeys(NAMES, 0.1), name="hopeless")
    mendable = Faulty({"layer3": 5.0}, name="mendable")
    candidate = find_candidate(search, hopeless, mendable, budget=6)
    assert search.tried[0].verdict.score > search.tried[1].verdict.score
    assert (candidate.method.name, set(candidate.keep)) == ("mendable", {"layer3"})
    assert len(search.tried) <= 2 + 6
