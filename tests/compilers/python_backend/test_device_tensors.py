"""Tensors go between Triton and PyTorch by DLPack as they are, in the same memory, in the real Python backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from plansmith.compilers.python_backend.model import merge_on_device
from plansmith.compilers.python_backend.model_folder import PROLOGUE
from plansmith.config.spec import INPUT_DTYPES
from plansmith.errors import EnvironmentFault
from plansmith.triton.dtypes import CONFIG_TYPES
from plansmith.triton.server.installation import find_installation, require_python
from plansmith.triton.server.server import TritonServer

ONE = torch.device("cpu")

ECHO = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from plansmith.compilers.python_backend import model as device_tensors


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.back(t) for t in request.inputs()]) for request in requests]

    def back(self, tensor):
        name = "their_" + tensor.name()
        taken = device_tensors.torch_from_triton(tensor)
        assert taken.data_ptr() == device_tensors.torch_from_triton(tensor).data_ptr()
        made = taken.clone()
        given = device_tensors.triton_from_torch(name, made)
        assert device_tensors.torch_from_triton(given).data_ptr() == made.data_ptr()
        return given
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model gives back what it is sent, by DLPack."""
    try:
        installation = find_installation()
        require_python(installation)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    folder = tmp_path_factory.mktemp("dlpack")
    model = folder / "repository" / "echo"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(PROLOGUE + ECHO)
    tensors = "".join(
        f'{kind} {{ name: "{prefix}{dtype}" data_type: {CONFIG_TYPES[dtype]} dims: [ -1, -1, -1 ] {more} }}\n'
        for kind, prefix, more in (("input", "", "optional: true"), ("output", "their_", ""))
        for dtype in INPUT_DTYPES
    )
    parameter = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
    instances = "instance_group { kind: KIND_CPU }\n"
    (model / "config.pbtxt").write_text(f'backend: "python"\nmax_batch_size: 0\n{tensors}{parameter}{instances}')
    with TritonServer(folder / "repository", installation, folder / "log", deadline_seconds=240) as server:
        yield server.http_url


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.xdist_group("python-backend")
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 1, 4), (2, 4, 1), (1, 1, 1)], ids=str)
def test_dtypes_survive_round_trip(url: str, shape: tuple[int, ...]) -> None:
    """Sides of one among them, whose strides PyTorch and Triton have to agree on."""
    from tritonclient import http
    from tritonclient.utils import np_to_triton_dtype

    values = np.random.default_rng(0).integers(0, 2, size=shape)
    inputs = []
    for dtype in INPUT_DTYPES:
        array = values.astype(dtype)
        inputs.append(http.InferInput(dtype, list(shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    with http.InferenceServerClient(url) as client:
        answer = client.infer("echo", inputs)
    for dtype in INPUT_DTYPES:
        output = answer.as_numpy(f"their_{dtype}")
        assert output is not None
        assert output.dtype == dtype
        np.testing.assert_array_equal(output, values.astype(dtype))


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_single_request_copied_for_writer(kind: str) -> None:
    """An array of the CPU's memory is the model's own already."""
    rows: Any = np.ones((2, 3), np.float32) if kind == "array" else torch.ones((2, 3))
    place = rows.ctypes.data if kind == "array" else rows.data_ptr()
    assert merge_on_device([{"x": rows}], ONE)["x"].data_ptr() == place
    assert (merge_on_device([{"x": rows}], ONE, own=True)["x"].data_ptr() == place) is (kind == "array")


def test_device_and_host_requests_merge() -> None:
    """Each keeps its place in the batch."""
    rows: list[Any] = [torch.full((1, 2), 1.0), np.full((2, 2), 2, np.float32), torch.full((1, 2), 3.0)]
    batch = merge_on_device([{"x": row} for row in rows], ONE)["x"]
    assert batch[:, 0].tolist() == [1, 2, 2, 3]
