"""PyTorch model of a version folder, loaded like the reference: for the gate, and for Triton."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.loading import load
from plansmith.compilers.export.requests import LoadRequest
from plansmith.compilers.python_backend.batching import batches, parted
from plansmith.compilers.python_backend.model_folder import REQUIREMENTS_FILE, SOURCE_FOLDER, read_settings
from plansmith.compilers.python_backend.run import Running, set_threads
from plansmith.errors import EngineError, PlansmithError, first_line
from plansmith.records.model import BATCH, AxisRange

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    TensorRows = NDArray[np.generic] | torch.Tensor
    Feed = Mapping[str, NDArray[np.generic] | torch.Tensor]


def rows_from_tensor(tensor: Any) -> TensorRows:
    """Return a request tensor's data: an array if it is in CPU memory, else a tensor on its device.

    Args:
        tensor: a `pb_utils.Tensor`.
    """
    if not tensor.is_cpu():
        return torch_from_triton(tensor)
    array: NDArray[np.generic] = tensor.as_numpy()
    return array


def tensor_from_rows(name: str, rows: torch.Tensor) -> Any:
    """Return an output as a `pb_utils.Tensor`, which stays on its device.

    On the CPU it is given as an array: what comes by DLPack would be copied once more (`PbTensor` in pb_tensor.cc of
    the Python backend makes an array of it, whether anybody asks for one or not). So is an empty one, which the backend
    does not find contiguous (issue 6960 of Triton's server).

    Args:
        name: of the output.
        rows: contiguous; nothing that writes it is under way.
    """
    import triton_python_backend_utils as pb_utils

    if rows.device.type == "cpu" or not rows.numel():
        return pb_utils.Tensor(name, rows.cpu().numpy())
    return triton_from_torch(name, rows)


def torch_from_triton(tensor: Any) -> torch.Tensor:
    """Return a `pb_utils.Tensor` as a PyTorch tensor in the same memory, which is not written any more."""
    from torch.utils import dlpack

    result: torch.Tensor = dlpack.from_dlpack(tensor.to_dlpack())
    return result


def triton_from_torch(name: str, tensor: torch.Tensor) -> Any:
    """Return a `pb_utils.Tensor` that shares and keeps a PyTorch tensor's memory.

    Arguments as for `tensor_from_rows`.
    """
    import triton_python_backend_utils as pb_utils

    return pb_utils.Tensor.from_dlpack(name, tensor.detach().__dlpack__())


def merge_on_device(
    feeds: Sequence[Mapping[str, TensorRows]], device: torch.device, *, own: bool = False
) -> dict[str, torch.Tensor]:
    """Merge the inputs of several requests on a device; a single request already there is not copied.

    Args:
        feeds: the inputs of each request, of equal shapes behind the first dim.
        device: that the model is on.
        own: copy it nevertheless, as the model writes into its inputs, which others may read.
    """
    return {name: _merge([feed[name] for feed in feeds], device, own=own) for name in feeds[0]}


def _merge(values: Sequence[TensorRows], device: torch.device, *, own: bool) -> torch.Tensor:
    import numpy as np
    import torch

    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values):  # one transfer is faster than many
        return _tensor(np.concatenate(arrays) if len(arrays) > 1 else arrays[0]).to(device)
    tensors = [(_tensor(value) if isinstance(value, np.ndarray) else value).to(device) for value in values]
    if len(tensors) > 1:
        return torch.cat(tensors)
    return tensors[0].clone() if own else tensors[0]


def _tensor(array: NDArray[np.generic]) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


def load_folder(folder: Path, device: str, *, warm: bool = False) -> Running:
    """Load the model of a version folder, ready to run.

    Args:
        folder: that `model_folder.write_folder` wrote.
        device: by torch's name.
        warm: have torch.compile, where it is used, compile the model for all shapes that it is served for.

    Raises:
        SourceError: it cannot be loaded here.
        EngineError: it cannot be put on the device, or is another here than where it was compiled.
    """
    served = read_settings(folder)
    live = load(
        LoadRequest(
            scheme=served.scheme,
            folder=folder / SOURCE_FOLDER,
            trust_remote_code=served.trust_remote_code,
            task=served.task or "",
            inputs=served.described,
            outputs=served.wanted,
        )
    )
    actual = ([tensor.name for tensor in live.inputs.tensors], list(live.output_names))
    expected = ([tensor.name for tensor in served.inputs], [tensor.name for tensor in served.outputs])
    if actual != expected:
        raise EngineError(
            f"the model has the inputs and outputs {actual} here, and had {expected} when it was compiled",
            remedy=f"install what {REQUIREMENTS_FILE} beside it names",
        )
    running = Running(live.module, served, device)
    if warm and served.torch_compile:
        for sizes in warm_shapes(served.axes):
            running.ask(live.inputs.make({axis: sizes[axis] for axis in live.inputs.axes}))
    return running


def warm_shapes(axes: Mapping[str, AxisRange]) -> list[dict[str, int]]:
    """Return warmup shapes for which torch.compile compiles everything that later requests need.

    A second size of an axis makes it dynamic, and a size of 1 is compiled for itself (see "Dynamic Shapes" in PyTorch's
    documentation of torch.compile): so usual, largest, smallest, and a single sample of usual size.
    """
    usual = {axis: r.opt for axis, r in axes.items()}
    single = {axis: r.min if axis == BATCH else r.opt for axis, r in axes.items()}
    shapes = (usual, {axis: r.max for axis, r in axes.items()}, single, {axis: r.min for axis, r in axes.items()})
    return list({tuple(sizes.values()): sizes for sizes in shapes}.values())


class TritonPythonModel:
    """One model instance, with the interface of Triton's Python backend."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model.

        Args:
            args: Triton's words about the instance: its kind ("CPU" or "GPU"), the id of its GPU, the repository.

        Raises:
            pb_utils.TritonModelException: it cannot be loaded, or its threads are no number.
        """
        import triton_python_backend_utils as pb_utils

        config = json.loads(args["model_config"])
        self._batching = config["max_batch_size"] > 0
        on_gpu = args["model_instance_kind"] == "GPU"
        try:
            if not on_gpu:
                set_threads(config)
            self._model = load_folder(
                Path(args["model_repository"], args["model_version"]),
                f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu",
                warm=True,
            )
        except PlansmithError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        except ImportError as error:
            raise pb_utils.TritonModelException(
                f"{first_line(error)}: the Python of this server lacks what {REQUIREMENTS_FILE} beside model.py names"
            ) from error

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Execute requests, batching those of equal shape; if a batch fails, its requests run one by one."""
        feeds = [{tensor.name(): rows_from_tensor(tensor) for tensor in request.inputs()} for request in requests]
        responses: dict[int, Any] = {}
        for members in batches(feeds, batching=self._batching):
            responses |= self._answered(requests, feeds, members)
        return [responses[index] for index in range(len(requests))]

    def _answered(self, requests: Sequence[Any], feeds: Sequence[Feed], members: Sequence[int]) -> dict[int, Any]:
        """The responses to some requests, by their index."""
        import triton_python_backend_utils as pb_utils

        chosen = [feeds[index] for index in members]
        parts, refusal = self._parts(chosen)
        if refusal and len(members) > 1:
            alone = [self._answered(requests, feeds, [index]) for index in members]
            return {index: response for group in alone for index, response in group.items()}
        if refusal:
            return {members[0]: pb_utils.InferenceResponse(error=pb_utils.TritonError(refusal))}
        return {
            index: pb_utils.InferenceResponse(
                [tensor_from_rows(name, part[name]) for name in requests[index].requested_output_names()]
            )
            for index, part in zip(members, parts, strict=True)
        }

    def _parts(self, feeds: Sequence[Feed]) -> tuple[Sequence[Mapping[str, torch.Tensor]], str]:
        """The outputs for each feed of a batch, or none and the reason.

        The error itself ends here: it holds all that the failed run made, and the next run needs that memory.
        """
        try:
            answer = self._model.run(merge_on_device(feeds, self._model.device, own=self._model.writes))
            return parted(answer, feeds) if self._batching else [answer], ""
        except Exception as fault:  # noqa: BLE001 - whatever fails in a run is the answer to its requests
            return [], f"PyTorch: {type(fault).__name__}: {first_line(fault)}{self._model.loss()}"
