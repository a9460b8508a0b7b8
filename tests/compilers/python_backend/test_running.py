"""A module in a lower precision, compiled or not, keeps its own floats at both ends and nothing of what it saw."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from plansmith.compilers.python_backend.model_folder import ServedModel
from plansmith.compilers.python_backend.run import Running, cast, guard_indices
from plansmith.config.engine_options import TorchCompile
from plansmith.records.model import Precision, Tensor
from plansmith.sources.loaded_model import ModuleSnapshot, left_as_it_was


class Mixed(torch.nn.Module):
    """Weights, statistics that are saved, frequencies that are not, and a part that wants FP32; it remembers."""

    _keep_in_fp32_modules: ClassVar = {"careful"}

    frequencies: torch.Tensor
    steps: torch.Tensor
    row_count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.careful = torch.nn.Linear(4, 4)
        self.register_buffer("frequencies", torch.rand(4), persistent=False)
        self.register_buffer("steps", torch.arange(4))
        self.last: torch.Tensor | None = None
        self.tables: dict[str, torch.Tensor] = {}
        self.calls: list[int] = []
        self.register_buffer("row_count", torch.zeros(()))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.last = self.tables["x"] = x
        self.calls.append(len(self.calls))
        self.row_count += x.shape[0]
        self.widest = max(len(x), getattr(self, "widest", 0))
        y = self.careful(self.norm(self.plain(x)).float() * self.frequencies)
        return y.to(x.dtype), ids + self.widest


INPUTS = (Tensor(name="x", dtype="float32", dims=("batch", 4)), Tensor(name="ids", dtype="int64", dims=("batch",)))
OUTPUTS = (Tensor(name="y", dtype="float32", dims=("batch", 4)), Tensor(name="more", dtype="int64", dims=("batch",)))


def running(module: torch.nn.Module, precision: Precision, torch_compile: TorchCompile = False) -> Running:
    served = ServedModel(
        scheme="timm",
        trust_remote_code=False,
        task=None,
        described={},
        wanted=(),
        inputs=INPUTS,
        outputs=OUTPUTS,
        axes={},
        precision=precision,
        torch_compile=torch_compile,
    )
    return Running(module, served, "cpu")


def feed(batch: int) -> dict[str, np.ndarray[Any, Any]]:
    rows = np.random.default_rng(0).normal(size=(batch, 4)).astype(np.float32)
    return {"ids": np.arange(batch, dtype=np.int64), "x": rows}


@pytest.fixture
def module() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


def test_saved_tensors_become_lower(module: Mixed) -> None:
    """What is saved becomes lower; what is computed or wanted high does not."""
    assert cast(module, Precision.FP16) is torch.float16
    floats = {name: tensor.dtype for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    high = {"careful.weight", "careful.bias", "frequencies"}
    assert {name for name, dtype in floats.items() if dtype is torch.float32} == high
    assert floats["norm.running_mean"] is floats["plain.weight"] is torch.float16
    assert floats["steps"] is torch.int64


def test_bf16_needs_no_care(module: Mixed) -> None:
    """BF16 needs no care for parts that FP16 overflows."""
    cast(module, Precision.BF16)
    assert module.careful.weight.dtype is torch.bfloat16
    assert module.frequencies.dtype is torch.float32


def test_fp32_changes_nothing(module: Mixed) -> None:
    cast(module, Precision.FP32)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_answers_keep_interface_floats(precision: Precision, module: Mixed) -> None:
    """Answers have the floats of the interface and nothing is left of a run."""
    with torch.inference_mode(), left_as_it_was(module):
        expected = module(torch.from_numpy(feed(3)["x"]), torch.arange(3))[0].numpy()
    model = running(module, precision)
    first = model.ask(feed(3))
    model.ask(feed(7))
    assert module.last is None
    assert not module.tables
    assert not module.calls
    assert module.row_count == 0
    assert not hasattr(module, "widest")
    again = model.ask(feed(3))
    assert [first[t.name].dtype.name for t in OUTPUTS] == [t.dtype for t in OUTPUTS]
    np.testing.assert_array_equal(first["more"], [3, 4, 5])
    for name, answer in first.items():
        np.testing.assert_array_equal(again[name], answer)
    np.testing.assert_allclose(
        np.asarray(first["y"], np.float32), expected, atol=1e-6 if precision is Precision.FP32 else 1e-2
    )


def test_error_leaves_nothing(module: Mixed) -> None:
    """An error leaves nothing behind either."""
    model = running(module, Precision.FP32)
    with pytest.raises(RuntimeError):
        model.ask({**feed(2), "x": np.zeros((2, 5), np.float32)})
    assert not module.calls
    assert model.ask(feed(2))["y"].shape == (2, 4)


def test_untouched_module_put_back(module: Mixed) -> None:
    """A module that nobody touched is put back as it was."""
    snapshot = ModuleSnapshot(module)
    before = {name: id(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
    module.plain.weight = torch.nn.Parameter(torch.zeros(4, 4))
    module.register_buffer("extra", torch.zeros(1))
    module.tables["x"] = torch.zeros(1)
    snapshot.put_back()
    assert {name: id(tensor) for name, tensor in module.state_dict(keep_vars=True).items()} == before
    assert not module.tables


def test_fp32_stays_fp32_on_gpu() -> None:
    """FP32 is FP32 on a GPU too, and wider floats stay as wide."""

    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x - 1.0).float(), ids

    torch.backends.cudnn.allow_tf32 = True
    model = running(Wide(), Precision.FP32)
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    answer = model.ask({**feed(1), "x": np.full((1, 4), 1 + 1e-12)})
    np.testing.assert_allclose(np.asarray(answer["y"], np.float32), 1e-12, rtol=1e-3)


def test_embedding_refuses_unknown_index() -> None:
    """An embedding refuses what is not in its table before a kernel meets it."""

    class Looked(torch.nn.Embedding):
        def forward(self, mask: torch.Tensor) -> torch.Tensor:
            return super().forward(mask - 10)

    torch.manual_seed(0)
    table, own = torch.nn.Embedding(5, 2), Looked(5, 2)
    guard_indices(torch.nn.ModuleList([table, own]))
    assert table(torch.tensor([0, 4])).shape == (2, 2)
    assert table(torch.zeros((0, 3), dtype=torch.int64)).shape == (0, 3, 2)
    assert own(torch.tensor([10, 14])).shape == (2, 2)
    for bad in (5, -1):
        with pytest.raises(IndexError, match=f"index out of range: {bad} in a table of 5 rows"):
            table(torch.tensor([0, bad]))


@pytest.mark.parametrize("torch_compile", [False, True])
def test_served_model_refuses_unknown_index(torch_compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A served model refuses such indices, except where a check would split what is compiled."""
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    table = torch.nn.Embedding(5, 2)
    running(table, Precision.FP32, torch_compile)
    with pytest.raises(IndexError) as refused:
        table(torch.tensor([7]))
    assert ("in a table of 5 rows" in str(refused.value)) is not torch_compile


def test_cpu_model_never_lost(module: Mixed) -> None:
    """A model on the CPU is never lost."""
    assert running(module, Precision.FP32).loss() == ""


@pytest.mark.parametrize(("asked", "mode"), [(True, None), ("max-autotune", "max-autotune")])
def test_torch_compile_gets_mode(
    asked: TorchCompile, mode: str | None, module: Mixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile gets the module and the mode."""
    calls = []

    def compiled(original: torch.nn.Module, **how: object) -> torch.nn.Module:
        calls.append((original, how))
        return original

    monkeypatch.setattr(torch, "compile", compiled)
    assert running(module, Precision.FP32, asked).ask(feed(2))["y"].shape == (2, 4)
    assert calls == [(module, {"mode": mode})]
    running(module, Precision.FP32)
    assert len(calls) == 1


@pytest.mark.parametrize("writes", [False, True])
def test_input_writing_model_found_out(writes: bool) -> None:
    """On a GPU others may read the same memory, so that it gets a copy from then on."""

    class Masking(torch.nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
            model_input = ids.view(-1) if writes else ids.clone()
            model_input[0] = 0
            return x, ids

    model = running(Masking(), Precision.FP32)
    assert not model.writes
    model.ask(feed(2))
    assert model.writes is writes
