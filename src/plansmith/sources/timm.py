"""timm models: loaded by name, or from a directory as timm saves it. Runs in the worker."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import IMAGE
from plansmith.data import synthetic
from plansmith.data.sample import Sample, Takes
from plansmith.data.tables import open_image
from plansmith.errors import SourceError, UsageError, first_line
from plansmith.records.model import BATCH, BATCH_RANGE, AxisRange, Tensor
from plansmith.sources.collate import encode_arrays, encode_images
from plansmith.sources.loaded_model import Align, Encoded, InputPlan, LoadedModel, enliven
from plansmith.system.garbage import never_collected

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


_INITIALIZING = frozenset(("normal_", "uniform_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"))
"""What initializers do to parameters in place."""

CLASSIFICATION = "image-classification"
FEATURES = "image-feature-extraction"


def load(folder: Path, *, task: str) -> LoadedModel:
    """Load a directory written by timm's save_for_hf.

    Args:
        folder: the directory.
        task: CLASSIFICATION keeps the head, FEATURES leaves the pooled features; empty: the model as it is.

    Raises:
        SourceError: timm does not know the architecture, the weights do not fit it, or there is no head.
    """
    with never_collected():
        import timm

    try:
        model = _filled(lambda: timm.create_model(f"local-dir:{folder}", pretrained=True))
    except (RuntimeError, KeyError, FileNotFoundError) as error:
        raise SourceError(
            f"timm {timm.__version__} cannot load {folder.name}: {first_line(error)}",
            remedy="save the model with timm.models.save_for_hf(model, folder, safe_serialization=True)",
        ) from error
    if task == FEATURES:
        model.reset_classifier(0)
    if task == CLASSIFICATION and not model.num_classes:
        raise SourceError(f"{folder.name} was saved without a classifier", remedy=f"use --task {FEATURES}")
    return _live(model.eval().float())


def _filled(create: Callable[[], Any]) -> Any:
    """Create a model that a checkpoint fills, without the random numbers that it would replace.

    They take longer than reading the weights does. A model of which some parameters are not in the checkpoint is
    created once more, as timm does.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Uninitialized(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.left: dict[int, torch.Tensor] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            target = args[0] if args else None
            if isinstance(target, torch.nn.Parameter):
                name = func.overloadpacket.__name__
                if name in _INITIALIZING:
                    self.left[id(target)] = target
                    return target
                if name == "copy_":
                    self.left.pop(id(target), None)
            return func(*args, **(kwargs or {}))

    with Uninitialized() as mode:
        model = create()
    return create() if any(id(parameter) in mode.left for parameter in model.parameters()) else model


def require_task(task: str) -> None:
    """Require a task that timm models support; an empty one is the model's own.

    Raises:
        UsageError: they cannot.
    """
    if task not in {"", CLASSIFICATION, FEATURES}:
        raise UsageError(f"timm models have no task {task!r}", remedy=f"choose {CLASSIFICATION} or {FEATURES}")


def hub_id(name: str) -> str:
    """Return the Hub repository with the weights of a timm name.

    Raises:
        SourceError: timm has no such name, or no weights for it.
    """
    with never_collected():
        import timm

    _require_known(name)
    pretrained = timm.models.get_pretrained_cfg(name)
    if pretrained is None or not pretrained.hf_hub_id:
        raise SourceError(f"timm has no weights for {name!r}", remedy="pass --random-weights, or a directory")
    repo = str(pretrained.hf_hub_id)
    return repo if not repo.endswith("/") else f"{repo}{pretrained.architecture}.{pretrained.tag}"


def make_random(location: str, out: Path, *, seed: int) -> None:
    """Write a timm model to `out`, with random, non-degenerate weights, as timm saves models.

    Args:
        location: a timm name, or a directory whose configuration is used.
        out: the folder to write to.
        seed: of the random weights.

    Raises:
        SourceError: timm has no such name.
    """
    with never_collected():
        import timm
        import torch

    if Path(location).is_absolute():
        name = f"local-dir:{location}"
    else:
        _require_known(location)
        name = location
    torch.manual_seed(seed)
    model = timm.create_model(name, pretrained=False)
    enliven(model, seed)
    model.register_state_dict_post_hook(_apart)
    timm.models.save_for_hf(model, out, safe_serialization=True)


def _apart(_module: Any, state: dict[str, torch.Tensor], _prefix: str, _metadata: Any) -> None:
    """Copy shared weights so that each layer has its own: safetensors stores none twice."""
    pointers = set()
    for name, tensor in state.items():
        if tensor.data_ptr() in pointers:
            state[name] = tensor.clone()
        pointers.add(tensor.data_ptr())


def _require_known(name: str) -> None:
    import timm

    if timm.is_model(name):
        return
    near = difflib.get_close_matches(name, timm.list_models(), n=4, cutoff=0.5)
    remedy = f"did you mean {', '.join(near)}?" if near else "list them with timm.list_models()"
    raise SourceError(f"timm {timm.__version__} has no model {name!r}", remedy=remedy)


def _live(model: torch.nn.Module) -> LoadedModel:
    import timm
    from PIL import Image

    config: dict[str, Any] = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    channels, height, width = config["input_size"]
    mode = "L" if channels == 1 else "RGB"

    def make_inputs(axes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        import numpy as np

        images = synthetic.sample_images(axes[BATCH], height + 32, width + 64, seed=axes[BATCH])
        return {"pixel_values": np.stack([transform(Image.fromarray(i).convert(mode)).numpy() for i in images])}

    tensor = Tensor(name="pixel_values", dtype="float32", dims=(BATCH, channels, height, width))

    def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], _: Align) -> Encoded:
        if IMAGE not in samples[0].values:
            return encode_arrays((tensor,), None, samples, axes)
        return encode_images(
            tensor, samples, lambda value, where: transform(open_image(value, where, mode)).numpy(), axes
        )

    return LoadedModel(
        module=_as_tuple(model),
        inputs=InputPlan(
            tensors=(tensor,),
            axes={BATCH: BATCH_RANGE},
            limits={},
            mask_input=None,
            make=make_inputs,
            data=synthetic.DRAWN_IMAGES,
            takes=Takes((IMAGE,), (tensor.name,)),
            encode=encode,
        ),
        output_names=("logits" if getattr(model, "num_classes", 0) else "features",),
        exportable=nullcontext,
    )


def _as_tuple(model: torch.nn.Module) -> torch.nn.Module:
    import torch

    class Tupled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (self.model(pixel_values),)

    return Tupled().eval()
