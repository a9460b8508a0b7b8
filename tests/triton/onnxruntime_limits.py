"""What one ONNX Runtime can read, found by trying: the newest opset and the newest file format.

Run it on a folder that `plansmith serve-env add` made, to fill in `max_opset` and `max_ir_version` of a new target:

    .venv/bin/python -m tests.triton.onnxruntime_limits .venv/share/plansmith/onnxruntime-1.28.0
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper, parser

# What exporters write for text and image models, as one graph.
GRAPH = """
g (float[2,4] x, int64[2] i, float[1,1,4,4] p) => (float[2,4] y, float[1,1,2,2] z)
<float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}, float[4] b = {1,2,3,4}, float[1,1,3,3] k = {1,1,1,1,1,1,1,1,1}>
{
  h = Gemm <transB = 1> (x, w, b)
  n = LayerNormalization <axis = -1> (h, b)
  m = MatMul (n, w)
  s = Softmax <axis = -1> (m)
  c = Cast <to = 1> (i)
  one = Constant <value_ints = [1]> ()
  shape = Shape (x)
  wide = Unsqueeze (c, one)
  grown = Expand (wide, shape)
  zero = Constant <value_int = 0> ()
  row = Gather <axis = 0> (grown, zero)
  full = ConstantOfShape (shape)
  equal = Equal (full, s)
  other = Not (equal)
  kept = Where (other, s, full)
  mean = ReduceMean <keepdims = 1> (kept, one)
  less = Sub (kept, mean)
  two = Constant <value_float = 2.0> ()
  square = Pow (less, two)
  root = Sqrt (square)
  part = Div (root, two)
  e = Erf (part)
  t = Tanh (e)
  sig = Sigmoid (t)
  sum = Add (sig, row)
  product = Mul (sum, sum)
  turned = Transpose <perm = [1, 0]> (product)
  minus = Constant <value_ints = [2, -1]> ()
  flat = Reshape (turned, minus)
  both = Concat <axis = 1> (flat, x)
  from = Constant <value_ints = [0]> ()
  to = Constant <value_ints = [4]> ()
  cut = Slice (both, from, to, one)
  y = Identity (cut)
  conv = Conv <pads = [1, 1, 1, 1]> (p, k)
  relu = Relu (conv)
  pool = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (relu)
  average = GlobalAveragePool (pool)
  flattened = Flatten (average)
  z = Add (pool, average)
}
"""

# Runs with the ONNX Runtime in question: the names of the models that load and run.
TRY = """
import json, os, sys
sys.path[:0] = sys.argv[2:]
import numpy, onnxruntime
assert onnxruntime.__file__.startswith(sys.argv[2]), onnxruntime.__file__
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = 1
types = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64}
done = []
for name in os.listdir(sys.argv[1]):
    try:
        session = onnxruntime.InferenceSession(os.path.join(sys.argv[1], name), options, ["CPUExecutionProvider"])
        session.run(None, {i.name: numpy.ones(i.shape, types[i.type]) for i in session.get_inputs()})
        done.append(name)
    except Exception as refused:
        print(name, str(refused).splitlines()[0][:300], file=sys.stderr)
print(json.dumps(done))
"""
OLDEST_OPSET = 18
OLDEST_IR_VERSION = 8


def onnxruntime_limits(*site: Path) -> tuple[int, int]:
    """The newest opset and the newest IR version that load and run, and all older ones with them.

    Args:
        site: the folders to put on `sys.path`, that of ONNX Runtime first.
    """
    with tempfile.TemporaryDirectory() as folder:
        opsets = range(OLDEST_OPSET, onnx.defs.onnx_opset_version() + 1)
        ir_versions = range(OLDEST_IR_VERSION, onnx.IR_VERSION + 1)
        for opset in opsets:
            onnx.save(model_of_opset(opset), Path(folder, f"opset {opset}"))
        for ir_version in ir_versions:
            onnx.save(model_of_ir_version(ir_version), Path(folder, f"ir {ir_version}"))
        command = [sys.executable, "-I", "-c", TRY, folder, *map(str, site)]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
    sys.stderr.write(process.stderr)
    read = set(json.loads(process.stdout))
    return _newest("opset", opsets, read), _newest("ir", ir_versions, read)


def model_of_opset(opset: int) -> onnx.ModelProto:
    """The graph at one opset, in an old file format."""
    return parser.parse_model(f'<ir_version: {OLDEST_IR_VERSION}, opset_import: ["": {opset}]>{GRAPH}')


def model_of_ir_version(ir_version: int) -> onnx.ModelProto:
    """One node of an old opset in one file format."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OLDEST_OPSET)], ir_version=ir_version)


def _newest(kind: str, numbers: range, read: set[str]) -> int:
    newest = numbers.start - 1
    while f"{kind} {newest + 1}" in read:
        newest += 1
    assert newest >= numbers.start, f"not even {kind} {numbers.start} is read"
    return newest


if __name__ == "__main__":
    newest = onnxruntime_limits(*map(Path, sys.argv[1:]))
    sys.stdout.write("max_opset: {}, max_ir_version: {}\n".format(*newest))
