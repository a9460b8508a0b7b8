"""Tensors of a PyTorch model in Triton's Python backend stay on the GPU, and come back as from the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plansmith.compilers.python_backend.model_folder import PROLOGUE
from plansmith.data.reference import read_case
from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import find_installation, require_python
from plansmith.triton.server.server import TritonServer

from ..support.models.python_backend import ODD_INPUTS, ODD_SHAPES, lay_out, put_into, write_odd
from .machine import in_child

pytestmark = pytest.mark.gpu

_ON_BOTH = """
import json, sys
from pathlib import Path
import numpy as np, torch
from plansmith.compilers.python_backend.model import merge_on_device
from plansmith.compilers.python_backend.model import load_folder

model = load_folder(Path(sys.argv[1]), "cuda:0")
ids = np.arange(6, dtype=np.int64).reshape(2, 3)
lying = torch.from_numpy(ids).cuda()
alone = merge_on_device([{"input_ids": lying}], model.device)
mixed = merge_on_device([{"input_ids": lying}, {"input_ids": ids}], model.device)
answer = model.run(mixed)["last_hidden_state"]
print(json.dumps({
    "shared": alone["input_ids"].data_ptr() == lying.data_ptr(),
    "places": [mixed["input_ids"].device.type, answer.device.type],
    "equal": bool((answer[:2] == answer[2:]).all()),
    "as asked": bool((answer[:2].cpu().numpy() == model.ask({"input_ids": ids})["last_hidden_state"]).all()),
}))
"""

# The model as it is served, which fails where an input does not lie on the GPU.
_WATCHED = """from plansmith.compilers.python_backend.model import TritonPythonModel as Served


class TritonPythonModel(Served):
    def execute(self, requests):
        assert not any(tensor.is_cpu() for request in requests for tensor in request.inputs())
        return super().execute(requests)
"""

# Asks it with a tensor of the GPU, and wants the answer there.
_ASKING = """import torch
import numpy as np
import triton_python_backend_utils as pb_utils

from plansmith.compilers.python_backend.model import torch_from_triton, triton_from_torch


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, ids):
        asked = pb_utils.InferenceRequest(
            model_name="odd",
            requested_output_names=["last_hidden_state"],
            inputs=[triton_from_torch("input_ids", torch.from_numpy(ids.copy()).cuda())],
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
        ).exec()
        if asked.has_error():
            return pb_utils.InferenceResponse(error=asked.error())
        (states,) = asked.output_tensors()
        found = torch_from_triton(states).cpu().numpy()
        told = [pb_utils.Tensor("states", found), pb_utils.Tensor("on_gpu", np.array([int(not states.is_cpu())]))]
        return pb_utils.InferenceResponse(told)
"""
_CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "ids" data_type: TYPE_INT64 dims: [ -1, -1 ] }
output { name: "states" data_type: TYPE_FP32 dims: [ -1, -1, -1 ] }
output { name: "on_gpu" data_type: TYPE_INT64 dims: [ 1 ] }
instance_group { kind: KIND_GPU gpus: [ 0 ] }
"""


def test_gpu_tensors_not_copied(tmp_path: Path) -> None:
    """What lies on the GPU is not copied and goes with what does not."""
    odd = write_odd(tmp_path / "source")
    laid = lay_out(odd, tmp_path / "odd", shapes=ODD_SHAPES, described=ODD_INPUTS, trust_remote_code=True)
    result = in_child(_ON_BOTH, str(laid.folder))
    assert result == {"shared": True, "places": ["cuda", "cuda"], "equal": True, "as asked": True}


def test_tensors_pass_between_gpu_models(tmp_path: Path) -> None:
    """Tensors go from model to model on the GPU."""
    from tritonclient import http

    try:
        installation = find_installation()
        require_python(installation)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    odd = write_odd(tmp_path / "source")
    laid = lay_out(odd, tmp_path / "odd", shapes=ODD_SHAPES, described=ODD_INPUTS, trust_remote_code=True)
    repository = tmp_path / "repository"
    (laid.folder / "model.py").write_text(PROLOGUE + _WATCHED)
    put_into(repository, "odd", laid, delay_microseconds=0, device="gpu")
    (repository / "asking" / "1").mkdir(parents=True)
    (repository / "asking" / "config.pbtxt").write_text(_CONFIG)
    (repository / "asking" / "1" / "model.py").write_text(PROLOGUE + _ASKING)
    case = read_case(next(c for c in laid.onnx.reference.cases if c.name == "opt"), laid.reference)
    ids = case.feed["input_ids"]
    with (
        TritonServer(repository, installation, tmp_path / "log", deadline_seconds=240) as server,
        http.InferenceServerClient(server.http_url) as client,
    ):
        tensor = http.InferInput("ids", list(ids.shape), "INT64")
        tensor.set_data_from_numpy(ids)
        answer = client.infer("asking", [tensor])
    np.testing.assert_allclose(
        answer.as_numpy("states"), np.asarray(case.answer["last_hidden_state"], np.float32), rtol=1e-5, atol=1e-5
    )
    assert answer.as_numpy("on_gpu").tolist() == [1]
