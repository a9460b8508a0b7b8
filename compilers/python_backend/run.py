"""A PyTorch module that answers as it is served: on a device, in a precision, with its own floats at both ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.compilers.python_backend.cast import cast
from plansmith.compilers.python_backend.model_folder import ServedModel
from plansmith.errors import EngineError, first_line
from plansmith.records.model import Precision
from plansmith.sources.module_state import ModuleSnapshot, writes_into

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


class Running:
    """A loaded module, ready to be asked.

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
        self._kept = ModuleSnapshot(module)
        self.writes = False

    def ask(self, feed: Arrays) -> Arrays:
        """The answer to one batch; it raises whatever the model raises. Nothing is left in the module of what it saw.

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
        """As `ask`, of tensors on any device.

        The answers lie where the module made them, and no later run changes them. Nothing is under way on the
        device any more, so that whatever failed there is raised here.
        """
        import torch

        tensors = [self._taken(feed[tensor.name]) for tensor in self._served.inputs]
        writes = list(map(writes_into, tensors))
        try:
            with torch.inference_mode():
                answers = self._run(*tensors)
        finally:
            self._kept.put_back()
            self.writes = self.writes or writes != list(map(writes_into, tensors))
        found = {
            tensor.name: self._given(answer, tensor.dtype, tensors)
            for tensor, answer in zip(self._served.outputs, answers, strict=True)
        }
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return found

    def loss(self) -> str:
        """As `loss_of`, of the device that this one runs on."""
        return loss_of(self.device)

    def _taken(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the device; floats in the module's precision where that is a lower one."""
        import torch

        lowered = tensor.is_floating_point() and self._dtype is not torch.float32
        return tensor.to(device=self.device, dtype=self._dtype if lowered else tensor.dtype)

    def _given(self, answer: torch.Tensor, dtype: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """An answer in the interface's element type, contiguous; on a GPU in memory that is its own.

        CUDA graphs of a compiled model write the next answer to the same memory (see "CUDAGraph Trees" in PyTorch's
        documentation), and an input's may belong to another process, and cannot be handed on (pull request 62 of
        Triton's python_backend).
        """
        import torch

        made = answer.to(getattr(torch, dtype)).contiguous()
        taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        is_shared = bool(self._served.torch_compile) or made.untyped_storage().data_ptr() in taken
        return made.clone() if made.is_cuda and is_shared else made


def place(module: torch.nn.Module, precision: Precision, device: str) -> torch.dtype:
    """Put a module on a device, in a precision, which is told as torch has it; errors as for `Running`."""
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
    """Words for an error after which the GPU gives this process no more answers; empty where it does.

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
    """Have a module's embeddings refuse what is not in their table, as they do on a CPU.

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
    """See that indices are in the table of an embedding.

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
    """The module through torch.compile, where the spec asks for that."""
    import torch

    if not served.torch_compile:
        return module
    mode = None if served.torch_compile is True else served.torch_compile
    compiled: Callable[..., tuple[torch.Tensor, ...]] = torch.compile(module, mode=mode)
    return compiled
