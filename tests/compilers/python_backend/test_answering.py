"""What becomes of requests whose batch fails: each is asked again by itself, and none of them harms another."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plansmith.compilers.python_backend import model as python_model
from plansmith.compilers.python_backend.model import TritonPythonModel


class TritonModelError(Exception):
    """Stands for Triton's own, which exists in its stub alone."""


@dataclass(frozen=True, eq=False)
class Said:
    """Stands for a tensor, an error or a response of the stub."""

    told: tuple[Any, ...]
    error: Any = None


@dataclass(frozen=True)
class Request:
    """A request with one input, which asks for one output."""

    value: float

    def inputs(self) -> list[Any]:
        rows = np.full((1, 2), self.value, np.float32)
        return [SimpleNamespace(name=lambda: "x", is_cpu=lambda: True, as_numpy=lambda: rows)]

    def requested_output_names(self) -> list[str]:
        return ["y"]


@dataclass
class Asked:
    """A model that refuses batches and negative values, and knows what is left of runs that failed."""

    batches: list[int] = field(default_factory=list)
    left: list[bool] = field(default_factory=list)
    made: list[Callable[[], object]] = field(default_factory=list)
    device = torch.device("cpu")
    writes = False

    def run(self, feed: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        self.left.append(any(one() is not None for one in self.made))
        self.batches.append(len(feed["x"]))
        large = np.ones(1000)
        self.made.append(weakref.ref(large))
        if len(feed["x"]) > 1 or feed["x"].min() < 0:
            raise RuntimeError(f"no memory for {len(large)}")
        return {"y": feed["x"] + 1}

    def loss(self) -> str:
        return "; lost"


@pytest.fixture
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        Tensor=lambda *told: Said(told),
        TritonError=lambda *told: Said(told),
        InferenceResponse=lambda outputs=(), error=None: Said(tuple(outputs), error),
        TritonModelException=TritonModelError,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)


def initialized(
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[..., Any],
    kind: str = "CPU",
    set_threads: Callable[[Any], None] = lambda _: None,  # not those of this process, which has begun
) -> TritonPythonModel:
    monkeypatch.setattr(python_model, "load_folder", load)
    monkeypatch.setattr(python_model, "set_threads", set_threads)
    model = TritonPythonModel()
    told = {"model_instance_kind": kind, "model_instance_device_id": "0", "model_version": "1"}
    model.initialize({"model_config": '{"max_batch_size": 4}', "model_repository": "/models", **told})
    return model


@pytest.mark.usefixtures("_stub")
def test_a_batch_that_fails_is_asked_one_by_one_with_nothing_left_of_the_run_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked()
    model = initialized(monkeypatch, lambda *_, **__: asked)
    responses: Sequence[Said] = model.execute([Request(1), Request(-1), Request(-2), Request(3)])
    assert asked.batches == [4, 1, 1, 1, 1]
    assert asked.left == [False] * 5
    good = [responses[0], responses[3]]
    assert [response.told[0].told[1].tolist() for response in good] == [[[2, 2]], [[4, 4]]]
    errors = [response.error for response in responses[1:3]]
    assert [error.told for error in errors] == [("PyTorch: RuntimeError: no memory for 1000; lost",)] * 2
    assert errors[0] is not errors[1]  # Triton 2.51 ends with a segmentation fault where two answers share one


@pytest.mark.usefixtures("_stub")
def test_threads_are_set_where_the_cpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for kind in ("CPU", "GPU"):
        initialized(monkeypatch, lambda _, device, **__: calls.append(device), kind, lambda _: calls.append("threads"))
    assert calls == ["threads", "cpu", "cuda:0"]


@pytest.mark.usefixtures("_stub")
def test_a_server_whose_python_lacks_a_library_is_told_where_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: Path, device: str, **_: object) -> None:
        assert (folder, device) == (Path("/models/1"), "cpu")
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    with pytest.raises(TritonModelError, match=r"No module named 'torch'.*requirements\.txt"):
        initialized(monkeypatch, load)
