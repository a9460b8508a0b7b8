"""Numbers that Python makes of sizes are followed, in the files of a model and only while it is traced."""

from __future__ import annotations

import builtins
import linecache
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites import numbers
from plansmith.compilers.export.torch_export import attempt_export
from plansmith.compilers.onnxrt import open_session
from plansmith.records.model import Tensor

from ...support.validation.graphs import silent
from .jobs import job_at

if TYPE_CHECKING:
    from pathlib import Path

MOVING = (Tensor(name="x", dtype="float32", dims=("batch", 4, "places")),)
SHAPES = {
    "traced": {"batch": 2, "places": 16},
    "single": {"batch": 1, "places": 16},
    "untraced": {"batch": 3, "places": 49},
}

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int(math.sqrt)": lambda x: x.reshape(-1, 4, int(math.sqrt(x.shape[2])), int(math.sqrt(x.shape[2]))).sum(2),
    "int of a power": lambda x: x.reshape(-1, 4, int(x.shape[2] ** 0.5), int(x.shape[2] ** 0.5)).sum(2),
    "math.ceil": lambda x: torch.nn.functional.pad(x, (0, math.ceil(x.shape[2] / 5) * 5 - x.shape[2])),
    "math.floor": lambda x: x[..., : math.floor(x.shape[2] / 3)],
    "len": lambda x: x * torch.ones(len(x), 1, 1),
    "min": lambda x: x[..., : min(20, x.shape[2])],
    "max": lambda x: torch.nn.functional.pad(x, (0, max(x.shape[2], 20, 30) - x.shape[2])),
}


class Computing(torch.nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.call(x),)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_number_moves_with_its_size(call: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    """A number made of a size moves with it."""
    exported = torch_export.export(job_at(Computing(call), MOVING, SHAPES, tmp_path), silent)
    assert [(a.exporter, a.rewrites) for a in exported.attempts] == [("torchscript", (numbers.NAME,))]


EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quotient": lambda x: x[..., : int(x.shape[2] / 7)],
    "quotient of a sum": lambda x: x[..., : math.ceil((2 * x.shape[2] + 1) / 7)],
    "quotient of a quotient": lambda x: x[..., : int(int(x.shape[2] / 2) / 3)],
    "half": lambda x: x[..., : int(x.shape[2] * 0.5)],
    "root": lambda x: x[..., : int(math.sqrt(x.shape[2]))],
    "power": lambda x: x[..., : math.ceil(x.shape[2] ** 0.5)],
}
ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product with a fraction": lambda x: x[..., : int(x.shape[2] * 0.7)],
    "quotient by a fraction": lambda x: x[..., : math.floor(x.shape[2] / 1.3)],
    "product with a quotient": lambda x: x[..., : int(6 * (x.shape[2] / 49))],
    "quotient of a number": lambda x: x[..., : int(490 / x.shape[2])],
    "cube root": lambda x: x[..., : int(x.shape[2] ** (1 / 3))],
    "least product": lambda x: x[..., : int(min(x.shape[2] * 0.7, 90))],
}


@pytest.mark.parametrize("call", EXACT.values(), ids=EXACT.keys())
def test_followed_number_matches_python(call: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    """A number that is followed is that of Python at every size."""
    attempt, component = attempt_export("torchscript", job_at(Computing(call), MOVING, SHAPES, tmp_path))
    assert component is not None, attempt.problem
    session = open_session(tmp_path / component.file)
    for size in range(1, 600):
        sample = torch.zeros(1, 4, size)
        assert session.run(["y"], {"x": sample.numpy()})[0].shape == call(sample).shape


@pytest.mark.parametrize("call", ROUNDED.values(), ids=ROUNDED.keys())
def test_inexact_number_not_followed(call: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    """A number that single precision may round otherwise is not followed."""
    attempt, component = attempt_export("torchscript", job_at(Computing(call), MOVING, SHAPES, tmp_path))
    assert component is None
    assert attempt.problem is not None
    assert attempt.problem.startswith("differs from")


def test_only_sizes_are_affected() -> None:
    """Everything but sizes is as usual, and nothing is left behind."""
    before = dict(globals())
    used: list[str] = []
    with numbers.followed(Computing(CALLS["len"]), used):
        assert globals()["int"] is not builtins.int
        check: Any = globals()["int"]
        assert (check("7"), check(3.9), check("ff", base=16), isinstance(3, check)) == (7, 3, 255, True)
        assert not isinstance(3.0, check)
        assert issubclass(bool, check)
        assert (len([1, 2]), min(3, 2), max([4, 5]), math.sqrt(9), math.pi) == (2, 2, 5, 3.0, sys.modules["math"].pi)
        assert not used
    assert dict(globals()) == before
    assert math is sys.modules["math"]


FILE = """
import torch

SIZES: dict[int, int] = {}
Pair = tuple[int, int]

class Counting(torch.nn.Module):
    def count(self, size: int | None = None) -> int:
        return size if isinstance(size, (int, float)) else int(size)

    def forward(self, x):
        return %s
"""


@pytest.mark.parametrize(
    ("said", "is_kept"),
    [
        ("x * torch.ones(len(x), dtype=int)[:, None]", True),
        ("x * (x > 0).to(int)", True),
        ("x * sum(map(int, x.shape))", True),
        ("x * int.from_bytes(b'a')", True),
        ("x * int(x.shape[1])", False),
        ("x * (3 if isinstance(x.shape[0], int | float) else 4)", False),
    ],
)
def test_file_keeps_passed_int(said: str, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that passes on int keeps it."""
    (tmp_path / "with_int.py").write_text(FILE % said)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "with_int", raising=False)
    import with_int  # type: ignore[import-not-found]

    linecache.checkcache(with_int.__file__)
    with numbers.followed(with_int.Counting(), []):
        assert ("int" not in vars(with_int)) == is_kept
        assert vars(with_int)["len"] is not len
        with_int.Counting()(torch.ones(2, 4))


SCALES = {2: 1.0, 3: 0.5, 4: 2.0, 5: 3.0}


def test_failed_trace_repeated_without_following(tmp_path: Path) -> None:
    """A trace that fails on a followed number is made once more without."""
    module = Computing(lambda x: x * SCALES[int(x.shape[1])])
    attempt, component = attempt_export("torchscript", job_at(module, MOVING, SHAPES, tmp_path))
    assert component is not None, attempt.problem
    assert attempt.rewrites == ()
