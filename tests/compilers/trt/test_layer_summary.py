"""What the layers of a plan come to."""

from __future__ import annotations

from plansmith.compilers.trt.inspection.layer_summary import summarise, timed
from plansmith.records.engine import UNKNOWN, LayerCount, LayerSummary, PlanLayer


def layer(name: str, kind: str = "gemm", dtype: str = "float16", milliseconds: float | None = None) -> PlanLayer:
    dtypes = (dtype,) if dtype else ()
    return PlanLayer(name=name, kind=kind, inputs=(), dtypes=dtypes, milliseconds=milliseconds)


LAYERS = (
    layer("a", milliseconds=0.25),
    layer("b", "reformat", "float32", 0.5),
    layer("c", milliseconds=1.0),
    layer("d", dtype=""),
)


def test_layers_are_counted_by_kind_and_dtype_with_the_time_that_they_take() -> None:
    assert summarise(LAYERS).counts == (
        LayerCount(kind="gemm", dtype="float16", count=2, milliseconds=1.25),
        LayerCount(kind="gemm", dtype=UNKNOWN, count=1),
        LayerCount(kind="reformat", dtype="float32", count=1, milliseconds=0.5),
    )


def test_the_slowest_are_named_first_and_those_without_a_time_not_at_all() -> None:
    found = summarise(LAYERS, most=2)
    assert [one.name for one in found.slowest] == ["c", "b"]
    assert (found.layers, found.milliseconds) == (4, 1.75)


def test_layers_above_the_asked_precision_are_counted_when_not_all_are_named() -> None:
    found = summarise(LAYERS, [LAYERS[1]] * 3, most=2)
    assert (found.above_count, len(found.above)) == (3, 2)


def test_a_plan_that_tells_nothing_of_its_layers_has_none() -> None:
    assert summarise(()) == LayerSummary(layers=0, counts=())


def test_layers_of_several_outputs_name_each_dtype_once() -> None:
    both = PlanLayer(name="split", kind="gemm", inputs=(), dtypes=("float16", "float32", "float16"))
    assert summarise([both]).counts[0].dtype == "float16, float32"


def test_layers_that_compute_are_counted_by_what_they_multiply() -> None:
    found = layer("gemm", dtype="float32").model_copy(update={"computes": True, "operands": "int8"})
    assert summarise([found]).counts[0].dtype == "int8"


def test_times_of_a_profiler_find_their_layers_by_name() -> None:
    found = timed(LAYERS, {"a": 2.0, "d": 4.0, "another": 1.0})
    assert [one.milliseconds for one in found] == [2.0, None, None, 4.0]
