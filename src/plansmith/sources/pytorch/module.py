"""PyTorch modules as MLflow logs them: what torch.export saw of one (model.pt2), or a pickle of it (model.pth).

An exported program says which of its dims move, and how far; its example inputs say how large an index may be. A
pickled module says nothing: its inputs are those of MLflow's signature, or of the spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import InputSpec
from plansmith.errors import SourceError, UsageError, first_line
from plansmith.records.model import Tensor
from plansmith.sources.inputs.graph import name_inputs
from plansmith.sources.inputs.random import plan_drawn
from plansmith.sources.loaded_model import InputPlan, LoadedModel
from plansmith.sources.mlflow.module_files import PICKLE, PROGRAM, signed_inputs
from plansmith.sources.pytorch.exported_program import describe, load_program
from plansmith.sources.pytorch.pt2_archive import require_harmless

if TYPE_CHECKING:
    import torch

    Call = Callable[..., Any]


def load(folder: Path, *, allow_pickle: bool, inputs: Mapping[str, InputSpec]) -> LoadedModel:
    """Load the module of a folder.

    Args:
        folder: holds model.pt2 or model.pth, and what MLflow says of it.
        allow_pickle: whether loading may run code of whoever logged it.
        inputs: what the spec says of them.

    Raises:
        SourceError: it cannot be loaded, or not without running code that nobody allowed.
        UsageError: inputs that it does not have.
    """
    path, signed = folder / PROGRAM, signed_inputs(folder)
    if not path.is_file():
        return _of_pickle(_unpickled(folder / PICKLE, allow_pickle=allow_pickle), signed, inputs)
    if not allow_pickle:
        require_harmless(path)
    program = load_program(path)
    described = describe(program, signed, inputs)
    return _live(program.module(), described.arguments, described.plan, described.answer)


def _unpickled(path: Path, *, allow_pickle: bool) -> torch.nn.Module:
    import torch

    if not allow_pickle:
        raise SourceError(
            f"{path.name} is a pickle of the whole model: reading it can run any code",
            remedy="log the model with serialization_format='pt2', or, if you trust whoever logged it: --allow-pickle",
        )
    try:
        module = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # what it unpickles is anybody's code
        raise SourceError(
            f"PyTorch cannot load {path.name}: {first_line(error)}",
            remedy="install the package that its classes are of, or log it with serialization_format='pt2'",
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise SourceError(
            f"{path.name} holds a {type(module).__name__}, and no module of PyTorch", remedy="log the module itself"
        )
    return module.eval().float()


def _of_pickle(module: torch.nn.Module, signed: Sequence[Tensor], given: Mapping[str, InputSpec]) -> LoadedModel:
    described = signed or tuple(
        Tensor(name=name, dtype=said.dtype, dims=said.dims) for name, said in given.items() if said.dtype and said.dims
    )
    if not described:
        raise UsageError(
            "a pickled module does not say what it takes, and MLflow has no signature of tensors for it",
            remedy="say it in a spec:\n  inputs:\n    x: {dtype: float32, dims: [batch, 4]}",
        )
    plan = replace(plan_drawn(name_inputs(described, given), given), guessed=False, random_values=True)
    return _live(module, lambda tensors: (tensors, {}), plan, _answered(module, plan))


def _answered(module: torch.nn.Module, plan: InputPlan) -> Any:
    """What a module returns for its usual inputs.

    Raises:
        SourceError: it fails.
    """
    import torch

    feed = plan.make({axis: sizes.opt for axis, sizes in plan.axes.items()})
    try:
        with torch.inference_mode():
            return module(*(torch.from_numpy(feed[tensor.name]) for tensor in plan.tensors))
    except Exception as error:  # the model is anybody's code
        raise SourceError(
            f"the model fails on the inputs that are described: {first_line(error)}",
            remedy="describe them in a spec (inputs: dtype and dims, in the order of the arguments), or say --shapes",
        ) from error


def _live(module: torch.nn.Module, arguments: Call, plan: InputPlan, answer: Any) -> LoadedModel:
    """A module with tensors in and tensors out.

    Args:
        module: as it was loaded.
        arguments: makes the positional and the named ones that it takes of flat tensors.
        plan: what it is fed with.
        answer: something that it returns, or of the same form.
    """
    import torch
    from torch.utils import _pytree as trees

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def train(self, mode: bool = True) -> Flat:
            self.training = mode  # and nothing in it: what was exported knows no other mode
            return self

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            positional, named = arguments(tensors)
            found = trees.tree_leaves(self.model(*positional, **named))
            return tuple(one for one in found if isinstance(one, torch.Tensor))

    names = output_names(answer)
    if not names:
        raise SourceError("the model returns no tensor", remedy="log one that does")
    return LoadedModel(module=Flat().eval(), inputs=plan, output_names=names, exportable=nullcontext)


def output_names(answer: Any) -> tuple[str, ...]:
    """Names for the tensors of an answer, by where they stand in it: keys, fields, or their number."""
    import torch
    from torch.utils import _pytree as trees

    names = []
    for path, value in trees.tree_flatten_with_path(answer)[0]:
        if isinstance(value, torch.Tensor):
            words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
            name = "_".join(words)
            names.append(name if name[:1].isalpha() else f"output_{name}".rstrip("_"))
    return tuple(names)
