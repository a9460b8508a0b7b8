"""The models that the client asks in its tests, as a repository for Triton."""

from __future__ import annotations

from pathlib import Path

from plansmith.records.model import Tensor
from plansmith.records.release import Interface

# What a release would say of `tiny`.
TINY = Interface(
    inputs=(
        Tensor(name="a", dtype="float32", dims=("batch", 3)),
        Tensor(name="ids", dtype="int64", dims=("batch", "length")),
    ),
    outputs=(
        Tensor(name="half", dtype="float32", dims=("batch", 3)),
        Tensor(name="twice", dtype="int64", dims=("batch", "length")),
    ),
)

# By hand, and not the product's own table, which it is there to judge.
DTYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    "string": "STRING",
}

_HEAD = """
import sys
sys.path.insert(0, {site!r})
import time
import numpy as np
import triton_python_backend_utils as pb_utils
"""

# Gives back what it is sent; bfloat16, which NumPy lacks, through DLPack; for "no text" bytes that are none.
_ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.back(t) for t in request.inputs()]) for request in requests]

    def back(self, tensor):
        if tensor.name() == "bfloat16":
            return pb_utils.Tensor.from_dlpack("their_" + tensor.name(), tensor.to_dlpack())
        values = tensor.as_numpy()
        if tensor.name() == "string" and values.size == 1 and values.item() == b"no text":
            values = np.array([[b"\\xff\\x00"]], dtype=object)
        return pb_utils.Tensor("their_" + tensor.name(), values)
"""

# As many zeros a sample as the first sample says; below zero it fails, or takes its time.
_MOODY = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "mood").as_numpy()) for r in requests]

    def answer(self, mood):
        if mood[0] == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("not in the mood"))
        if mood[0] == -2:
            time.sleep(3)
        return pb_utils.InferenceResponse([pb_utils.Tensor("said", np.zeros((len(mood), max(mood[0], 1)), np.float32))])
"""

# The version that answers, for each sample.
_CHANGING = """
class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        counts = [len(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("which", np.full(n, self.version))]) for n in counts]
"""


def write_echo(repository: Path, site: Path) -> None:
    """`echo`: each input may be left out and comes back; `value` is one number a sample."""
    rows = [(name, f"data_type: TYPE_{triton} dims: [ -1 ]") for name, triton in DTYPES.items()]
    rows.append(("value", "data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] }"))
    inputs = ", ".join(f'{{ name: "{name}" {rest} optional: true }}' for name, rest in rows)
    outputs = ", ".join(f'{{ name: "their_{name}" {rest} }}' for name, rest in rows)
    text = f'backend: "python"\nmax_batch_size: 4\ninput [ {inputs} ]\noutput [ {outputs} ]\n'
    write_python_model(repository, "echo", text + "instance_group [ { kind: KIND_CPU } ]\n", _ECHO, site)


def write_moody(repository: Path, site: Path) -> None:
    """`moody`: answers, fails or dawdles, as its input says."""
    text = (
        'backend: "python"\nmax_batch_size: 2\n'
        'input { name: "mood" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } }\n'
        'output { name: "said" data_type: TYPE_FP32 dims: [ -1 ] }\ninstance_group [ { kind: KIND_CPU } ]\n'
    )
    write_python_model(repository, "moody", text, _MOODY, site)


def write_changing(repository: Path, site: Path, version: int = 1) -> None:
    """`changing`: says which version answers; with all its versions it is loaded."""
    value = "data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] }"
    text = (
        'backend: "python"\nmax_batch_size: 2\nversion_policy: { all: {} }\n'
        f'input {{ name: "x" {value} }}\noutput {{ name: "which" {value} }}\ninstance_group [ {{ kind: KIND_CPU }} ]\n'
    )
    write_python_model(repository, "changing", text, _CHANGING, site, version)


def write_python_model(repository: Path, name: str, config: str, code: str, site: Path, version: int = 1) -> None:
    """Put a model of this code into a repository."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (folder / "model.py").write_text(_HEAD.format(site=str(site)) + code)
