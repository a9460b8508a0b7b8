"""A model ready to be asked, and one that is loaded and ready to be exported. Lives in the worker only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from plansmith.data.columns import Takes
from plansmith.data.sample import Sample
from plansmith.errors import EnvironmentFault, first_line
from plansmith.records.model import BATCH, AxisRange, ExportDevice, Record, Tensor
from plansmith.sources.module_state import left_as_it_was

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

SEQUENCE = "sequence"


class Signature(Record):
    """What a loaded model tells of itself before it is exported.

    `axes`: a range for every named dim of the inputs; `limits`: the largest size that the model can take,
    where it has one; `mask_input`: the input that marks padding with 0; `shape_inputs`: those whose contents decide
    shapes, as far as that is known before there is a graph.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    axes: dict[str, AxisRange]
    limits: dict[str, int]
    mask_input: str | None
    shape_inputs: tuple[str, ...] = ()


Align = Literal["", "tags", "answer"]
"""Labels that stand at tokens, and so come out of the encoding."""


@dataclass(frozen=True)
class Encoded:
    """One batch of samples as the model takes it, and the labels that stand at its tokens (see `data.labels`)."""

    feed: dict[str, NDArray[np.generic]]
    labels: dict[str, NDArray[np.generic]]


Encode = Callable[[Sequence[Sample], Mapping[str, AxisRange], Align], Encoded]
"""Makes one batch of samples, no axis longer than its range allows, nor shorter."""


@dataclass(frozen=True)
class InputPlan:
    """What a model is fed with.

    Args:
        tensors: names, dtypes and named dims, in the model's order.
        axes: a range for every named dim, used where nobody gives one.
        limits: the largest size that the model can take, for the named dims that have a limit.
        mask_input: the input that marks padding with 0, if there is one.
        make: inputs for given sizes of the axes, the same ones for the same sizes.
        data: what the inputs are, in words, for the manifest.
        takes: which columns of somebody's data can become inputs.
        encode: makes inputs of such data.
        guessed: nothing describes the inputs: values are drawn at random, and sizes inside of `axes` may be refused.
        random_values: their form is known, and nothing makes real values: there is no tokenizer or processor.
    """

    tensors: tuple[Tensor, ...]
    axes: dict[str, AxisRange]
    limits: dict[str, int]
    mask_input: str | None
    make: Callable[[Mapping[str, int]], dict[str, NDArray[np.generic]]]
    data: str
    takes: Takes
    encode: Encode
    guessed: bool = False
    random_values: bool = False

    @property
    def drawn(self) -> bool:
        """Whether values are drawn at random, for whichever reason."""
        return self.guessed or self.random_values

    def signature(self, outputs: Sequence[str]) -> Signature:
        """What can be said of the model without asking it."""
        return Signature(
            inputs=self.tensors,
            outputs=tuple(outputs),
            axes=self.axes,
            limits=self.limits,
            mask_input=self.mask_input,
        )

    def able(self, axes: Mapping[str, AxisRange]) -> dict[str, AxisRange]:
        """The sizes that the model itself can take, as far as is known.

        Args:
            axes: the ranges that it is compiled for: all that is known, but for the batch, when the plan is guessed.
        """
        if not self.guessed:
            return self.axes
        return {axis: self.axes[axis] if axis == BATCH else given for axis, given in axes.items()}


@dataclass(frozen=True)
class LoadedModel:
    """A PyTorch module with positional tensors in and a tuple of tensors out, and what is known about it.

    Args:
        module: in eval mode, FP32; on the CPU until it is moved.
        inputs: what to feed it with, in the order of the module's arguments.
        output_names: one per tensor that the module returns.
        exportable: while entered, the module is in the form that exports best; same answers.
    """

    module: torch.nn.Module
    inputs: InputPlan
    output_names: tuple[str, ...]
    exportable: Callable[[], AbstractContextManager[None]]

    def ask(self, feed: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run the module on one batch: names to arrays, in and out. Nothing is left in it of what it saw."""
        import torch

        tensors = (torch.from_numpy(feed[tensor.name]).to(self.device) for tensor in self.inputs.tensors)
        with torch.inference_mode(), left_as_it_was(self.module):
            answers = self.module(*tensors)
        return dict(zip(self.output_names, (a.cpu().numpy() for a in answers), strict=True))

    @property
    def device(self) -> str:
        """Where the module lies, by torch's name."""
        weight = next(self.module.parameters(), None)
        return "cpu" if weight is None else weight.device.type

    def on(self, device: ExportDevice) -> LoadedModel:
        """The same model, moved to a device.

        Raises:
            EnvironmentFault: PyTorch sees no GPU, or the model does not fit on it.
        """
        import torch

        if device == "cpu":
            return self
        if not torch.cuda.is_available():
            raise EnvironmentFault(
                f"device: cuda, and PyTorch {torch.__version__} sees no GPU here",
                remedy="use --device cpu, or run it where nvidia-smi lists a GPU, with a PyTorch built for CUDA",
            )
        # TF32 keeps 10 bits of a product's factors: answers in it are no reference for FP32.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        try:
            self.module.to(device)
        except torch.cuda.OutOfMemoryError as error:
            raise EnvironmentFault(
                f"the model does not fit on the GPU: {first_line(error)}", remedy="use --device cpu, or a larger GPU"
            ) from error
        return self


def enliven(module: torch.nn.Module, seed: int) -> None:
    """Draw every parameter that an initialiser left constant.

    Fresh models start with normalisations at one, biases at zero and, in timm, the last normalisation
    of a residual block at zero: a branch that the export dropped would not show.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if not tensor.is_floating_point() or tensor.numel() < 2 or tensor.min() != tensor.max():
                continue
            tensor.add_(0.4 * torch.rand(tensor.shape, generator=generator) - 0.2)
