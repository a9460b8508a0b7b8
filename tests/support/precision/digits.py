"""A CNN and a ViT that know scikit-learn's digits, saved as timm saves models, and the digits they never saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

SIZE = 32
CALIBRATION, EVALUATION = 96, 800
OUTLIER, OUTLIER_FACTOR = 5, 1000.0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_HALF = 898
_ENLARGED = 4
_PREPROCESSING = {"input_size": (3, SIZE, SIZE), "crop_pct": 1.0, "mean": MEAN, "std": STD}
_VIT = {
    "img_size": SIZE,
    "patch_size": 16,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 2,
    "class_token": False,
    "global_pool": "avg",
}

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Half:
    """Digits, [digits, size, size], and what they show."""

    images: Images
    labels: NDArray[np.int64]

    def normalised(self) -> torch.Tensor:
        """As the models want them, [digits, 3, size, size]."""
        import torch

        mean, std = (np.array(v, np.float32)[:, None, None] for v in (MEAN, STD))
        return torch.from_numpy((self.images[:, None].astype(np.float32) / 255 - mean) / std)


def halves() -> tuple[Half, Half]:
    """What the models learn from, and what they never see."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    images = np.kron(dataset.images, np.ones((1, _ENLARGED, _ENLARGED))) * (255 / dataset.images.max())
    order = np.random.default_rng(0).permutation(len(images))
    split = [
        Half(images[rows].round().astype(np.uint8), dataset.target[rows]) for rows in (order[:_HALF], order[_HALF:])
    ]
    return split[0], split[1]


def write_images(half: Half, folder: Path) -> Path:
    """One PNG a digit, in a folder a class."""
    from PIL import Image

    for number, (image, label) in enumerate(zip(half.images, half.labels, strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:04}.png")
    return folder


def train_cnn(half: Half) -> torch.nn.Module:
    """A residual network of 16 convolutions."""
    import timm

    with _repeatable():
        model = timm.create_model("test_resnet.r160_in1k", pretrained=False, num_classes=10)
        return _trained(model, half, epochs=6, batch=32, rate=6e-3)


def train_vit(half: Half) -> torch.nn.Module:
    """A vision transformer of two blocks.

    timm's small start and faint position embeddings are meant for wide models: with them this one stays below 80 %.
    """
    import timm
    import torch

    with _repeatable():
        model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=10, **_VIT)
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.normal_(model.pos_embed, std=0.3)
        return _trained(model, half, epochs=15, batch=16, rate=2e-3)


def plant_between_convolutions(cnn: Path) -> torch.nn.Module:
    """The saved CNN with one channel of its third stage so much larger, and what takes it so much smaller.

    A Relu lies between the two, so that FP32 answers as before; no scale per tensor holds the channel and its
    neighbours, and no migration moves it, for a convolution takes it.
    """
    model = load(cnn)
    block: Any = model.get_submodule("layer3.0")
    _multiply((block.bn1.weight, block.bn1.bias), block.conv2.weight)
    return model


def plant_before_product(vit: Path) -> torch.nn.Module:
    """The saved ViT with one channel of a normalisation so much larger, and the row of its product so much smaller."""
    model = load(vit)
    block: Any = model.get_submodule("blocks.1")
    _multiply((block.norm2.weight, block.norm2.bias), block.mlp.fc1.weight)
    return model


def _multiply(makers: Iterable[torch.nn.Parameter], taker: torch.nn.Parameter) -> None:
    import torch

    with torch.no_grad():
        for maker in makers:
            maker[OUTLIER] *= OUTLIER_FACTOR
        taker[:, OUTLIER] /= OUTLIER_FACTOR


def load(folder: Path) -> torch.nn.Module:
    """A model as it was saved."""
    import timm
    import torch

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert isinstance(model, torch.nn.Module)
    return model


def save(model: torch.nn.Module, folder: Path) -> Path:
    """As a user of timm does who trained at this size."""
    import timm

    timm.models.save_for_hf(model, folder, safe_serialization=True, data_config=_PREPROCESSING)
    return folder


def _trained(model: torch.nn.Module, half: Half, *, epochs: int, batch: int, rate: float) -> torch.nn.Module:
    """The model, trained in double precision: in single precision each kind of processor makes another one of it."""
    import torch

    images, labels = half.normalised().double(), torch.from_numpy(half.labels)
    model.double()
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    steps = epochs * -(-len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(images)), batch):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return model.float().eval()


@contextmanager
def _repeatable() -> Iterator[None]:
    """The same weights on every run, and the generator and threads of other tests left as they were."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(threads)
