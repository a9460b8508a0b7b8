"""A model whose every answer tells its version, in every row of every output, and releases of it, broken ones too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from plansmith.records.model import Tensor
from plansmith.records.release import Interface, Manifest, PublishedVersion
from plansmith.triton.repository.repository import ModelRepository, Servers

from ..faults.packages import draft_of, file_entries

MODEL = "versioned"
CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
default_model_filename: "model.onnx"
version_policy { latest { num_versions: 1 } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "whole" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "three" data_type: TYPE_FP32 dims: [ 3 ] } ]
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
INTERFACE = Interface(
    inputs=(Tensor(name="x", dtype="float32", dims=("batch", 1)),),
    outputs=(
        Tensor(name="whole", dtype="int64", dims=("batch", 1)),
        Tensor(name="three", dtype="float32", dims=("batch", 3)),
    ),
)


def graph(version: int) -> bytes:
    """A model that answers its version: once a row as a whole number, three times a row as a float."""
    nodes = [
        helper.make_node("Constant", [], ["own"], value_floats=[float(version)] * 3),
        helper.make_node("Constant", [], ["nothing"], value_float=0.0),
        helper.make_node("Constant", [], ["first"], value_ints=[0]),
        helper.make_node("Mul", ["x", "nothing"], ["zeros"]),
        helper.make_node("Add", ["zeros", "own"], ["three"]),
        helper.make_node("Gather", ["three", "first"], ["one"], axis=1),
        helper.make_node("Cast", ["one"], ["whole"], to=TensorProto.INT64),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1])]
    outputs = [
        helper.make_tensor_value_info("whole", TensorProto.INT64, ["batch", 1]),
        helper.make_tensor_value_info("three", TensorProto.FLOAT, ["batch", 3]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "versioned", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


BROKEN: dict[str, tuple[Callable[[bytes], bytes], Callable[[str], str], str]] = {
    "garbage": (lambda _: b"this is no graph", lambda text: text, "InvalidProtobuf"),
    "cut off": (lambda content: content[: len(content) // 2], lambda text: text, "InvalidProtobuf"),
    "other outputs": (lambda content: content, lambda text: text.replace("[ 3 ]", "[ 5 ]"), "three"),
    "no configuration": (lambda content: content, lambda text: f"{text}nonsense", "nonsense"),
    "for a GPU": (lambda content: content, lambda text: text.replace("KIND_CPU", "KIND_GPU"), "no GPUs"),
}
"""Ways in which a release is broken: its graph, its configuration, and a word of the reason that Triton gives."""


def release(
    repository: ModelRepository,
    folder: Path,
    *,
    model: str = MODEL,
    broken: str | None = None,
    servers: Servers | None = None,
) -> PublishedVersion:
    """Publish the next version of the model, sound or broken in one of the ways.

    Args:
        repository: takes it.
        folder: takes the files that it is made of.
        model: its name.
        broken: a key of `BROKEN`.
        servers: have to load it.
    """
    number = max([0, *repository.versions(model)]) + 1
    content, text = graph(number), CONFIG
    if broken is not None:
        spoil, misconfigure, _ = BROKEN[broken]
        content, text = spoil(content), misconfigure(text)
    package = folder / f"{model}-{number}"
    (package / "model").mkdir(parents=True)
    (package / "model" / "model.onnx").write_bytes(content)
    (package / "config.pbtxt").write_text(text)
    draft = _draft(package, model)
    return repository.publish(
        draft,
        {entry.path: package / entry.path for entry in draft.files},
        {},
        allow_interface_change=False,
        force=False,
        servers=servers,
    )


def _draft(package: Path, model: str) -> Manifest:
    draft = draft_of(package, model=model)
    fields: dict[str, Any] = {"model_files": ("model.onnx",), "interface": INTERFACE, "max_batch_size": 8}
    return draft.model_copy(update={"files": file_entries(package), "package": draft.package.model_copy(update=fields)})
