"""Stand-in for Triton's ONNX Runtime backend on machines without the real one.

Triton's Python stub runs it, in an interpreter of its own, for every model whose configuration says
`backend: "onnxruntime"`. It serves on the CPU through the onnxruntime package of the folder `site` beside this file,
and refuses to load what the real backend would refuse.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:  # the stub finds the modules beside this one, a type checker in the package
    from plansmith.compilers.python_backend import batching
    from plansmith.triton.standin.onnxruntime import contract
    from plansmith.triton.standin.onnxruntime.settings import Illegal, Settings, settings_from_config
else:
    import batching
    import contract
    from settings import Illegal, settings_from_config

Arrays = Mapping[str, np.ndarray[Any, Any]]

GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


class TritonPythonModel:
    """One model instance, with the interface of Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model and check it against its configuration.

        Args:
            args: Triton's words about the instance; `model_config` is JSON.

        Raises:
            pb_utils.TritonModelException: the model cannot be served as it is configured.
        """
        self.config: dict[str, Any] = json.loads(args["model_config"])
        try:
            contract.check_served_here(self.config, args["model_instance_kind"])
            settings = settings_from_config(self.config)
            self.session = _session(_model_path(args, self.config), settings)
            inputs = _tensors(self.session.get_inputs())
            initializers = _tensors(self.session.get_overridable_initializers())
            outputs = _tensors(self.session.get_outputs())
            contract.check_inputs(self.config, inputs, initializers)
            contract.check_outputs(self.config, outputs)
        except (contract.UnservableModel, Illegal) as reason:
            message = f"unable to load model '{args['model_name']}': {reason}"
            raise pb_utils.TritonModelException(message) from reason
        self.run_options = ort.RunOptions()
        for key, value in settings.run_entries.items():
            self.run_options.add_run_config_entry(key, value)
        self.scalars = {tensor.name for tensor in (*inputs, *initializers) if not tensor.shape}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Execute requests, batching those of equal shape."""
        feeds = [self._feed(request) for request in requests]
        answers: dict[int, Any] = {}
        for members in batching.batches(feeds, batching=self.config["max_batch_size"] > 0):
            names = {name for index in members for name in requests[index].requested_output_names()}
            try:
                parts = self._run([feeds[index] for index in members], sorted(names))
            except Exception as fault:  # noqa: BLE001 - whatever fails in a run is the answer to its requests
                answers |= {index: _error_of(fault) for index in members}
                continue
            for index, part in zip(members, parts, strict=True):
                chosen = requests[index].requested_output_names()
                tensors = [pb_utils.Tensor(name, part[name]) for name in chosen]
                answers[index] = pb_utils.InferenceResponse(output_tensors=tensors)
        return [answers[index] for index in range(len(requests))]

    def _feed(self, request: Any) -> Arrays:
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return {name: array.reshape(()) if name in self.scalars else array for name, array in arrays.items()}

    def _run(self, feeds: list[Arrays], names: list[str]) -> list[Arrays]:
        values = self.session.run(names, dict(batching.merged(feeds)), self.run_options)
        answer = dict(zip(names, values, strict=True))
        if self.config["max_batch_size"] == 0:
            return [{name: self._shaped(name, value) for name, value in answer.items()}]
        return batching.parted(answer, feeds)

    def _shaped(self, name: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Reshape a scalar to the configured dims; Triton has no rank 0."""
        if value.shape:
            return value
        return value.reshape(next(tensor["dims"] for tensor in self.config["output"] if tensor["name"] == name))


def _error_of(fault: Exception) -> Any:
    """A response with an error of its own.

    Triton 2.51 crashes with a segmentation fault where two responses share one.
    """
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"onnxruntime: {fault}"))


def _model_path(args: dict[str, str], config: dict[str, Any]) -> Path:
    path = Path(args["model_repository"], args["model_version"], config["default_model_filename"] or "model.onnx")
    if path.is_dir():
        path = path / "model.onnx"
    if not path.is_file():
        raise contract.UnservableModel(f"unable to find '{path}'")
    return path


def _session(path: Path, settings: Settings) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = GRAPH_LEVELS.get(settings.graph_level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if settings.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    options.enable_cpu_mem_arena = settings.memory_arena
    options.enable_mem_pattern = settings.memory_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _tensors(described: list[Any]) -> list[contract.Tensor]:
    return [contract.tensor_from_onnxruntime(entry.name, entry.type, entry.shape) for entry in described]
