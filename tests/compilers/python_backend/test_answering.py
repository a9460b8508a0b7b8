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
class StubValue:
    """Stands for a tensor, an error or a response of the stub."""

    arguments: tuple[Any, ...]
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
class RecordingModel:
    """A model that refuses batches and negative values, and knows what is left of runs that failed."""

    batches: list[int] = field(default_factory=list)
    leftovers: list[bool] = field(default_factory=list)
    references: list[Callable[[], object]] = field(default_factory=list)
    device = torch.device("cpu")
    writes = False

    def run(self, feed: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        self.leftovers.append(any(reference() is not None for reference in self.references))
        self.batches.append(len(feed["x"]))
        large = np.ones(1000)
        self.references.append(weakref.ref(large))
        if len(feed["x"]) > 1 or feed["x"].min() < 0:
            raise RuntimeError(f"no memory for {len(large)}")
        return {"y": feed["x"] + 1}

    def loss(self) -> str:
        return "; lost"


@pytest.fixture
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        Tensor=lambda *arguments: StubValue(arguments),
        TritonError=lambda *arguments: StubValue(arguments),
        InferenceResponse=lambda outputs=(), error=None: StubValue(tuple(outputs), error),
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
    parameters = {"model_instance_kind": kind, "model_instance_device_id": "0", "model_version": "1"}
    model.initialize({"model_config": '{"max_batch_size": 4}', "model_repository": "/models", **parameters})
    return model


@pytest.mark.usefixtures("_stub")
def test_failed_batch_asked_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch that fails is asked one by one with nothing left of the run that failed."""
    recorder = RecordingModel()
    model = initialized(monkeypatch, lambda *_, **__: recorder)
    responses: Sequence[StubValue] = model.execute([Request(1), Request(-1), Request(-2), Request(3)])
    assert recorder.batches == [4, 1, 1, 1, 1]
    assert recorder.leftovers == [False] * 5
    good = [responses[0], responses[3]]
    assert [response.arguments[0].arguments[1].tolist() for response in good] == [[[2, 2]], [[4, 4]]]
    errors = [response.error for response in responses[1:3]]
    assert [error.arguments for error in errors] == [("PyTorch: RuntimeError: no memory for 1000; lost",)] * 2
    assert errors[0] is not errors[1]  # Triton 2.51 ends with a segmentation fault where two answers share one


@pytest.mark.usefixtures("_stub")
def test_threads_set_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are set where the CPU computes."""
    calls: list[str] = []
    for kind in ("CPU", "GPU"):
        initialized(monkeypatch, lambda _, device, **__: calls.append(device), kind, lambda _: calls.append("threads"))
    assert calls == ["threads", "cpu", "cuda:0"]


@pytest.mark.usefixtures("_stub")
def test_missing_library_names_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose Python lacks a library is told where they are named."""

    def load(folder: Path, device: str, **_: object) -> None:
        assert (folder, device) == (Path("/models/1"), "cpu")
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    with pytest.raises(TritonModelError, match=r"No module named 'torch'.*requirements\.txt"):
        initialized(monkeypatch, load)
