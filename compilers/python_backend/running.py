"""A PyTorch module that answers as it is served: on a device, in a precision, with its own floats at both ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from plansmith.compilers.python_backend.casting import cast
from plansmith.compilers.python_backend.served_folder import ServedModel
from plansmith.errors import EngineError, first_line
from plansmith.isolation import Kept

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

    Raises:
        EngineError: PyTorch has no such device, or the model does not fit on it.
    """

    def __init__(self, module: torch.nn.Module, served: ServedModel, device: str) -> None:
        import torch

        self._served = served
        self._dtype = cast(module, served.precision)
        self._device = torch.device(device)
        try:
            module.to(self._device)
        except (RuntimeError, AssertionError) as error:
            raise EngineError(
                f"PyTorch {torch.__version__} cannot put the model on {device}: {first_line(error)}",
                remedy="use a PyTorch built for this machine's GPU and a GPU with room, or a target for the CPU",
            ) from error
        self._module, self._run = module, _compiled(module, served)
        self._kept = Kept(module)

    def ask(self, feed: Arrays) -> Arrays:
        """The answer to one batch; it raises whatever the model raises. Nothing is left in the module of what it saw.

        Args:
            feed: by name, as in the interface.

        Returns:
            Arrays of the interface's element types, contiguous.
        """
        import torch

        tensors = [self._taken(feed[tensor.name]) for tensor in self._served.inputs]
        try:
            with torch.inference_mode():
                answers = self._run(*tensors)
        finally:
            self._kept.put_back()
        return {
            tensor.name: answer.to("cpu", getattr(torch, tensor.dtype)).contiguous().numpy()
            for tensor, answer in zip(self._served.outputs, answers, strict=True)
        }

    def _taken(self, array: NDArray[np.generic]) -> torch.Tensor:
        """An array on the device; floats in the module's precision."""
        import numpy as np
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(device=self._device, dtype=self._dtype if tensor.is_floating_point() else tensor.dtype)


def _compiled(module: torch.nn.Module, served: ServedModel) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The module through torch.compile, where the spec asks for that."""
    import torch

    if not served.torch_compile:
        return module
    mode = None if served.torch_compile is True else served.torch_compile
    compiled: Callable[..., tuple[torch.Tensor, ...]] = torch.compile(module, mode=mode)
    return compiled
