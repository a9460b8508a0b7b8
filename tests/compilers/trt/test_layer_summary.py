"""What the layers of a plan come to."""

from __future__ import annotations

from plansmith.compilers.trt.layers import summarise, timed
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


def test_layers_counted_by_kind() -> None:
    """Layers are counted by kind and dtype, with the time that they take."""
    assert summarise(LAYERS).counts == (
        LayerCount(kind="gemm", dtype="float16", count=2, milliseconds=1.25),
        LayerCount(kind="gemm", dtype=UNKNOWN, count=1),
        LayerCount(kind="reformat", dtype="float32", count=1, milliseconds=0.5),
    )


def test_slowest_layers_named_first() -> None:
    """The slowest layers are named first, and those without a time not at all."""
    summary = summarise(LAYERS, most=2)
    assert [layer.name for layer in summary.slowest] == ["c", "b"]
    assert (summary.layers, summary.milliseconds) == (4, 1.75)


def test_unnamed_high_layers_are_counted() -> None:
    """Layers above the asked precision are counted when not all are named."""
    summary = summarise(LAYERS, [LAYERS[1]] * 3, most=2)
    assert (summary.above_count, len(summary.above)) == (3, 2)


def test_silent_plan_has_no_layers() -> None:
    """A plan that tells nothing of its layers has none."""
    assert summarise(()) == LayerSummary(layers=0, counts=())


def test_output_dtypes_named_once() -> None:
    """Layers of several outputs name each dtype once."""
    both = PlanLayer(name="split", kind="gemm", inputs=(), dtypes=("float16", "float32", "float16"))
    assert summarise([both]).counts[0].dtype == "float16, float32"


def test_computing_layers_counted_by_factors() -> None:
    """Layers that compute are counted by what they multiply."""
    gemm = layer("gemm", dtype="float32").model_copy(update={"computes": True, "operands": "int8"})
    assert summarise([gemm]).counts[0].dtype == "int8"


def test_profiler_times_find_layers() -> None:
    """Times of a profiler find their layers by name."""
    layers = timed(LAYERS, {"a": 2.0, "d": 4.0, "another": 1.0})
    assert [layer.milliseconds for layer in layers] == [2.0, None, None, 4.0]
