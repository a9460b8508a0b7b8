"""Loaded models: one ready to be called, and one ready to be exported. Lives in the worker only."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.spec import DescribedInput
from plansmith.data.sample import Sample, Takes
from plansmith.errors import EnvironmentFault, UsageError, first_line
from plansmith.formatting import format_bytes
from plansmith.records.model import BATCH, AxisRange, Dim, ExportDevice, Record, Tensor
from plansmith.system.memory import usable_memory

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays

SEQUENCE = "sequence"
Align = Literal["", "tags", "answer"]
"""Labels that stand at tokens, and so come out of the encoding."""

_SHARE = 1e-3
"""Sums in another order differ in the last bits: this is far more, and far less than what lots differ by."""

# Measured on BERT of 8 layers (308 MiB in FP32, inputs of 3 x 32): the worker held 0.8 GiB with its libraries alone,
# and beyond that 3.1 times the weights with TorchScript, 4.4 times with torch.export. What the first cannot do,
# nothing can; activations of large shapes come on top.
LIBRARIES_BYTES = 800 << 20
TIMES_WEIGHTS = 3.1
_FP32_BYTES = 4
_PICKLES = ("*.bin", "*.pt", "*.pth")


@contextmanager
def left_as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Restore a module and its parts at the end of the block, except for changes within parameters."""
    import torch

    attributes = [(part, dict(part.__dict__)) for part in module.modules()]
    containers = [
        (container, container.copy())
        for _, members in attributes
        for container in members.values()
        if isinstance(container, dict | list)
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for part, members in attributes:
            part.__dict__.clear()
            part.__dict__.update(members)
        for container, before in containers:
            _refill(container, before)
        with torch.no_grad():
            for buffer, content in buffers:
                if not torch.equal(buffer, content):
                    buffer.copy_(content)


class ModuleSnapshot:
    """Module snapshot: restores a module after every run at a small part of the run's cost.

    As `left_as_it_was`, and what was written into a buffer in place is told by PyTorch's count of such writes: a model
    with hundreds of buffers would compare them all, for every request.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        hooks = _plain_attributes()
        self._contents: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers() if not buffer.is_inference()]
        self._writes = [writes_into(buffer) for buffer, _ in self._buffers]
        for part in module.modules():
            self._contents.append((part.__dict__, dict(part.__dict__)))
            for name, container in part.__dict__.items():
                if isinstance(container, dict) and name not in hooks:
                    self._contents.append((container, dict(container)))
                elif isinstance(container, list):
                    self._lists.append((container, list(container)))

    def put_back(self) -> None:
        """Restore the module and its parts, except for changes within other tensors."""
        import torch

        for container, before in self._contents:
            if len(container) != len(before) or not all(map(is_, container.values(), before.values())):
                _refill(container, before)
        for listed, earlier in self._lists:
            if len(listed) != len(earlier) or not all(map(is_, listed, earlier)):
                _refill(listed, earlier)
        for number, (buffer, content) in enumerate(self._buffers):
            if writes_into(buffer) != self._writes[number]:
                with torch.no_grad():
                    buffer.copy_(content)
                self._writes[number] = writes_into(buffer)


def writes_into(tensor: torch.Tensor) -> int:
    """Return the version counter of a tensor: see "In-place correctness checks" in PyTorch's notes on autograd."""
    return tensor._version  # noqa: SLF001 - its name there, too


def _plain_attributes() -> set[str]:
    """Return the attributes in which every module keeps its hooks."""
    import torch

    return set(vars(torch.nn.Module())) - {"_parameters", "_buffers", "_modules"}


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, dict):
        container.update(before)
    else:
        container.extend(before)


class Signature(Record):
    """Signature of a loaded model before its export.

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


@dataclass(frozen=True)
class Encoded:
    """Encoded batch of samples as model inputs, with their token-aligned labels (see `data.labels`)."""

    feed: dict[str, NDArray[np.generic]]
    labels: dict[str, NDArray[np.generic]]


Encode = Callable[[Sequence[Sample], Mapping[str, AxisRange], Align], Encoded]
"""Makes one batch of samples, no axis longer than its range allows, nor shorter."""


@dataclass(frozen=True)
class InputPlan:
    """Input plan of a model.

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
        """Whether values are drawn at random, for any reason."""
        return self.guessed or self.random_values

    def signature(self, outputs: Sequence[str]) -> Signature:
        """Return the signature of the model, without running it."""
        return Signature(
            inputs=self.tensors,
            outputs=tuple(outputs),
            axes=self.axes,
            limits=self.limits,
            mask_input=self.mask_input,
        )

    def able(self, axes: Mapping[str, AxisRange]) -> dict[str, AxisRange]:
        """Return the sizes that the model itself can take, as far as known.

        Args:
            axes: the ranges that it is compiled for: all that is known, but for the batch, when the plan is guessed.
        """
        if not self.guessed:
            return self.axes
        return {axis: self.axes[axis] if axis == BATCH else axis_range for axis, axis_range in axes.items()}


@dataclass(frozen=True)
class LoadedModel:
    """Loaded model: a PyTorch module with positional tensors in and a tuple of tensors out, and its metadata.

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
        """Run the module on one batch: names to arrays, in and out. Restores its state afterwards."""
        import torch

        tensors = (torch.from_numpy(feed[tensor.name]).to(self.device) for tensor in self.inputs.tensors)
        with torch.inference_mode(), left_as_it_was(self.module):
            answers = self.module(*tensors)
        return dict(zip(self.output_names, (a.cpu().numpy() for a in answers), strict=True))

    @property
    def device(self) -> str:
        """The module's device, by torch's name."""
        weight = next(self.module.parameters(), None)
        return "cpu" if weight is None else weight.device.type

    def on(self, device: ExportDevice) -> LoadedModel:
        """Return the model moved to a device.

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
    """Randomize every parameter that an initializer left constant.

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


def changed_output(answer: Mapping[str, NDArray[np.generic]], again: Mapping[str, NDArray[np.generic]]) -> str | None:
    """Return the first output that differs by more than rounding, relative to its largest value; None without one.

    Only numbers that are not whole are compared: whole ones that are read off them may differ by rounding alone.
    """
    import numpy as np

    for name, array in answer.items():
        if array.dtype.kind != "f":
            continue
        most = _SHARE * float(np.abs(array[np.isfinite(array)]).max(initial=0))
        if again[name].shape != array.shape or not np.allclose(again[name], array, 0, most, equal_nan=True):
            return name
    return None


def require_memory(folder: Path, usable: int | None = None) -> None:
    """Require enough memory to load and export a model.

    Args:
        folder: holds its weights.
        usable: bytes that this process can still take; asked of the kernel where it is None.

    Raises:
        EnvironmentFault: it has none.
    """
    weights = weights_bytes(folder)
    needed = LIBRARIES_BYTES + round(TIMES_WEIGHTS * weights)
    left = usable_memory() if usable is None else usable
    if needed > left:
        raise EnvironmentFault(
            f"the model does not fit into memory: its weights are {format_bytes(weights)} in FP32, exporting them"
            f" takes {format_bytes(needed)} or more, and {format_bytes(left)} are left",
            remedy="use a machine (or a container: docker run --memory) with more memory, or a smaller model",
        )


def weights_bytes(folder: Path) -> int:
    """Return the FP32 size in memory of a folder's weights, from their file headers; reads no complete file."""
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return sum(_safetensors_bytes(path) for path in files)
    return sum(path.stat().st_size for pattern in _PICKLES for path in folder.glob(pattern))


def _safetensors_bytes(path: Path) -> int:
    """Return the FP32 size of one file; header format: https://huggingface.co/docs/safetensors/index#format."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, path.stat().st_size)))
        tensors = (about for name, about in header.items() if name != "__metadata__")
        return sum(_FP32_BYTES * math.prod(about["shape"]) for about in tensors)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return path.stat().st_size  # whoever loads it says what is wrong with it


NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations of axes: to channels last, and back."""


def in_served_form(live: LoadedModel, inputs: Mapping[str, DescribedInput]) -> LoadedModel:
    """Return a model that takes INT32 instead of INT64, or channels-last images, and converts them itself.

    So what is exported, asked as the reference and served as PyTorch has one interface.

    Args:
        live: the model as its source has it.
        inputs: what the spec says, by name.

    Raises:
        UsageError: the model has no such input, or one of another dtype or rank.
    """
    changes = changes_of(inputs)
    if not changes:
        return live
    module = _converting(live.module, [changes.get(tensor.name) for tensor in live.inputs.tensors])
    return replace(live, module=module, inputs=served_plan(live.inputs, changes))


def changes_of(inputs: Mapping[str, DescribedInput]) -> dict[str, DescribedInput]:
    """Return the parts of a spec's inputs that change the served form."""
    return {name: change for name, change in inputs.items() if change.served_dtype or change.layout}


def served_plan(plan: InputPlan, changes: Mapping[str, DescribedInput]) -> InputPlan:
    """Return a model's input plan in the served form; `changes` is from `changes_of`.

    Raises:
        UsageError: the model has no such input, or one of another dtype or rank.
    """
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    for name, change in changes.items():
        _require_fitting(name, change, tensors)

    def make(sizes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        return _served_arrays(plan.make(sizes), changes)

    def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], align: Align) -> Encoded:
        encoded = plan.encode(samples, axes, align)
        return replace(encoded, feed=_served_arrays(encoded.feed, changes))

    served = tuple(_served_tensor(tensor, changes.get(tensor.name)) for tensor in plan.tensors)
    return replace(plan, tensors=served, make=make, encode=encode)


def source_arrays(feed: Arrays, changes: Mapping[str, DescribedInput]) -> dict[str, NDArray[np.generic]]:
    """Convert inputs from the served form to the source's form."""
    import numpy as np

    arrays = dict(feed)
    for name, change in changes.items():
        if name in arrays and change.layout:
            arrays[name] = np.ascontiguousarray(arrays[name].transpose(NCHW))
        if name in arrays and change.served_dtype:
            arrays[name] = arrays[name].astype(np.int64)
    return arrays


def _require_fitting(name: str, change: DescribedInput, tensors: Mapping[str, Tensor]) -> None:
    key = "io_dtypes" if change.served_dtype else "io_layouts"
    if name not in tensors:
        raise UsageError(f"{key}: the model has no input {name}", remedy=f"its inputs are {', '.join(tensors)}")
    tensor = tensors[name]
    if change.served_dtype and tensor.dtype != "int64":
        raise UsageError(
            f"io_dtypes: {name} is {tensor.dtype}, and only int64 is served as {change.served_dtype}",
            remedy=f"leave {name} out of `io_dtypes`",
        )
    if change.layout and len(tensor.dims) != len(NHWC):
        dims = ", ".join(map(str, tensor.dims))
        raise UsageError(
            f"io_layouts: {name} has dims [{dims}], and images have [batch, channels, height, width]",
            remedy=f"leave {name} out of `io_layouts`",
        )


def _served_tensor(tensor: Tensor, change: DescribedInput | None) -> Tensor:
    if change is None:
        return tensor
    dims: tuple[Dim, ...] = tuple(tensor.dims[axis] for axis in NHWC) if change.layout else tensor.dims
    return tensor.model_copy(update={"dtype": change.served_dtype or tensor.dtype, "dims": dims})


def _served_arrays(feed: Arrays, changes: Mapping[str, DescribedInput]) -> dict[str, NDArray[np.generic]]:
    import numpy as np

    served = dict(feed)
    for name, change in changes.items():
        if name in served and change.layout:
            served[name] = np.ascontiguousarray(served[name].transpose(NHWC))
        if name in served and change.served_dtype:
            served[name] = served[name].astype(change.served_dtype)
    return served


def _converting(module: torch.nn.Module, changes: Sequence[DescribedInput | None]) -> torch.nn.Module:
    """Wrap the module with conversions of its inputs."""
    import torch

    class Converting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = module

        @property
        def model(self) -> Any:
            """The library's own, as the source's module has it."""
            return self.source.model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer: tuple[torch.Tensor, ...] = self.source(
                *(_source_tensor(tensor, change) for tensor, change in zip(tensors, changes, strict=True))
            )
            return answer

    return Converting().eval()


def _source_tensor(tensor: torch.Tensor, change: DescribedInput | None) -> torch.Tensor:
    if change is not None and change.layout:
        tensor = tensor.permute(NCHW)
    return tensor.long() if change is not None and change.served_dtype else tensor
