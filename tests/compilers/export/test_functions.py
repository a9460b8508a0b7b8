"""Calls that the tracer cannot write get another form, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites import functions
from plansmith.compilers.export.rewrites.registry import function_rewrites
from plansmith.records.model import Tensor

from ...support.validation.graphs import silent
from .jobs import job_at

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = torch.randn(2, 6, 14, 17, generator=torch.Generator().manual_seed(0))
KERNELS: list[tuple[Any, int, int, Any]] = [(3, 1, 1, 1), (3, 1, 1, 2), ((2, 4), 1, 0, (2, 4)), (3, 2, 1, 2)]
MOVING = (Tensor(name="x", dtype="float32", dims=("batch", 4, "height", 12)),)
SHAPES = {
    "traced": {"batch": 2, "height": 10},
    "single": {"batch": 1, "height": 10},
    "untraced": {"batch": 3, "height": 17},
}


@pytest.mark.parametrize(("kernel", "dilation", "padding", "stride"), KERNELS)
def test_unfolding_and_folding_are_convolutions(kernel: Any, dilation: int, padding: int, stride: Any) -> None:
    patches = functional.unfold(IMAGES, kernel, dilation, padding, stride)
    torch.testing.assert_close(
        functions.unfolded_by_convolution(IMAGES, kernel, dilation, padding, stride), patches, rtol=0, atol=0
    )
    laid = functional.fold(patches, (14, 17), kernel, dilation, padding, stride)
    torch.testing.assert_close(
        functions.folded_by_convolution(patches, (14, 17), kernel, dilation, padding, stride), laid
    )


@pytest.mark.parametrize("size", [(7, 7), (5, 3), 2, (14, 17), (20, 3)])
def test_adaptive_pooling_is_two_products(size: Any) -> None:
    result = functions.pooled_by_products(IMAGES, size)
    torch.testing.assert_close(result, functional.adaptive_avg_pool2d(IMAGES, size))


@pytest.mark.parametrize("size", [1, (1, 1), (None, 3)])
def test_known_pooling_stays(size: Any) -> None:
    """Pooling that every exporter knows stays as it is."""
    assert functions.pooled_by_products(IMAGES, size) is NotImplemented


@pytest.mark.parametrize(("dimension", "size", "step"), [(2, 5, 3), (-1, 4, 1), (0, 2, 1)])
def test_windows_are_taken_by_indices(dimension: int, size: int, step: int) -> None:
    result = functions.windows(IMAGES, dimension, size, step)
    torch.testing.assert_close(result, IMAGES.unfold(dimension, size, step), rtol=0, atol=0)


@pytest.mark.parametrize(
    "arguments", [{}, {"dim": 2}, {"prepend": IMAGES[..., :1]}, {"append": IMAGES[..., :2], "dim": 3}]
)
def test_differences_are_taken_by_slices(arguments: dict[str, Any]) -> None:
    torch.testing.assert_close(
        functions.differences(IMAGES, **arguments), torch.diff(IMAGES, **arguments), rtol=0, atol=0
    )


@pytest.mark.parametrize("size", [(4, 3), 9, (90, 7), (29, 120), (14, 17)])
def test_nearest_elements_use_indices(size: Any) -> None:
    """Nearest elements are taken by indices."""
    for sample in (IMAGES, torch.randn(1, 1, 120, 87), torch.randn(1, 2, 49, 3)):
        result = functions.nearest_by_indices(sample, size=size)
        torch.testing.assert_close(result, functional.interpolate(sample, size=size), rtol=0, atol=0)


def test_other_interpolations_stay() -> None:
    """Other interpolations stay as they are."""
    assert functions.nearest_by_indices(IMAGES, scale_factor=2) is NotImplemented
    assert functions.nearest_by_indices(IMAGES, (3, 3), mode="bilinear") is NotImplemented


def grouped(x: torch.Tensor, reduce: str) -> torch.Tensor:
    """Values of [batch, ...] by groups of five; the last group has none."""
    values = x.flatten()
    groups = torch.arange(values.shape[0]) % 5
    return torch.full((6,), 2.5).scatter_reduce(0, groups, values, reduce, include_self=False) + x[..., :1]


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_scatter_without_self_is_reduction(reduce: str) -> None:
    """Scattering that leaves out what stood there is sums and counts, or bounds."""
    values, places = torch.randn(4, 9), torch.randint(0, 4, (4, 9))
    base = torch.full((4, 5), 3.0)
    result = functions.reduced_apart(base, 1, places, values, reduce, include_self=False)
    torch.testing.assert_close(result, base.scatter_reduce(1, places, values, reduce, include_self=False))
    assert functions.reduced_apart(base, 1, places, values, reduce) is NotImplemented


class Calling(torch.nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.call(x),)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("adaptive pooling by products", lambda x: functional.adaptive_avg_pool2d(x.relu(), (3, 5))),
        ("pieces by slices", lambda x: torch.split(torch.cat([x, -2 * x, x]), x.shape[0])[1]),
        ("pieces by slices", lambda x: torch.split(torch.cat([x, x * x], 2), x.shape[2], dim=2)[1]),
        ("largest of windows", lambda x: functional.max_pool2d(x[:, 0], 3, 1, 1)),
        ("largest of windows", lambda x: functional.max_pool2d(functional.pad(-x.abs() - 1, (1,) * 4), 3, 2)),
        ("scattering by sums and counts", lambda x: grouped(x, "mean")),
        ("scattering by sums and counts", lambda x: grouped(x, "amax")),
        ("windows by indices", lambda x: x.unfold(2, 3, 2).sum(-1)),
        ("unfolding by convolution", lambda x: functional.unfold(x, 3, padding=1)),
        ("differences by slices", lambda x: torch.diff(x, dim=2)),
        ("nearest elements by indices", lambda x: functional.interpolate(x, size=(x.shape[2] // 3, 5))),
        ("flags counted as numbers", lambda x: x * (x > 0).cumsum(-1)),
        ("flags counted as numbers", lambda x: x * torch.cumsum(x > 0, dim=2)),
        ("flags counted as numbers", lambda x: x * torch.cumsum(x > 0, axis=2)),  # type: ignore[call-arg]
        ("places counted from the front", lambda x: x.permute(0, -2, -1, 1)),
        ("places counted from the front", lambda x: torch.permute(x, [-1, 2, 1, 0]).flatten()),
        ("places counted from the front", lambda x: x.permute(dims=(0, -2, -1, 1)).abs()),
        ("sizes stacked", lambda x: x * torch.tensor([[x.shape[2], 3], [1, x.shape[0]]]).sum(-1).max()),
        ("sizes stacked", lambda x: x / torch.as_tensor([0.5, x.shape[2]], dtype=torch.float32)[1]),
    ],
)
def test_tracer_follows_rewritten_call(name: str, call: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    """The tracer follows a moving side through a rewritten call."""
    exported = torch_export.export(job_at(Calling(call), MOVING, SHAPES, tmp_path), silent)
    assert [(a.exporter, a.rewrites) for a in exported.attempts] == [("torchscript", (name,))]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.permute(x, dims=(0, 2, 1, 3)),
        lambda x: torch.permute(input=x, dims=(0, 2, 1, 3)),
        lambda x: torch.cumsum(input=x, dim=1),
        lambda x: torch.split(tensor=x, split_size_or_sections=2, dim=1)[0],
        lambda x: functional.max_pool2d(input=x, kernel_size=3),
        lambda x: torch.scatter_reduce(input=x[0, 0], dim=0, index=x[0, 0].long() * 0, src=x[0, 0], reduce="sum"),
    ],
)
def test_keyword_call_matches_original(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """A call that names all its arguments gives what it gives without the rewrites."""
    used: list[str] = []
    with functions.in_their_place(function_rewrites(), used):
        result = call(IMAGES)
    torch.testing.assert_close(result, call(IMAGES), rtol=0, atol=0)
    assert not used


def test_rewrite_states_its_reason() -> None:
    """Every rewrite says what goes wrong without it and where that is known."""
    names = [rewrite.name for rewrite in function_rewrites()]
    assert len(set(names)) == len(names)
    for rewrite in function_rewrites():
        assert rewrite.reason
        assert rewrite.link.startswith("https://github.com/")
        assert rewrite.find_originals()
