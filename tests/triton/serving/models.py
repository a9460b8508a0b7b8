"""Small models that say by their answers what a running Triton did with a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WARM_ROWS, WARM_COUNT, WARM_SAMPLE = 3, 2, (1.5, -2.0, 0.25)
TABLE = np.arange(20, dtype=np.float32).reshape(10, 2) / 4
LARGEST = 8
TOGETHER = 6

Sides = Mapping[str, tuple[int, list[int | str]]]
"""Element type and dims of inputs or outputs."""

_PAIR = """
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "share" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "times" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
_ONE_INSTANCE = "instance_group { kind: KIND_CPU count: 1 }\n"
_ONNX = f'backend: "onnxruntime"\nmax_batch_size: {LARGEST}\n{_ONE_INSTANCE}'
_PYTHON = f'backend: "python"\nmax_batch_size: {LARGEST}\n{_ONE_INSTANCE}'
# Whoever waits for company gets it as soon as so many rows are there; the delay is for machines that are busy.
_BATCHING = f"dynamic_batching {{ preferred_batch_size: [ {TOGETHER} ] max_queue_delay_microseconds: 4000000 }}\n"

CONFIGS = {
    "pair": f"{_ONNX}{_PAIR}version_policy {{ all {{ }} }}\n",
    "together": f"""{_ONNX}{_BATCHING}
input {{ name: "ids" data_type: TYPE_INT64 dims: [ 1 ] }}
input {{ name: "a" data_type: TYPE_FP32 dims: [ 2 ] }}
output {{ name: "sum" data_type: TYPE_FP32 dims: [ 1, 2 ] }}
""",
    "remembered": f"{_ONNX}{_PAIR}response_cache {{ enable: true }}\n",
    "half": f"""{_ONNX}
input {{ name: "x" data_type: TYPE_FP16 dims: [ -1 ] }}
output {{ name: "y" data_type: TYPE_FP16 dims: [ -1 ] }}
""",
    "text": f"""{_PYTHON}{_BATCHING.replace("4000000", "0")}
input {{ name: "text" data_type: TYPE_STRING dims: [ -1 ] }}
output {{ name: "back" data_type: TYPE_STRING dims: [ -1 ] }}
""",
    "text_together": f"""{_PYTHON}{_BATCHING}
input {{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }}
output {{ name: "back" data_type: TYPE_STRING dims: [ 1 ] }}
output {{ name: "company" data_type: TYPE_INT64 dims: [ 1 ] }}
""",
    "warm": f"""{_PYTHON}
input {{ name: "x" data_type: TYPE_FP32 dims: [ 3 ] }}
output {{ name: "first" data_type: TYPE_FP32 dims: [ 3 ] }}
output {{ name: "company" data_type: TYPE_INT64 dims: [ 1 ] }}
output {{ name: "runs" data_type: TYPE_INT64 dims: [ 1 ] }}
model_warmup {{
  name: "stored" batch_size: {WARM_ROWS} count: {WARM_COUNT}
  inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "stored_x" }} }}
}}
""",
}

_HEAD = """
import sys
sys.path.insert(0, {site!r})
import numpy as np
import triton_python_backend_utils as pb_utils
"""
# Answers texts turned around; one that holds `refuse` is an error of its own.
_TEXT = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request, len(requests)) for request in requests]

    def answer(self, request, company):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        if any(b"refuse" in text for text in texts.ravel()):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("this text is refused"))
        back = np.array([text[::-1] for text in texts.ravel()], dtype=object).reshape(texts.shape)
        counted = np.full((len(texts), 1), company, np.int64)
        tensors = {"back": back, "company": counted}
        names = request.requested_output_names()
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, tensors[name]) for name in names])
"""
# Answers with the first row that it was ever given, with how many requests came with it, and with how often
# it was run before.
_WARM = """
class TritonPythonModel:
    def initialize(self, args):
        self.first, self.company, self.runs = None, None, 0

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        if self.runs == 0:
            self.first, self.company = given[0][:1], len(requests)
        tensors = {
            "first": self.first,
            "company": np.array([[self.company]]),
            "runs": np.array([[self.runs]]),
        }
        self.runs += 1
        # What two answers share, Triton 2.51 frees twice.
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])
            for _ in requests
        ]
"""


def write_repository(repository: Path, site: Path) -> Sequence[str]:
    """Put all models into a repository; their names.

    Args:
        repository: made here.
        site: packages with a NumPy that Triton's Python backend understands.
    """
    for name, config in CONFIGS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    graphs = {"pair/1": pair(2), "pair/2": pair(3), "together": lookup(), "remembered": pair(2), "half": one_more()}
    for place, graph in graphs.items():
        folder = repository / (place if "/" in place else f"{place}/1")
        folder.mkdir(exist_ok=True)
        onnx.save(graph, folder / "model.onnx")
    head = _HEAD.format(site=str(site))
    for name, code in {"text": _TEXT, "text_together": _TEXT, "warm": _WARM}.items():
        (repository / name / "1" / "model.py").write_text(head + code)
    warmup = repository / "warm" / "warmup"
    warmup.mkdir()
    (warmup / "stored_x").write_bytes(np.array(WARM_SAMPLE, np.float32).tobytes())
    return list(CONFIGS)


def pair(number: int) -> onnx.ModelProto:
    """`share` is `a` divided by a number and `times` is `ids` multiplied by it: who answered shows."""
    nodes = [
        helper.make_node("Constant", [], ["divisor"], value_float=float(number)),
        helper.make_node("Constant", [], ["factor"], value=numpy_helper.from_array(np.array(number))),
        helper.make_node("Div", ["a", "divisor"], ["share"]),
        helper.make_node("Mul", ["ids", "factor"], ["times"]),
    ]
    inputs: Sides = {"a": (TensorProto.FLOAT, ["n", 3]), "ids": (TensorProto.INT64, ["n", "length"])}
    outputs: Sides = {"share": (TensorProto.FLOAT, ["n", 3]), "times": (TensorProto.INT64, ["n", "length"])}
    return _model(nodes, inputs, outputs)


def lookup() -> onnx.ModelProto:
    """`sum` is row `ids` of a table plus `a`; a number that is no row of it is an error when the graph is run."""
    nodes = [
        helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(TABLE)),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Constant", [], ["axis"], value=numpy_helper.from_array(np.array([1]))),
        helper.make_node("Unsqueeze", ["a", "axis"], ["beside"]),
        helper.make_node("Add", ["rows", "beside"], ["sum"]),
    ]
    inputs: Sides = {"ids": (TensorProto.INT64, ["n", 1]), "a": (TensorProto.FLOAT, ["n", 2])}
    return _model(nodes, inputs, {"sum": (TensorProto.FLOAT, ["n", 1, 2])})


def one_more() -> onnx.ModelProto:
    """`y` is `x` plus 1, both in half precision."""
    constant = numpy_helper.from_array(np.array(1, np.float16))
    nodes = [helper.make_node("Constant", [], ["one"], value=constant), helper.make_node("Add", ["x", "one"], ["y"])]
    return _model(nodes, {"x": (TensorProto.FLOAT16, ["n", "length"])}, {"y": (TensorProto.FLOAT16, ["n", "length"])})


def _model(nodes: Sequence[onnx.NodeProto], inputs: Sides, outputs: Sides) -> onnx.ModelProto:
    input_infos, answered = (
        [helper.make_tensor_value_info(name, *details) for name, details in side.items()] for side in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "small", input_infos, answered)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
