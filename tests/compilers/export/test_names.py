"""What a rewrite puts in place of something of a model is gone when the export is over."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from plansmith.compilers.export.rewrites.base import attributes_set
from plansmith.compilers.export.rewrites.registry import in_force


class Router(torch.nn.Module):
    expert_capacity = 2

    def __init__(self) -> None:
        super().__init__()
        self.classifier = torch.nn.Linear(3, 2)


def test_parts_get_original_attributes() -> None:
    """Parts have again what was their own or their class's."""
    bare: Any = torch.nn.ReLU()
    wrapped: Any = torch.nn.ReLU()
    wrapped.forward = functools.partial(torch.nn.ReLU.forward, wrapped)  # as accelerate hooks into a module
    own = wrapped.forward
    with attributes_set([bare, wrapped], "forward", lambda part: (part, part.forward)):
        assert (vars(bare)["forward"][0], wrapped.forward) == (bare, (wrapped, own))
    assert "forward" not in vars(bare)
    assert wrapped.forward is own


def test_absent_replacement_sets_nothing() -> None:
    """Nothing is set where one part gives no other."""
    parts: list[Any] = [torch.nn.ReLU(), torch.nn.Identity()]
    with pytest.raises(AttributeError), attributes_set(parts, "forward", lambda part: part.inplace):
        pass
    assert "forward" not in vars(parts[0])


def test_own_method_outlasts_rewrites() -> None:
    """A part's own method outlasts the rewrites of a model."""
    model = Router()
    part: Any = model.classifier
    part.to = own = functools.partial(torch.nn.Linear.to, part)
    with in_force(model, "dynamo", []):
        assert part.to is not own
    assert part.to is own
