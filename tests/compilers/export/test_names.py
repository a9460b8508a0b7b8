"""What a rewrite puts in place of something of a model is gone when the export is over."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from plansmith.compilers.export.rewrites.names import attributes_set
from plansmith.compilers.export.rewrites.registry import in_force


class Router(torch.nn.Module):
    expert_capacity = 2

    def __init__(self) -> None:
        super().__init__()
        self.classifier = torch.nn.Linear(3, 2)


def test_parts_have_again_what_was_their_own_or_their_class_s() -> None:
    bare: Any = torch.nn.ReLU()
    wrapped: Any = torch.nn.ReLU()
    wrapped.forward = functools.partial(torch.nn.ReLU.forward, wrapped)  # as accelerate hooks into a module
    own = wrapped.forward
    with attributes_set([bare, wrapped], "forward", lambda part: (part, part.forward)):
        assert (vars(bare)["forward"][0], wrapped.forward) == (bare, (wrapped, own))
    assert "forward" not in vars(bare)
    assert wrapped.forward is own


def test_nothing_is_set_where_one_part_gives_no_other() -> None:
    parts: list[Any] = [torch.nn.ReLU(), torch.nn.Identity()]
    with pytest.raises(AttributeError), attributes_set(parts, "forward", lambda part: part.inplace):
        pass
    assert "forward" not in vars(parts[0])


def test_a_part_s_own_method_outlasts_the_rewrites_of_a_model() -> None:
    model = Router()
    part: Any = model.classifier
    part.to = own = functools.partial(torch.nn.Linear.to, part)
    with in_force(model, "dynamo", []):
        assert part.to is not own
    assert part.to is own
