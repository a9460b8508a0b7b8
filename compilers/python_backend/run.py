"""PyTorch module as served: on a device, in a precision, with its own float types for inputs and outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plansmith.compilers.python_backend.model_folder import ServedModel
from plansmith.errors import EngineError, UsageError, first_line
from plansmith.records.model import Precision
from plansmith.sources.loaded_model import ModuleSnapshot, writes_into

if TYPE_CHECKING:
    import torch

    from plansmith.records.arrays import Arrays

_CPU = "KIND_CPU"


def cast(module: torch.nn.Module, precision: Precision) -> torch.dtype:
    """Cast the floating-point weights of a module to a precision, and return its dtype.

    What a state holds becomes lower, as when transformers loads a model with `dtype`: what a model computes for itself
    (buffers that are not saved, as the frequencies of rotary embeddings) stays FP32, and so do the parts that its class
    names in `_keep_in_fp32_modules` (FP16 only) and `_keep_in_fp32_modules_strict`: see
    `PreTrainedModel._get_dtype_plan` in transformers' modeling_utils.py.

    Args:
        module: in FP32; changed.
        precision: FP32, FP16 or BF16.
    """
    import torch

    dtype = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}[precision]
    if precision is Precision.FP32:
        return dtype
    patterns = _fp32_patterns(module, precision)
    saved = set(module.state_dict(keep_vars=True))
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in saved and tensor.is_floating_point() and not any(pattern.search(name) for pattern in patterns):
                tensor.data = tensor.data.to(dtype)
    return dtype


def _fp32_patterns(module: torch.nn.Module, precision: Precision) -> list[re.Pattern[str]]:
    """Name patterns of the weights that stay FP32."""
    names: list[str] = []
    for part in module.modules():
        names += getattr(part, "_keep_in_fp32_modules_strict", None) or ()
        if precision is Precision.FP16:
            names += getattr(part, "_keep_in_fp32_modules", None) or ()
    return [re.compile(rf"((^|\.){re.escape(name)}($|\.))") for name in dict.fromkeys(names)]


INTRA_OP, INTER_OP = "INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT"
"""Parameters of a model's configuration, by the names of Triton's PyTorch backend (pytorch_backend, README.md)."""


def set_threads(config: Mapping[str, Any]) -> None:
    """Set this process's thread counts, before any PyTorch operation.

    Args:
        config: the model's configuration, as Triton's Python backend has it.

    Raises:
        UsageError: a parameter is no number of threads.
    """
    import torch

    intra_op, inter_op = thread_counts(config, len(os.sched_getaffinity(0)))
    torch.set_num_threads(intra_op)
    torch.set_num_interop_threads(inter_op)


def thread_counts(config: Mapping[str, Any], cores: int) -> tuple[int, int]:
    """Return the intra-op and inter-op threads of each instance.

    By default the cores are divided among the model's instances on the CPU, and operators run one after the other.

    Args:
        config: as for `set_threads`.
        cores: that the server may use.

    Raises:
        UsageError: a parameter is no number of threads.
    """
    groups = config.get("instance_group", ())
    instances = sum(int(group.get("count", 1)) for group in groups if group.get("kind") == _CPU)
    share = max(1, cores // max(1, instances))
    return _parameter(config, INTRA_OP) or share, _parameter(config, INTER_OP) or 1


def _parameter(config: Mapping[str, Any], name: str) -> int | None:
    text = config.get("parameters", {}).get(name, {}).get("string_value", "")
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(
            f"the parameter {name} is {text!r}, and no number of threads",
            remedy=f'write `triton: {{parameters: {{{name}: "2"}}}}` in the spec, or leave it out',
        )
    return int(text)


class Running:
    """A loaded module, ready to run.

    Args:
        module: takes the inputs by position and gives a tuple of outputs; in eval mode and FP32; it is changed.
        served: its interface, and what it runs in.
        device: by torch's name, such as "cpu" or "cuda:1".

    Attributes:
        device: that it runs on.
        writes: whether it was seen to write into its inputs, which are then to be its own.

    Raises:
        EngineError: PyTorch has no such device, or the model does not fit on it.
    """

    def __init__(self, module: torch.nn.Module, served: ServedModel, device: str) -> None:
        import torch

        self._served = served
        self._dtype = place(module, served.precision, device)
        self.device = torch.device(device)
        if not served.torch_compile:  # a look at every index would cut what is compiled in two
            guard_indices(module)
        self._run = _compiled(module, served)
        self._snapshot = ModuleSnapshot(module)
        self.writes = False

    def ask(self, feed: Arrays) -> Arrays:
        """Run one batch and return the outputs; raises what the model raises. The module keeps no state of the call.

        Args:
            feed: by name, as in the interface.

        Returns:
            Arrays of the interface's element types, contiguous.
        """
        import numpy as np
        import torch

        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feed.items()}
        return {name: answer.cpu().numpy() for name, answer in self.run(tensors).items()}

    def run(self, feed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """As `ask`, for tensors on any device.

        The answers lie where the module made them, and no later run changes them. Nothing is under way on the
        device any more, so that whatever failed there is raised here.
        """
        import torch

        tensors = [self._load_input(feed[tensor.name]) for tensor in self._served.inputs]
        writes = list(map(writes_into, tensors))
        try:
            with torch.inference_mode():
                answers = self._run(*tensors)
        finally:
            self._snapshot.put_back()
            self.writes = self.writes or writes != list(map(writes_into, tensors))
        results = {
            tensor.name: self._export_output(answer, tensor.dtype, tensors)
            for tensor, answer in zip(self._served.outputs, answers, strict=True)
        }
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return results

    def loss(self) -> str:
        """As `loss_of`, for the device of this module."""
        return loss_of(self.device)

    def _load_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the device; floats are cast to the module's precision where that is lower."""
        import torch

        lowered = tensor.is_floating_point() and self._dtype is not torch.float32
        return tensor.to(device=self.device, dtype=self._dtype if lowered else tensor.dtype)

    def _export_output(self, answer: torch.Tensor, dtype: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Convert an output to the interface's data type, contiguous; on a GPU in memory of its own.

        CUDA graphs of a compiled model write the next answer to the same memory (see "CUDAGraph Trees" in PyTorch's
        documentation), and an input's may belong to another process, and cannot be handed on (pull request 62 of
        Triton's python_backend).
        """
        import torch

        output = answer.to(getattr(torch, dtype)).contiguous()
        pointers = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        is_shared = bool(self._served.torch_compile) or output.untyped_storage().data_ptr() in pointers
        return output.clone() if output.is_cuda and is_shared else output


def place(module: torch.nn.Module, precision: Precision, device: str) -> torch.dtype:
    """Move a module to a device in a precision, and return its torch dtype; errors as for `Running`."""
    import torch

    dtype = cast(module, precision)
    try:
        module.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        raise EngineError(
            f"PyTorch {torch.__version__} cannot put the model on {device}: {first_line(error)}",
            remedy="use a PyTorch built for this machine's GPU and a GPU with room, or a target for the CPU",
        ) from error
    if dtype is torch.float32:
        # TF32 keeps 10 bits of a product's factors; the reference does without it, too.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return dtype


def loss_of(device: torch.device) -> str:
    """Describe an error after which the GPU is lost for this process; empty if it still works.

    An assertion that fails on the GPU, or an illegal access there, ends the CUDA context for good (see "Error
    Handling" in NVIDIA's CUDA Runtime API: the process has to be started again); Triton starts one for each load.
    """
    import torch

    if device.type != "cuda":
        return ""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return "; the GPU answers this process no more: have Triton load the model again"
    return ""


def guard_indices(module: torch.nn.Module) -> None:
    """Make a module's embeddings refuse indices beyond their table, as they do on a CPU.

    A GPU would find it in the middle of a kernel, and answer nobody from then on: one bad token, or a sequence longer
    than the table of positions, would end the service for all.

    Args:
        module: changed.
    """
    import torch

    for part in module.modules():
        # A class of its own may take something else: OPT's table of positions takes the mask.
        if isinstance(part, torch.nn.Embedding) and type(part).forward is torch.nn.Embedding.forward:
            part.register_forward_pre_hook(_require_known)


def _require_known(part: torch.nn.Embedding, arguments: tuple[torch.Tensor, ...]) -> None:
    """Require that indices are within an embedding's table.

    Raises:
        IndexError: one is not.
    """
    import torch

    rows = part.weight.shape[0]
    if not arguments or not arguments[0].numel():
        return
    low, high = torch.stack(torch.aminmax(arguments[0])).tolist()
    if low < 0 or high >= rows:
        raise IndexError(f"index out of range: {low if low < 0 else high} in a table of {rows} rows")


def _compiled(module: torch.nn.Module, served: ServedModel) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The module compiled with torch.compile, where the spec enables that."""
    import torch

    if not served.torch_compile:
        return module
    mode = None if served.torch_compile is True else served.torch_compile
    compiled: Callable[..., tuple[torch.Tensor, ...]] = torch.compile(module, mode=mode)
    return compiled
