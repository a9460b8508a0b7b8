"""The PyTorch model of a version's folder, loaded as the reference was: for the gate, and for Triton."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.loading import load
from plansmith.compilers.export.requests import LoadRequest
from plansmith.compilers.python_backend.batching import batches, parted
from plansmith.compilers.python_backend.device_tensors import merge_on_device, rows_from_tensor, tensor_from_rows
from plansmith.compilers.python_backend.model_folder import REQUIREMENTS_FILE, SOURCE_FOLDER, read_settings
from plansmith.compilers.python_backend.run import Running
from plansmith.compilers.python_backend.threads import set_threads
from plansmith.errors import EngineError, PlansmithError, first_line
from plansmith.records.model import BATCH, AxisRange

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Rows = Mapping[str, NDArray[np.generic] | torch.Tensor]


def load_folder(folder: Path, device: str, *, warm: bool = False) -> Running:
    """The model of a version's folder, ready to be asked.

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
    made = ([tensor.name for tensor in live.inputs.tensors], list(live.output_names))
    told = ([tensor.name for tensor in served.inputs], [tensor.name for tensor in served.outputs])
    if made != told:
        raise EngineError(
            f"the model has the inputs and outputs {made} here, and had {told} when it was compiled",
            remedy=f"install what {REQUIREMENTS_FILE} beside it names",
        )
    running = Running(live.module, served, device)
    if warm and served.torch_compile:
        for sizes in warm_shapes(served.axes):
            running.ask(live.inputs.make({axis: sizes[axis] for axis in live.inputs.axes}))
    return running


def warm_shapes(axes: Mapping[str, AxisRange]) -> list[dict[str, int]]:
    """Shapes that have torch.compile compile all that requests need later.

    A second size of an axis makes it dynamic, and a size of 1 is compiled for itself (see "Dynamic Shapes" in PyTorch's
    documentation of torch.compile): so usual, largest, smallest, and a single sample of usual size.
    """
    usual = {axis: r.opt for axis, r in axes.items()}
    single = {axis: r.min if axis == BATCH else r.opt for axis, r in axes.items()}
    found = (usual, {axis: r.max for axis, r in axes.items()}, single, {axis: r.min for axis, r in axes.items()})
    return list({tuple(sizes.values()): sizes for sizes in found}.values())


class TritonPythonModel:
    """One instance of the model, as Triton's Python backend wants it."""

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
        """Answer requests, those of equal shapes as one batch; what fails in a batch is asked again one by one."""
        feeds = [{tensor.name(): rows_from_tensor(tensor) for tensor in request.inputs()} for request in requests]
        responses: dict[int, Any] = {}
        for members in batches(feeds, batching=self._batching):
            responses |= self._answered(requests, feeds, members)
        return [responses[index] for index in range(len(requests))]

    def _answered(self, requests: Sequence[Any], feeds: Sequence[Rows], members: Sequence[int]) -> dict[int, Any]:
        """The responses to some requests, by their index."""
        import triton_python_backend_utils as pb_utils

        chosen = [feeds[index] for index in members]
        parts, refusal = self._parts(chosen)
        if refusal and len(members) > 1:
            alone = [self._answered(requests, feeds, [index]) for index in members]
            return {index: response for one in alone for index, response in one.items()}
        if refusal:
            return {members[0]: pb_utils.InferenceResponse(error=pb_utils.TritonError(refusal))}
        return {
            index: pb_utils.InferenceResponse(
                [tensor_from_rows(name, part[name]) for name in requests[index].requested_output_names()]
            )
            for index, part in zip(members, parts, strict=True)
        }

    def _parts(self, feeds: Sequence[Rows]) -> tuple[Sequence[Mapping[str, torch.Tensor]], str]:
        """The answer to each feed of a batch, or none and why.

        The error itself ends here: it holds all that the failed run made, and the next run needs that memory.
        """
        try:
            answer = self._model.run(merge_on_device(feeds, self._model.device, own=self._model.writes))
            return parted(answer, feeds) if self._batching else [answer], ""
        except Exception as fault:  # noqa: BLE001 - whatever fails in a run is the answer to its requests
            return [], f"PyTorch: {type(fault).__name__}: {first_line(fault)}{self._model.loss()}"
