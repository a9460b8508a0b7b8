"""A PyTorch model as something that a plan stands beside: as it is, and through `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from plansmith.compilers.precision.benchmark import Run, machine
from plansmith.errors import first_line
from plansmith.records.model import ExportDevice, Precision
from plansmith.sources.module_state import left_as_it_was

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


@dataclass(frozen=True)
class Baseline:
    """Something that a plan stands beside.

    Args:
        kind: what it is.
        precision: what it computes in.
        setting: how it runs, in words.
        run: answers once, and is waited for; None where it cannot.
        problem: why it cannot.
    """

    kind: Literal["eager", "torch.compile", "onnxruntime", "plan"]
    precision: Precision
    setting: str
    run: Run | None = None
    problem: str = ""


@contextmanager
def pytorch(
    module: torch.nn.Module,
    inputs: Sequence[Array],
    device: ExportDevice,
    *,
    tf32: bool = False,
    backend: str = "inductor",
    progress: Callable[[str], None],
) -> Iterator[tuple[Baseline, Baseline]]:
    """A PyTorch model as it is, and the same through `torch.compile`, ready to be run; it is as before at the end.

    Neither is an error where it cannot be run: its `problem` says why.

    Args:
        module: takes tensors by position; in eval mode, and in the precision that it came in.
        inputs: one array for each, at the shapes that matter.
        device: where both run.
        tf32: whether FP32 products may be computed in TF32, as the plan's may be; on a GPU only.
        backend: what `torch.compile` compiles with.
        progress: told what is at work.
    """
    import torch

    precision = _precision_of(module)
    if device == "cuda" and not torch.cuda.is_available():
        missing = f"PyTorch {torch.__version__} sees no GPU here"
        yield (
            Baseline("eager", precision, device, problem=missing),
            Baseline("torch.compile", precision, device, problem=missing),
        )
        return
    setting = _setting(device, tf32)
    with left_as_it_was(module), _put_back(module), _tf32(device, tf32), torch.inference_mode():
        progress("running the source model in PyTorch")
        eager, problem = _tried(lambda: module.to(device), inputs, device)
        compiled, why = None, f"PyTorch cannot run the model: {problem}"
        if eager is not None:
            progress("compiling the source model with torch.compile")
            compiled, why = _tried(lambda: torch.compile(module, backend=backend), inputs, device)
        try:
            yield (
                Baseline("eager", precision, setting, eager, problem),
                Baseline("torch.compile", precision, f"{setting}, {backend}, default mode", compiled, why),
            )
        finally:
            torch.compiler.reset()


def _tried(
    make: Callable[[], Callable[..., object]], inputs: Sequence[Array], device: ExportDevice
) -> tuple[Run | None, str]:
    """What runs something on inputs, which it has done once; or why it cannot."""
    import torch

    try:
        tensors = [torch.from_numpy(array).to(device) for array in inputs]
        run = _torch_run(make(), tensors, device)
        run()
    except Exception as error:  # noqa: BLE001 - whatever a model or a compiler raises is the reason
        return None, first_line(error)
    return run, ""


def _torch_run(call: Callable[..., object], tensors: Sequence[torch.Tensor], device: ExportDevice) -> Run:
    import torch

    def run() -> None:
        call(*tensors)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def _precision_of(module: torch.nn.Module) -> Precision:
    import torch

    lower = {torch.float16: Precision.FP16, torch.bfloat16: Precision.BF16}
    weight = next(module.parameters(), None)
    return lower.get(weight.dtype, Precision.FP32) if weight is not None else Precision.FP32


def _setting(device: ExportDevice, tf32: bool) -> str:
    import torch

    if device == "cpu":
        return f"PyTorch {torch.__version__}, CPU, {torch.get_num_threads()} threads, {machine()}"
    return (
        f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, TF32 {'on' if tf32 else 'off'}, inputs on the"
        " device, waited for after every run, no CUDA graphs"
    )


@contextmanager
def _put_back(module: torch.nn.Module) -> Iterator[None]:
    """Bring a module back to where it lay."""
    weight = next(module.parameters(), None)
    before = weight.device if weight is not None else None
    try:
        yield
    finally:
        if before is not None:
            module.to(before)


@contextmanager
def _tf32(device: ExportDevice, allowed: bool) -> Iterator[None]:
    """Whether products and convolutions of FP32 may be computed in TF32 on the GPU, for the length of a block."""
    import torch

    if device == "cpu":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    try:
        products.allow_tf32 = convolutions.allow_tf32 = allowed
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
