"""config.pbtxt is derived from the graph, and what Triton makes of it is held against what was written."""

from __future__ import annotations

import pytest

from plansmith.errors import EngineError
from plansmith.records.model import AxisRange, Component, Device, Dim, EngineKind, Tensor
from plansmith.records.release import Interface, Package
from plansmith.triton.config.model_config import (
    completions,
    contradictions,
    make_config,
    max_batch_size,
    parse_config,
    text_of,
    with_cpu_instances,
)

AXES = {"batch": AxisRange(min=1, opt=4, max=16)}


def component(*dims: Dim) -> Component:
    ids = Tensor(name="ids", dtype="int64", dims=dims)
    scores = Tensor(name="scores", dtype="float32", dims=(*dims[:1], 3))
    return Component(file="model.onnx", external_files=(), inputs=(ids,), outputs=(scores,), opset=18, ir_version=8)


def written(graph: Component, *, file: str = "model.onnx", device: Device = "cpu") -> str:
    package = Package(
        model="tiny",
        config_file="config.pbtxt",
        model_files=(file,),
        max_batch_size=max_batch_size(graph, AXES),
        interface=Interface(inputs=graph.inputs, outputs=graph.outputs),
    )
    return text_of(make_config(package, EngineKind.ONNXRUNTIME, device))


def test_int64_kept_batch_not_in_dims() -> None:
    """INT64 stays INT64, and the batch is not among the dims."""
    config = parse_config(written(component("batch", "sequence")))
    assert config.input[0].data_type == parse_config("input { data_type: TYPE_INT64 }").input[0].data_type
    assert list(config.input[0].dims) == [-1]
    assert list(config.output[0].dims) == [3]
    assert config.max_batch_size == 16
    assert config.HasField("dynamic_batching")


def test_fixed_first_dim_served_without_batching() -> None:
    """A graph with a fixed first dim is served without batching and with all its dims."""
    config = parse_config(written(component(2, "sequence")))
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [2, -1]


def test_graph_with_weights_named_by_folder() -> None:
    """A graph with weights beside it is named by its folder."""
    config = parse_config(written(component("batch"), file="model.onnx/model.onnx"))
    assert config.default_model_filename == "model.onnx"


def test_gpu_instances_follow_target() -> None:
    """A GPU target gets GPU instances, and only those become CPU ones."""
    text = written(component("batch"), device="gpu")
    assert "KIND_GPU" in text
    assert "KIND_CPU" in written(component("batch"))
    assert with_cpu_instances(text) == text.replace("KIND_GPU", "KIND_CPU")
    chosen = text.replace("kind: KIND_GPU", "kind: KIND_GPU gpus: [ 0, 1 ]")
    assert not parse_config(with_cpu_instances(chosen)).instance_group[0].gpus


def test_unsupported_dtype_refused() -> None:
    """A dtype that Triton cannot carry is refused."""
    graph = component("batch")
    strange = graph.model_copy(update={"inputs": (graph.inputs[0].model_copy(update={"dtype": "complex64"}),)})
    with pytest.raises(EngineError, match="complex64"):
        written(strange)


def test_filled_in_fields_are_listed() -> None:
    """What Triton filled in is listed, and is no contradiction."""
    ours = parse_config(written(component("batch", "sequence")))
    theirs = parse_config(written(component("batch", "sequence")))
    theirs.instance_group[0].name = "tiny_0"
    theirs.dynamic_batching.preferred_batch_size.append(16)
    assert contradictions(ours, theirs) == []
    assert completions(ours, theirs) == {
        "instance_group[0].name": "tiny_0",
        "dynamic_batching.preferred_batch_size": [16],
    }


def test_other_understanding_is_contradiction() -> None:
    """What Triton understood otherwise is a contradiction."""
    ours = parse_config(written(component("batch", "sequence")))
    theirs = parse_config(written(component("batch", "sequence")))
    theirs.max_batch_size = 4
    theirs.input[0].dims[0] = 128
    del theirs.output[:]
    assert contradictions(ours, theirs) == [
        "max_batch_size: wrote 16, Triton has 4",
        "input[0].dims: wrote [-1], Triton has [128]",
        "output: wrote 1 entries, Triton has 0",
    ]
